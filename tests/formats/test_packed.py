"""PackedTensor.validate: every invariant broken once."""

from dataclasses import replace

import pytest
import torch

from tercet.errors import FormatError
from tercet.formats import PackedTensor, encode, expected_parts, fit, parse_scheme
from tercet.formats import packed as packed_module


def packed(name: str, rows: int = 3, columns: int = 70) -> PackedTensor:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    scheme = parse_scheme(name)
    found = encode(weight, scheme, *fit(weight, scheme))
    found.validate()
    return found


def test_parts_and_sizes() -> None:
    found = packed("int4-g64-asym")
    assert found.size_bytes == 3 * 35 + 3 * 2 * 2 + 3 * 2
    assert found.size_bytes == found.scheme.size_bytes((3, 70))
    assert expected_parts(found.scheme, (3, 70)) == {
        "packed": (torch.uint8, (3, 35)),
        "scale": (torch.float16, (3, 2)),
        "zero": (torch.int8, (3, 2)),
    }
    assert expected_parts(parse_scheme("nvfp4"), (3, 70))["second"] == (torch.float32, ())


def test_a_missing_zero_point() -> None:
    with pytest.raises(FormatError, match=r"q: scheme 'int4-g64-asym' has \['packed', 'scale', 'z"):
        replace(packed("int4-asym"), zero=None).validate("q")


def test_a_zero_point_too_many() -> None:
    found = packed("int4")
    with pytest.raises(FormatError, match=r"has \['packed', 'scale'\], found \['packed', 'scale',"):
        replace(found, zero=torch.zeros(3, 2, dtype=torch.int8)).validate()


def test_a_missing_second_level() -> None:
    with pytest.raises(FormatError, match=r"'second'\], found"):
        replace(packed("nvfp4"), second=None).validate()


@pytest.mark.parametrize(
    ("part", "tensor", "message"),
    [
        ("codes", torch.zeros(3, 35, dtype=torch.int8), r"v\.packed: expected torch.uint8 \[3, 35"),
        ("codes", torch.zeros(3, 34, dtype=torch.uint8), r"found torch\.uint8 \[3, 34\]"),
        ("scale", torch.ones(3, 2), r"v\.scale: expected torch\.float16 .* torch\.float32"),
        ("scale", torch.ones(3, 1, dtype=torch.float16), r"expected .*\[3, 2\], found .*\[3, 1\]"),
        ("zero", torch.zeros(3, 2), r"v\.zero: expected torch\.int8"),
        ("zero", torch.zeros(2, 3, dtype=torch.int8), r"found torch\.int8 \[2, 3\]"),
    ],
)
def test_wrong_dtypes_and_shapes(part: str, tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        replace(packed("int4-asym"), **{part: tensor}).validate("v")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_scales_that_are_not_finite_or_negative(value: float) -> None:
    found = packed("int4")
    found.scale[1, 0] = value
    with pytest.raises(FormatError, match=r"v\.scale: 1 values not finite or negative"):
        found.validate("v")


def test_zero_points_may_be_negative_but_not_nan() -> None:
    found = packed("int4-hqq")
    assert found.zero is not None
    found.zero[0, 0] = -3
    found.validate()
    found.zero[0, 0] = float("nan")
    with pytest.raises(FormatError, match=r"v\.zero: 1 values not finite or negative"):
        found.validate("v")


def test_a_second_level_that_is_not_finite() -> None:
    with pytest.raises(FormatError, match=r"v\.second: 1 values not finite"):
        replace(packed("nvfp4"), second=torch.tensor(float("inf"))).validate("v")


@pytest.mark.parametrize(
    ("name", "byte", "value", "message"),
    [
        ("ternary", 0, 243, r"v\.packed: 1 words are none of storage 'base3'"),
        ("nonary", 1, 0xFF, r"v\.packed: 1 words are none of storage 'base9'"),
        ("ternary-bits2", 0, 0b11, r"v\.packed: code 3, but 'ternary' has codes below 3"),
        ("nonary-bits4", 0, 0x19, r"v\.packed: code 9, but 'nonary' has codes below 9"),
        ("int3-bits4", 0, 0x80, r"v\.packed: code 8, but 'int3' has codes below 8"),
        ("ternary-bits8", 0, 200, r"v\.packed: code 200, but 'ternary'"),
        ("fp8_e4m3", 5, 0x7F, r"v\.packed: 1 codes of 'fp8_e4m3' are NaN or inf"),
        ("fp8_e5m2", 5, 0xFC, r"v\.packed: 1 codes of 'fp8_e5m2' are NaN or inf"),
    ],
)
def test_codes_that_no_weight_has(name: str, byte: int, value: int, message: str) -> None:
    found = packed(name)
    found.codes[1, byte] = value
    with pytest.raises(FormatError, match=message):
        found.validate("v")


def test_a_sparse_word_that_is_none() -> None:
    scheme = parse_scheme("ternary-g8-sparse_2_4")
    weight = torch.tensor([[1.0, -1, 0, 0, 0, 0, 1, 1]])
    found = encode(weight, scheme, torch.ones(1, 1))
    found.validate()
    found.codes[0, 0] |= 31
    with pytest.raises(FormatError, match="1 words are none of storage 'sparse_2_4'"):
        found.validate()


@pytest.mark.parametrize("shape", [(0, 70), (3, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("name", ["ternary", "nonary", "int4-asym", "int8", "nvfp4", "mxfp4"])
def test_empty_and_single_weights(name: str, shape: tuple[int, int]) -> None:
    found = packed(name, *shape)
    assert found.dequantize().shape == shape
    assert found.size_bytes == found.scheme.size_bytes(shape)


@pytest.mark.parametrize(
    "name", ["int4-g16", "ternary-tensor", "int4-b3x16", "int3-g16-asym", "nvfp4", "fp8_e4m3"]
)
def test_dequantize_in_blocks_of_rows_is_the_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    scheme = parse_scheme(name)
    made = encode(weight, scheme, *fit(weight, scheme))
    whole = made.dequantize()
    monkeypatch.setattr(packed_module, "_WEIGHTS_AT_ONCE", 40 * 7)
    assert torch.equal(made.dequantize(), whole)
    assert (whole - weight).norm() < 0.7 * weight.norm()
