"""embedding_packed: exactness, rounding, bad ids."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import encode, fit, parse_scheme
from tercet.kernel.select import load, using
from tercet.ops.embedding_packed import embedding_packed
from tercet.ops.embedding_packed.op import OP
from tercet.packed_weight.weight import prepare

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(arguments: dict[str, Any], name: str) -> dict[str, Any]:
    """Where that implementation runs: Triton's on the GPU where there is one."""
    if name != "triton":
        return arguments
    return {
        key: value.to(DEVICE) if isinstance(value, Tensor) else value
        for key, value in arguments.items()
    }


def packed(scheme: str, n: int, k: int):
    parsed = parse_scheme(scheme)
    dense = torch.randn(n, k, generator=torch.Generator().manual_seed(1))
    return encode(dense, parsed, *fit(dense, parsed, "absmax"))


@pytest.mark.parametrize("scheme", ["ternary", "nonary", "int4-asym", "int8", "mxfp4", "nvfp4"])
def test_float32_rows_are_the_dequantized_ones_to_the_bit(scheme: str) -> None:
    weight = packed(scheme, 37, 100)
    ids = torch.tensor([[36, 0, 5], [5, 16, 31]])
    assert torch.equal(embedding_packed(ids, prepare(weight)), weight.dequantize()[ids])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounds_as_torch_does(dtype: torch.dtype) -> None:
    scale = 10.0 ** torch.linspace(-12, 6, 600)[:, None]
    weight = encode(scale * torch.randn(600, 40), parse_scheme("int8-float32"), scale / 100)
    ids = torch.arange(600)
    expected = weight.dequantize().to(dtype)
    assert expected.isinf().any() == (dtype == torch.float16)
    for name in ("cpu", "torch", "triton"):
        arranged = OP.in_layout_of(OP.implementation(name))
        arguments = on_device(
            arranged.prepare({"ids": ids, "weight": weight, "dtype": dtype}), name
        )
        with using(OP, load(OP, name)):
            assert torch.equal(OP.run(*arguments.values()).cpu(), expected), name


@pytest.mark.parametrize("name", ["cpu", "torch"])
@pytest.mark.parametrize(("ids", "message"), [([3, 20], "id 20 at position 1"), ([-1], "id -1")])
def test_an_id_out_of_range_is_named(name: str, ids: list[int], message: str) -> None:
    arguments = OP.prepare(
        {"ids": torch.tensor(ids), "weight": packed("int4", 20, 64), "dtype": torch.float32}
    )
    wrong = pytest.raises(UnsupportedError, match=rf"{message}.*ids must be from 0 to 19")
    with using(OP, load(OP, name)), wrong:
        OP.run(*arguments.values())


def test_on_a_gpu_an_id_out_of_range_gives_nan() -> None:
    """Its own row alone, and nothing outside of the table is read."""
    weight = packed("int4-asym", 20, 64)
    ids = torch.tensor([3, 20, -1, 2**40, 19, -(2**62)])
    arranged = OP.in_layout_of(OP.implementation("triton"))
    arguments = arranged.prepare({"ids": ids, "weight": weight, "dtype": torch.float32})
    with using(OP, load(OP, "triton")):
        y = OP.run(*on_device(arguments, "triton").values()).cpu()
    assert y.isnan().all(1).tolist() == [False, True, True, True, False, True]
    assert torch.equal(y[[0, 4]], weight.dequantize()[[3, 19]])


def test_bad_input_is_named() -> None:
    weight = prepare(packed("int4", 20, 64))
    with pytest.raises(
        UnsupportedError, match=r"ids are torch.float32: allowed are int64 and int32"
    ):
        embedding_packed(torch.ones(2), weight)
    with pytest.raises(UnsupportedError, match=r"dtype torch.float64: allowed are float32"):
        embedding_packed(torch.ones(2).long(), weight, torch.float64)
