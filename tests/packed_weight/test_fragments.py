"""fragments holds every code where the tensor core's registers want it, and loses none."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor, encode, fit, parse_scheme
from tercet.ops.linear_packed.op import OP
from tercet.packed_weight import fragments
from tercet.packed_weight.rows16 import layout_of
from tercet.packed_weight.weight import (
    LayoutName,
    PreparedWeight,
    concatenate,
    decode_blocks,
    prepare,
)

NAMES = """
    ternary nonary-g20 int2-hqq int3-g7 int4-asym int8 int8-g33-float32 fp8_e4m3-tensor
    int5-g24 int6-g20-asym int6-hqq fp8_e5m2-b3x5 mxfp4 nvfp4 int4-b16x32-bfloat16
"""
SCHEMES = st.sampled_from(NAMES.split())
ELEMENTS = (
    "ternary",
    "int2",
    "int3",
    "int4",
    "nonary",
    "fp4_e2m1",
    "int5",
    "int6",
    "int8",
    "fp8_e4m3",
)


def random_packed(scheme: str, n: int, k: int) -> PackedTensor:
    parsed = parse_scheme(scheme)
    dense = torch.randn(n, k, generator=torch.Generator().manual_seed(n * 1000 + k))
    return encode(dense, parsed, *fit(dense, parsed, "absmax"))


def random_codes(element: str, n: int, k: int) -> torch.Tensor:
    count = len(parse_scheme(f"{element}-channel").element.levels)
    return torch.randint(count, (n, k), generator=torch.Generator().manual_seed(n + k)).byte()


def code_at(packed: torch.Tensor, bits: int, row: int, column: int) -> int:
    """The code of one weight, by the formula of the layout's docstring."""
    wide = 256 // bits
    n, in_row = divmod(row, 16)
    u, in_unit = divmod(column, wide)
    j, in_step = divmod(in_unit, 32)
    i = in_row // 8 + 2 * (in_step // 16)
    lane = 4 * (in_row % 8) + in_step % 16 // 4
    word = int(packed[n, u, lane, i]) & 0xFFFFFFFF
    return word >> (8 * (in_step % 4) + bits * j) & (2**bits - 1)


@settings(max_examples=60, deadline=None)
@given(
    element=st.sampled_from(ELEMENTS), n=st.integers(1, 50), k=st.integers(1, 300), data=st.data()
)
def test_every_code_is_where_the_formula_says(
    element: str, n: int, k: int, data: st.DataObject
) -> None:
    layout, codes = layout_of(f"{element}-channel", n, k), random_codes(element, n, k)
    packed = fragments.pack_codes(codes, layout)
    assert packed.shape == (-(-n // 16), -(-k // 128) * layout.bits // 2, 32, 4)
    for _ in range(10):
        row, column = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, k - 1))
        code = int(codes[row, column])
        if layout.element.integer:
            code = int(layout.element.levels[code]) & (2**layout.bits - 1)
        assert code_at(packed, layout.bits, row, column) == code


@settings(max_examples=60, deadline=None)
@given(element=st.sampled_from(ELEMENTS), n=st.integers(0, 50), k=st.integers(0, 300))
def test_codes_come_back_and_padding_is_zero(element: str, n: int, k: int) -> None:
    layout, codes = layout_of(f"{element}-channel", n, k), random_codes(element, n, k)
    packed = fragments.pack_codes(codes, layout)
    stored = fragments.unpack_codes(packed, layout)
    expected = layout.element.table()[codes.long()]
    levels = fragments.levels(layout)[stored[:n]]
    torch.testing.assert_close(levels, expected, rtol=0, atol=0, equal_nan=True)
    padded = fragments.unpack_codes(packed, layout_of(f"{element}-channel", n, -(-k // 128) * 128))
    assert not padded[n:].any()
    assert not padded[:, k:].any()


@settings(max_examples=60, deadline=None)
@given(scheme=SCHEMES, n=st.integers(0, 70), k=st.integers(0, 150))
def test_layouts_change_into_each_other_to_the_bit(scheme: str, n: int, k: int) -> None:
    packed = random_packed(scheme, n, k)
    rows16 = prepare(packed)
    moved = rows16.to_layout("fragments")
    assert (rows16.layout, moved.layout) == ("rows16", "fragments")
    assert torch.equal(decode_blocks(moved, slice(None))[:n], packed.dequantize())
    assert torch.equal(moved.codes, fragments.pack_codes(packed.unpack(), rows16.sizes))
    assert torch.equal(moved.to_layout("rows16").codes, rows16.codes)


@pytest.mark.parametrize("layout", ["rows16", "fragments"])
def test_codes_of_another_layout_are_refused(layout: LayoutName) -> None:
    weight = prepare(random_packed("int4", 20, 100)).to_layout(layout)
    other = "rows16" if layout == "fragments" else "fragments"
    with pytest.raises(UnsupportedError, match=rf"codes are \[2, .*\]: in the layout '{other}'"):
        replace(weight, layout=other)
    x = torch.randn(1, 100)
    arguments = (x, *weight.parts[:-1], other, *(None,) * 4, "none", torch.float32)
    with pytest.raises(UnsupportedError, match=f"in the layout '{other}'"):
        OP.run(*arguments)
    with pytest.raises(UnsupportedError, match="did you mean 'rows16'"):
        PreparedWeight.from_parts(*weight.parts[:-1], "rows61")  # type: ignore[arg-type]


def test_golden_words() -> None:
    """W [16, 128] ternary with a +1 at (row 1, column 0) and a -1 at (row 9, column 37)."""
    codes = torch.ones(16, 128, dtype=torch.uint8)
    codes[1, 0], codes[9, 37] = 2, 0
    packed = fragments.pack_codes(codes, layout_of("ternary-channel", 16, 128))
    assert packed.shape == (1, 1, 32, 4)
    # lane 4 * 1 + 0, word 0; then j = 1, i = 1, lane 4 * 1 + 1, byte 1: -1 is 0b11 at bit 8 + 2
    assert packed[0, 0, 4, 0] == 1
    assert packed[0, 0, 5, 1] == 0b11 << 10
    assert packed.count_nonzero() == 2


def test_golden_words_of_eight_bits() -> None:
    codes = torch.full((16, 32), 128, dtype=torch.uint8)
    codes[0, 16:20] = torch.tensor([127, 129, 0, 255], dtype=torch.uint8)
    packed = fragments.pack_codes(codes, layout_of("int8-channel", 16, 32))
    assert packed.shape == (1, 4, 32, 4)
    assert int(packed[0, 0, 0, 2]) & 0xFFFFFFFF == 0x7F8001FF
    assert packed.count_nonzero() == 1


def test_rows_beyond_one_piece_of_packing() -> None:
    packed = random_packed("ternary", 2100, 40)
    weight = prepare(packed).to_layout("fragments")
    assert torch.equal(decode_blocks(weight, slice(None))[:2100], packed.dequantize())
    assert torch.equal(weight.to_layout("rows16").codes, prepare(packed).codes)


def test_fused_rows_are_the_rows_apart() -> None:
    parts = [prepare(random_packed("int4-asym", n, 96)).to_layout("fragments") for n in (32, 16)]
    fused = concatenate(parts)
    apart = torch.cat([decode_blocks(part, slice(None)) for part in parts])
    assert torch.equal(decode_blocks(fused, slice(None)), apart)
    with pytest.raises(UnsupportedError, match="a weight in rows16 to one in fragments"):
        concatenate([parts[0], parts[1].to_layout("rows16")])
