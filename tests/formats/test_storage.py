"""Storages: every code word both ways, bytes by hand, and odd shapes."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tercet.errors import FormatError
from tercet.formats import STORAGES, storage

DENSE = ("base3", "base9", "bits2", "bits3", "bits4", "bits5", "bits6", "bits8")
WORDS = {"base3": 3**5, "base9": 9**5, "bits2": 2**8, "bits3": 2**24, "bits4": 2**8, "bits8": 2**8}


def digits(number: int, base: int, count: int) -> list[int]:
    return [number // base**position % base for position in range(count)]


@pytest.mark.parametrize("name", ["base3", "base9", "bits2", "bits4", "bits8"])
def test_every_word_of_codes_survives_and_has_its_own_bytes(name: str) -> None:
    chosen = storage(name)
    words = torch.cartesian_prod(*[torch.arange(chosen.code_count)] * chosen.unit_codes)
    words = words.reshape(-1, chosen.unit_codes).to(torch.uint8)
    assert len(words) == WORDS[name]
    packed = chosen.pack(words)
    assert packed.shape == (len(words), chosen.unit_bytes)
    assert torch.equal(chosen.unpack(packed, chosen.unit_codes), words)
    assert len(packed.unique(dim=0)) == len(words)
    assert chosen.invalid_words(packed) == 0


@pytest.mark.parametrize(("width", "count", "step"), [(3, 8, 61), (5, 8, 4_000_037), (6, 4, 61)])
def test_long_words_survive(width: int, count: int, step: int) -> None:
    chosen, bits = storage(f"bits{width}"), width * count
    assert (chosen.unit_codes, 8 * chosen.unit_bytes) == (count, bits)
    for start in range(0, 2**bits, 2 ** (bits - 2)):
        numbers = torch.arange(start, start + 2 ** (bits - 2), step)
        units = torch.stack([numbers >> shift & 255 for shift in range(0, bits, 8)], 1)
        units = units.to(torch.uint8)
        places = [width * position for position in range(count)]
        expected = torch.stack([numbers >> place & 2**width - 1 for place in places], 1)
        codes = chosen.unpack(units, count)
        assert torch.equal(codes.long(), expected)
        assert torch.equal(chosen.pack(codes), units)


@pytest.mark.parametrize("name", ["base3", "base9"])
def test_every_byte_pattern_is_a_word_or_counted_as_none(name: str) -> None:
    chosen = storage(name)
    patterns = torch.arange(256**chosen.unit_bytes)
    units = torch.stack([patterns >> 8 * i & 255 for i in range(chosen.unit_bytes)], 1)
    units = units.to(torch.uint8)
    assert chosen.invalid_words(units) == 256**chosen.unit_bytes - WORDS[name]
    assert chosen.valid_units(units).tolist() == (patterns < WORDS[name]).tolist()
    words = units[: WORDS[name]]
    assert torch.equal(chosen.pack(chosen.unpack(words, 5)), words)


@pytest.mark.parametrize(
    ("name", "codes", "expected"),
    [
        ("base3", [0, 0, 0, 0, 0], [0]),
        ("base3", [2, 0, 0, 0, 1], [2 + 81]),
        ("base3", [0, 1, 2, 0, 0], [3 + 18]),
        ("base3", [2, 2, 2, 2, 2], [242]),
        ("base3", [2], [2 + 3 + 9 + 27 + 81]),
        ("base9", [8, 8, 8, 8, 8], [0xA8, 0xE6]),
        ("base9", [1, 2, 3, 4, 5], [0x8F, 0x8C]),
        ("base9", [4, 4, 4, 4, 4], [0x54, 0x73]),
        ("base9", [0], [0x50, 0x73]),
        ("bits2", [1, 2, 3, 0], [0b00111001]),
        ("bits2", [3], [3]),
        ("bits3", [1, 2, 3, 4, 5, 6, 7, 0], [0b11010001, 0b01011000, 0b00011111]),
        ("bits5", [1, 2, 3, 4, 5, 6, 7, 31], [0x41, 0x0C, 0x52, 0xCC, 0xF9]),
        ("bits6", [1, 2, 3, 63], [0x81, 0x30, 0xFC]),
        ("bits4", [0xA, 0x5], [0x5A]),
        ("bits4", [0xF, 0x1, 0x7], [0x1F, 0x07]),
        ("bits8", [0, 128, 255], [0, 128, 255]),
        ("sparse_2_4", [1, 1, 0, 0], [0, 0, 0, 0, 0]),
    ],
)
def test_bytes_by_hand(name: str, codes: list[int], expected: list[int]) -> None:
    packed = storage(name).pack(torch.tensor([codes], dtype=torch.uint8))
    if name == "sparse_2_4":
        assert packed[0, 0] & 31 == patterns_by_hand(2).index(tuple(codes))
        return
    assert packed[0].tolist() == expected


def patterns_by_hand(nonzero: int) -> list[tuple[int, ...]]:
    """All fours with that many codes unlike 1 (zero), in ascending order of their base-3 number."""
    fours = [tuple(digits(number, 3, 4)) for number in range(81)]
    return [four for four in fours if sum(code != 1 for code in four) == nonzero]


@pytest.mark.parametrize(("name", "nonzero"), [("sparse_2_4", 2), ("sparse_3_4", 3)])
def test_every_sparse_pattern_in_every_place(name: str, nonzero: int) -> None:
    chosen = storage(name)
    patterns = patterns_by_hand(nonzero)
    patterns += [(1, 1, 1, 1)] if nonzero == 2 else []
    assert len(patterns) == {2: 25, 3: 32}[nonzero]
    for place, (number, pattern) in product(range(8), enumerate(patterns)):
        fours = [patterns[0]] * 8
        fours[place] = pattern
        codes = torch.tensor([sum(fours, ())], dtype=torch.uint8)
        packed = chosen.pack(codes)
        assert int.from_bytes(bytes(packed[0].tolist()), "little") == number << 5 * place
        assert torch.equal(chosen.unpack(packed, 32), codes)


@pytest.mark.parametrize(("name", "nonzero"), [("sparse_2_4", 2), ("sparse_3_4", 3)])
def test_every_other_four_is_refused_by_sparse_storage(name: str, nonzero: int) -> None:
    for number in range(81):
        four = digits(number, 3, 4)
        count = sum(code != 1 for code in four)
        if count == nonzero or (nonzero == 2 and count == 0):
            continue
        with pytest.raises(FormatError, match=rf"exactly {nonzero} non-zero weights in each four"):
            storage(name).pack(torch.tensor([four], dtype=torch.uint8))


def test_sparse_storage_needs_whole_fours() -> None:
    with pytest.raises(FormatError, match="needs K divisible by 4, got K = 6"):
        storage("sparse_2_4").pack(torch.ones(2, 6, dtype=torch.uint8))


def test_sparse_numbers_beyond_the_patterns_are_counted() -> None:
    words = torch.tensor([[24, 0, 0, 0, 0], [25, 0, 0, 0, 0], [31, 0, 0, 0, 0]], dtype=torch.uint8)
    assert storage("sparse_2_4").invalid_words(words) == 2
    assert storage("sparse_3_4").invalid_words(words) == 0


@pytest.mark.parametrize("name", DENSE)
@given(rows=st.integers(0, 3), columns=st.integers(0, 40), seed=st.integers(0, 99))
def test_any_shape_survives(name: str, rows: int, columns: int, seed: int) -> None:
    chosen = storage(name)
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(chosen.code_count, (rows, columns), generator=generator).to(torch.uint8)
    packed = chosen.pack(codes)
    assert packed.shape == (rows, chosen.row_bytes(columns))
    assert packed.dtype == torch.uint8
    assert torch.equal(chosen.unpack(packed, columns), codes)
    assert chosen.invalid_words(packed) == 0


@given(rows=st.integers(0, 3), fours=st.integers(0, 20), seed=st.integers(0, 99))
@pytest.mark.parametrize(("name", "nonzero"), [("sparse_2_4", 2), ("sparse_3_4", 3)])
def test_any_sparse_shape_survives(
    name: str, nonzero: int, rows: int, fours: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.tensor(patterns_by_hand(nonzero), dtype=torch.uint8)
    picks = torch.randint(len(patterns), (rows, fours), generator=generator)
    codes = patterns[picks].reshape(rows, fours * 4)
    packed = storage(name).pack(codes)
    assert packed.shape == (rows, storage(name).row_bytes(fours * 4))
    assert torch.equal(storage(name).unpack(packed, fours * 4), codes)
    assert storage(name).invalid_words(packed) == 0


@pytest.mark.parametrize("name", DENSE)
def test_non_contiguous_codes_pack_like_contiguous_ones(name: str) -> None:
    codes = (torch.arange(7 * 13) % storage(name).code_count).to(torch.uint8).reshape(13, 7).T
    packed = storage(name).pack(codes)
    assert torch.equal(packed, storage(name).pack(codes.contiguous()))
    wide = torch.zeros(7, 2 * packed.shape[1], dtype=torch.uint8)
    wide[:, ::2] = packed
    assert torch.equal(storage(name).unpack(wide[:, ::2], 13), codes)


@pytest.mark.parametrize("name", ["base3", "base9", "bits2", "bits3", "bits4"])
def test_a_code_out_of_range_is_refused(name: str) -> None:
    count = storage(name).code_count
    with pytest.raises(FormatError, match=f"holds codes below {count}, got {count}"):
        storage(name).pack(torch.full((1, 5), count, dtype=torch.uint8))


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(FormatError, match="11 codes take 3 bytes a row, got 2"):
        storage("base3").unpack(torch.zeros(4, 2, dtype=torch.uint8), 11)


def test_bits_per_weight_of_every_storage() -> None:
    assert {name: found.bits for name, found in STORAGES.items()} == {
        "base3": 1.6,
        "bits2": 2.0,
        "sparse_2_4": 1.25,
        "sparse_3_4": 1.25,
        "base9": 3.2,
        "bits3": 3.0,
        "bits4": 4.0,
        "bits5": 5.0,
        "bits6": 6.0,
        "bits8": 8.0,
    }


def test_an_unknown_storage_offers_the_nearest() -> None:
    with pytest.raises(FormatError, match=r"unknown storage 'bits7': did you mean 'bits"):
        storage("bits7")
