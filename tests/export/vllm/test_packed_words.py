"""Weights of compressed-tensors as vLLM hands them to the kernel."""

import pytest
import torch

from tercet.checkpoints.imports.compressed_tensors import BITS, Form, store
from tercet.export.vllm.packed_words import packed_from_words
from tercet.formats import encode, fit, parse_scheme


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ternary-g32", "ternary-g32"),
        ("ternary-channel", "ternary-channel"),
        ("int2-g64-asym", "int2-g64-asym"),
        ("int3-g32", "int3-g32"),
        ("nonary-g64", "int4-g64"),
        ("int4-g64-asym", "int4-g64-asym"),
        ("int8-channel-float32", "int8-channel-float32"),
    ],
)
def test_codes_and_scales_stay(name: str, expected: str) -> None:
    values = torch.randn(24, 192, generator=torch.Generator().manual_seed(2))
    scheme = parse_scheme(name)
    weight = encode(values, scheme, *fit(values, scheme, "absmax"))
    bits = BITS[scheme.element.name]
    held = store(weight, Form.PACKED, bits)
    found = packed_from_words(
        held["weight_packed"], held["weight_scale"], held.get("weight_zero_point"), bits, 192
    )
    found.validate("found")
    assert found.scheme.name == expected
    assert torch.equal(found.dequantize(), weight.dequantize())


def test_two_bits_with_a_minus_two_stay_integers() -> None:
    words = torch.tensor([[0b00_01_10_11]], dtype=torch.int32)
    found = packed_from_words(words, torch.ones(1, 1, dtype=torch.float16), None, 2, 4)
    assert found.scheme.name == "int2-channel"
    assert found.dequantize().tolist() == [[1.0, 0.0, -1.0, -2.0]]
