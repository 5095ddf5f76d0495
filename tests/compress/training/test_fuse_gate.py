"""fuse_gates: a compiled backward pass has a gate's gradients coded where they are made."""

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from tercet.compress.plan import Plan
from tercet.compress.qat.layer_pass import LayerPass
from tercet.compress.qat.swap import refresh, swap

aten = torch.ops.aten
TOKENS, HIDDEN = 16, 32


def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """torch's decomposition up to 2.12."""
    wide = x.float()
    sigmoid = 1 / (1 + torch.exp(-wide))
    return (grad.float() * sigmoid * (1 + wide * (1 - sigmoid))).to(x.dtype)


DECOMPOSITIONS: dict[str, dict[Any, Any]] = {
    "inductor": select_decomp_table(),
    "older": {**select_decomp_table(), aten.silu_backward.default: silu_backward},
}


def gradients(fused: bool, kind: str, decompositions: str, dtype: torch.dtype) -> list[Tensor]:
    """Of a compiled layer and its input; checks how often the backward pass codes a gate's."""

    def cut(graph: Any, *arguments: Any, **named: Any) -> Any:
        if fused:
            LayerPass()(graph.graph)
        return min_cut_rematerialization_partition(graph, *arguments, **named)

    def backward(graph: Any, _: Any) -> Any:
        ops = torch.ops.tercet
        for op, count in ((ops.linear_qat_gate_gradient, 1), (ops.linear_qat_gradient_coded, 2)):
            assert len(graph.graph.find_nodes(op="call_function", target=op.default)) == (
                count if fused else 0
            )
        return make_boxed_func(graph.forward)

    torch.manual_seed(0)
    torch.compiler.reset()
    layer = LlamaMLP(LlamaConfig(hidden_size=HIDDEN, intermediate_size=96)).to(dtype)
    rule = {"match": "*", "format": "ternary-channel-float32", "algorithm": "qat"}
    options = {"method": "absmean", "activation": "int8_token", "weight_gradient": kind}
    plan = Plan.model_validate({"name": "x", "rules": [{**rule, "options": options}]})
    refresh(swap(layer, plan, dtype))
    backend = aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        bw_compiler=backward,
        partition_fn=cut,
        decompositions=DECOMPOSITIONS[decompositions],
    )
    x = torch.randn(2, TOKENS, HIDDEN, dtype=dtype, requires_grad=True)
    torch.compile(layer, backend=backend)(x).square().sum().backward()
    return [found.grad for found in (x, *layer.parameters()) if found.grad is not None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of what inductor imports
@pytest.mark.parametrize("kind", ["float", "int8"])
@pytest.mark.parametrize("decompositions", DECOMPOSITIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_stay(kind: str, decompositions: str, dtype: torch.dtype) -> None:
    apart = gradients(False, kind, decompositions, dtype)
    fused = gradients(True, kind, decompositions, dtype)
    assert len(apart) == len(fused) == 4
    # h, too, is no longer rounded before it is quantized: a code in some hundred differs by one
    room = 2e-2 if dtype == torch.bfloat16 else 1e-3
    for one, other in zip(apart, fused, strict=True):
        assert (one - other).norm() <= room * one.norm()
