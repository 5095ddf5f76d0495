"""recompute: what a compiled layer keeps of its inputs, and that its gradients stay."""

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from transformers import LlamaConfig, LlamaForCausalLM

from tercet.compress.plan import Plan
from tercet.compress.qat.graph_passes.layer import LayerPass
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import refresh, swap

TOKENS, HIDDEN, WIDE = 16, 32, 96


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        self.gate = nn.Linear(HIDDEN, WIDE, bias=False)
        self.up = nn.Linear(HIDDEN, WIDE, bias=False)
        self.down = nn.Linear(WIDE, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        product = nn.functional.silu(self.gate(normed)) * self.up(normed)
        return x + self.down(product)


def gradients_and_kept(
    recomputing: bool, weight_gradient: str = "float"
) -> tuple[list[Tensor], set[tuple[int, ...]]]:
    """Gradients of a compiled layer; shapes of the int8 tensors that its forward pass keeps.

    Checks that codes are decoded, or turned, once for all layers that share an input.
    """
    kept = set[tuple[int, ...]]()
    ops = torch.ops.tercet
    once = {"float": ops.linear_qat_decoded, "int8": ops.linear_qat_transposed}[weight_gradient]

    def cut(graph: Any, *arguments: Any, **named: Any) -> Any:
        LayerPass(keep_inputs=not recomputing)(graph.graph)
        return min_cut_rematerialization_partition(graph, *arguments, **named)

    def forward(graph: Any, _: Any) -> Any:
        results = graph.graph.output_node().args[0]
        values = [node.meta.get("val") for node in results if node.op == "call_function"]
        kept.update(tuple(value.shape) for value in values if value.dtype == torch.int8)
        return make_boxed_func(graph.forward)

    def backward(graph: Any, _: Any) -> Any:
        assert len(graph.graph.find_nodes(op="call_function", target=once.default)) == 2
        return make_boxed_func(graph.forward)

    torch.manual_seed(0)
    torch.compiler.reset()
    layer = Layer()
    rule = {"match": "*", "format": "ternary-channel-float32", "algorithm": "qat"}
    options = {
        "method": "absmean",
        "activation": "int8_token",
        "weight_gradient": weight_gradient,
    }
    plan = Plan.model_validate({"name": "x", "rules": [{**rule, "options": options}]})
    refresh(swap(layer, plan))
    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=cut)
    torch.compile(layer, backend=backend)(torch.randn(TOKENS, HIDDEN)).square().sum().backward()
    return [p.grad for p in layer.parameters() if p.grad is not None], kept


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of what inductor imports
@pytest.mark.parametrize("weight_gradient", ["float", "int8"])
def test_codes_of_all_inputs_but_the_widest_are_made_again(weight_gradient: str) -> None:
    before, held = gradients_and_kept(False, weight_gradient)
    after, fewer = gradients_and_kept(True, weight_gradient)
    assert (held, fewer) == ({(TOKENS, HIDDEN), (TOKENS, WIDE)}, {(TOKENS, WIDE)})
    assert len(before) == len(after) == 4
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of what inductor imports
def test_inductor_takes_the_pass() -> None:
    torch.compile(Layer(), options={"joint_custom_pre_pass": LayerPass()})
    assert LayerPass().uuid() == LayerPass().uuid()
    keeping = LayerPass(keep_inputs=True)
    assert LayerPass() == LayerPass() != keeping
    assert LayerPass().uuid() != keeping.uuid()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of what inductor imports
def test_all_layers_of_all_students_share_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    students = [Student(LlamaForCausalLM(config), {}, torch.float32) for _ in range(2)]
    compiled = list[Any]()

    def compile_fx(graph: Any, _: Any, **named: Any) -> Any:
        compiled.append(named)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    torch.compiler.reset()
    ids = torch.arange(6)[None]
    with torch.no_grad():
        for student in students:
            eager = student.hidden(ids)
            student.compile()
            torch.testing.assert_close(student.hidden(ids), eager)
    assert len(compiled) == 1
