"""rows16 holds every code and scale, for any scheme and shape."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.errors import FormatError
from tercet.formats import PackedTensor, encode, fit, parse_scheme
from tercet.packed_weight.rows16 import layout_of, pack_codes, unpack_codes
from tercet.packed_weight.weight import LayoutName, concatenate, decode_blocks, prepare

NAMES = """
    ternary nonary-g20 int2-hqq int3-g7 int4-asym int5-g33 int6-g20-asym int8 int8-g33-float32
    fp8_e4m3-tensor
    fp8_e5m2-b3x5 mxfp4 nvfp4 int4-b16x32-bfloat16
"""
SCHEMES = st.sampled_from(NAMES.split())


def random_packed(scheme: str, n: int, k: int) -> PackedTensor:
    parsed = parse_scheme(scheme)
    dense = torch.randn(n, k, generator=torch.Generator().manual_seed(n * 1000 + k))
    return encode(dense, parsed, *fit(dense, parsed, "absmax"))


@settings(max_examples=80, deadline=None)
@given(scheme=SCHEMES, n=st.integers(0, 70), k=st.integers(0, 150))
def test_decodes_to_the_bit(scheme: str, n: int, k: int) -> None:
    packed = random_packed(scheme, n, k)
    decoded = decode_blocks(prepare(packed), slice(None))
    assert torch.equal(decoded[:n], packed.dequantize())
    assert not decoded[n:].any()


def test_golden_dwords() -> None:
    layout = layout_of("int4-channel", 2, 9)
    codes = torch.arange(18, dtype=torch.uint8).reshape(2, 9) % 16
    packed = pack_codes(codes, layout)
    assert packed.shape == (1, 2, 16)
    assert packed[0, 0, 0] == 0x76543210
    assert packed[0, 1, 0] == 0x8
    assert int(packed[0, 0, 1]) & 0xFFFFFFFF == 0x0FEDCBA9
    assert packed[0, 1, 1] == 0x1
    assert not packed[:, :, 2:].any()
    assert torch.equal(unpack_codes(packed, layout)[:2], codes.long())


def test_rows_beyond_one_piece_of_packing() -> None:
    packed = random_packed("ternary", 2100, 40)
    assert torch.equal(decode_blocks(prepare(packed), slice(None))[:2100], packed.dequantize())


def test_a_broken_packed_tensor_is_refused() -> None:
    packed = random_packed("int4", 20, 64)
    packed.scale[3, 0] = torch.nan
    with pytest.raises(FormatError, match=r"scale: 1 values not finite or negative"):
        prepare(packed)


@pytest.mark.parametrize("layout", ["rows16", "fragments"])
def test_scales_of_float16_are_small_enough_to_multiply_codes_by(layout: LayoutName) -> None:
    """8 times 4096 is a float16; a code times a larger scale may be infinite."""
    small, large = random_packed("int4-g64", 32, 128), random_packed("int4-g64", 48, 128)
    small.scale[5, 1], large.scale[7, 0] = 4096.0, 4100.0
    narrow, wide = (prepare(each).to_layout(layout) for each in (small, large))
    assert narrow.scale.dtype == torch.float16
    assert wide.scale.dtype == torch.float32
    assert torch.equal(decode_blocks(wide, slice(None)), large.dequantize())
    assert large.dequantize().abs().max() > 4096
    both = concatenate([narrow, wide])
    assert both.scale.dtype == torch.float32
    expected = torch.cat([small.dequantize(), large.dequantize()])
    assert torch.equal(decode_blocks(both, slice(None)), expected)


def test_parts_move_together() -> None:
    moved = prepare(random_packed("int4-asym", 20, 64)).to("meta")
    assert moved.zero is not None
    assert {moved.codes.device.type, moved.scale.device.type, moved.zero.device.type} == {"meta"}
