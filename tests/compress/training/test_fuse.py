"""fuse: gates make codes at once, products are carried by what exists, the rest is left alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import gelu, silu

from tercet.compress.qat.graph_passes.fuse import fuse
from tercet.ops.linear_qat import linear_qat
from tercet.ops.quantize_activation import quantize_activation
from tercet.ops.swiglu_quantized import swiglu_quantized

ops = torch.ops.tercet
PRODUCT, QUANTIZE, GATE = (
    one.default for one in (ops.linear_qat, ops.quantize_activation, ops.swiglu_quantized)
)
B16, F32 = torch.bfloat16, torch.float32


def norm(x: Tensor, weight: Tensor, axis: int = -1) -> Tensor:
    """As transformers' Llama."""
    wide = x.to(F32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(axis, keepdim=True) + 1e-5)
    return weight * wide.to(x.dtype)


def silu_in_pieces(x: Tensor) -> Tensor:
    """As inductor decomposes it."""
    wide = x.to(F32)
    return (wide / (1 + (-wide).exp())).to(x.dtype)


def fused(function: Callable[..., Any], *inputs: Tensor) -> tuple[Any, list[Any]]:
    """The traced function after the pass, and the operations of ours that it calls."""
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    fuse(graph.graph)
    graph.graph.lint()
    graph.recompile()
    called = [node.target for node in graph.graph.nodes if "tercet" in str(node.target)]
    return graph, called


def numbers(*shape: int, dtype: torch.dtype = B16) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("activation", [silu, silu_in_pieces])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_gate_makes_its_codes(activation: Callable[..., Tensor], swapped: bool) -> None:
    def function(gate: Tensor, up: Tensor) -> Any:
        left = activation(gate)
        return quantize_activation((up * left if swapped else left * up).detach())

    gate, up = numbers(3, 40), numbers(3, 40) + 1
    graph, called = fused(function, gate, up)
    assert called == [GATE]
    for one, other in zip(graph(gate, up), swiglu_quantized(gate, up), strict=True):
        assert torch.equal(one, other)


def test_products_carry_gradients_by_what_exists_anyway() -> None:
    def product(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
        x_codes, x_scale, _ = quantize_activation(x.detach())
        return linear_qat(x, codes, scale, x_codes=x_codes, x_scale=x_scale)

    def function(
        x: Tensor, weight: Tensor, gate: Tensor, up: Tensor, narrow: Tensor, wide: Tensor, s: Tensor
    ) -> Any:
        return product(norm(x, weight), narrow, s), product(silu(gate) * up, wide, s)

    codes = (torch.ones(8, 48, dtype=torch.int8), torch.ones(8, 40, dtype=torch.int8))
    floats = (numbers(5, 48), numbers(48), numbers(5, 40), numbers(5, 40))
    inputs = (*floats, *codes, torch.ones(8, 1))
    graph, called = fused(function, *inputs)
    assert called == [QUANTIZE, PRODUCT, GATE, PRODUCT]
    x, _, gate, *_ = graph.graph.find_nodes(op="placeholder")
    products = graph.graph.find_nodes(op="call_function", target=PRODUCT)
    assert [one.args[0] for one in products] == [x, gate]
    # the norm's two, none of the gate
    assert len(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)) == 2
    for one, other in zip(graph(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=0.1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: gelu(x) * w,
        lambda x, w: x.sigmoid() * w,
        lambda x, w: silu(x) * w[:1],
        lambda x, w: norm(x, w),
        lambda x, w: w * (x / (2 + (-x).exp())),
    ],
)
def test_what_is_neither_is_left_alone(function: Callable[..., Tensor]) -> None:
    x, weight = numbers(6, 48, dtype=F32), numbers(6, 48, dtype=F32) + 1
    graph, called = fused(lambda x, w: quantize_activation(function(x, w).detach()), x, weight)
    assert called == [QUANTIZE]
    wanted = quantize_activation(function(x, weight))
    for one, other in zip(graph(x, weight), wanted, strict=True):
        assert torch.equal(one, other)
