"""Swapped layers: what they compute, their gradients, and how they go with torch's own tools."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import linear
from transformers import LlamaForCausalLM

from tercet.compress.plan import Plan
from tercet.compress.ptq.qat_codes import first_step, pack
from tercet.compress.qat.embedding import QatEmbedding, TiedHead
from tercet.compress.qat.linear import QatLinear
from tercet.compress.qat.plan import training_plan
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import finish_gradients, refresh, swap
from tercet.errors import PlanError
from tercet.formats import parse_scheme
from tercet.ops.fake_quantize import fake_quantize

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*slow path"),
    # torch.compile itself asks for it
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def plan(form: str, **options: Any) -> Plan:
    rule = {"match": "*", "format": form, "algorithm": "qat", "options": options}
    return Plan.model_validate({"name": "one", "rules": [rule]})


def opened(model: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(model)


def test_what_a_plan_keeps_is_left_alone(model: Path) -> None:
    kept = Plan.model_validate(
        {
            "name": "some",
            "rules": [
                {"match": "*.down_proj", "keep": True},
                {"match": "*.layers.*", "format": "ternary-g32", "algorithm": "gptq"},
            ],
        }
    )
    student = opened(model)
    before = dict(student.named_parameters())
    quantized = swap(student, kept)
    layer = student.model.layers[0]
    assert len(quantized) == 6
    assert type(layer.mlp.down_proj) is torch.nn.Linear
    assert type(student.model.embed_tokens) is torch.nn.Embedding
    assert isinstance(layer.mlp.up_proj, QatLinear)
    after = dict(student.named_parameters())
    assert {name for name in after if name not in before} == {f"{n}.step" for n in quantized}
    assert all(after[name] is p for name, p in before.items()), "parameters stay what they are"
    with pytest.raises(PlanError, match="no linear or embedding of LlamaForCausalLM a format"):
        swap(opened(model), kept.model_copy(update={"rules": kept.rules[:1]}))
    with pytest.raises(PlanError, match="one scale a channel or tensor: use ternary-channel"):
        swap(
            torch.nn.Sequential(torch.nn.Linear(64, 8)),
            plan("ternary-g32", activation="int8_token"),
        )


def test_a_tied_head_multiplies_by_the_quantized_embedding(model: Path) -> None:
    student = opened(model).train()
    quantized = swap(student, "nonary")
    refresh(quantized)
    table = student.model.embed_tokens
    assert isinstance(table, QatEmbedding)
    assert isinstance(student.lm_head, TiedHead)
    assert table.values is not None
    x = normal(3, 32)
    assert torch.equal(student.lm_head(x), linear(x, table.values))
    # its gradient and the embedding's come together in one parameter
    seen = Student(student, quantized, torch.float32)
    hidden = seen.hidden(torch.tensor([[5, 5]]))
    (hidden.sum() + seen.head()[7].sum()).backward()
    grad = table.weight.grad
    assert grad is not None
    assert torch.equal(grad[7], torch.ones(32))
    assert grad[5].abs().sum() > 0
    assert not grad[[0, 1, 2, 3, 4, 6]].any()


@pytest.mark.parametrize("method", ["absmean", "learned", "stretched"])
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_gradients_are_those_of_the_quantized_layer(method: str, share: float) -> None:
    """Of two microbatches, against autograd through `fake_quantize`."""
    layer = torch.nn.Sequential(torch.nn.Linear(64, 24))
    quantized = swap(layer, plan("ternary-g32", method=method))
    (module,) = quantized.values()
    refresh(quantized, share)
    for seed in (1, 2):
        (layer(normal(6, 64, seed=seed)) * normal(6, 24, seed=3)).sum().backward()
    finish_gradients(quantized)

    weight = module.weight.detach().clone().requires_grad_()
    step = None if module.step is None else module.step.detach().clone().requires_grad_()
    fake = fake_quantize(
        weight, step, scheme="ternary-g32", method=method, fake_dtype=torch.float32
    ).fake
    assert fake is not None
    value = share * fake + (1 - share) * weight
    sum(
        (linear(normal(6, 64, seed=seed), value) * normal(6, 24, seed=3)).sum() for seed in (1, 2)
    ).backward()  # pyright: ignore[reportAttributeAccessIssue]
    assert module.weight.grad is not None
    assert weight.grad is not None
    torch.testing.assert_close(module.weight.grad, weight.grad, rtol=1e-4, atol=1e-5)
    if step is not None:
        assert module.step is not None
        torch.testing.assert_close(module.step.grad, step.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", ["ternary-a8"])
def test_compile_and_checkpointing_change_nothing(form: str, model: Path) -> None:
    ids = torch.arange(32)[None]

    def gradients(change: Any) -> list[Tensor]:
        student = opened(model).train()
        quantized = swap(student, form)
        refresh(quantized)
        seen = Student(student, quantized, torch.float32)
        change(seen)
        seen.hidden(ids).square().mean().backward()
        finish_gradients(quantized)
        return [p.grad for p in student.parameters() if p.grad is not None]

    eager = gradients(lambda _: None)
    again = gradients(lambda s: s.checkpoint_activations())
    torch.compiler.reset()
    compiled = gradients(
        lambda s: [m.compile(backend="aot_eager", fullgraph=True) for m in s.layers()]
    )
    assert len(eager) == len(again) == len(compiled) > 8
    for one, two, three in zip(eager, again, compiled, strict=True):
        assert torch.equal(one, two)
        torch.testing.assert_close(one, three, rtol=1e-4, atol=1e-7)


def test_one_compilation_serves_all_steps_and_the_ramp() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    layer = torch.nn.Sequential(torch.nn.Linear(32, 16))
    quantized = swap(layer, plan("ternary-channel", activation="int8_token"))
    torch.compiler.reset()
    run = torch.compile(layer, backend=counter)
    for share in (0.0, 0.3, 0.6, 0.9, 1.0, 1.0, 1.0):
        refresh(quantized, share)
        run(normal(4, 32)).sum().backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.01)
    assert counter.frame_count == 2, "one for the ramp, one for products of codes"


def test_flipped_codes_are_counted() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(32, 16))
    quantized = swap(layer, plan("ternary-channel", method="absmean"))
    changed, count = refresh(quantized)
    assert (int(changed), count) == (0, 512)
    with torch.no_grad():
        layer[0].weight[3] *= -1
    before = (quantized["0"].codes[3] != 0).sum()
    assert int(refresh(quantized)[0]) == int(before) > 5
    with torch.no_grad():
        layer[0].weight[3] *= -1
    assert int(refresh(quantized, counting=False)[0]) == 0
    assert int(refresh(quantized)[0]) == 0, "the codes were made anew, counted or not"


@pytest.mark.parametrize(
    ("form", "method"),
    [
        ("ternary-g32", "absmean"),
        ("nonary-channel", "learned"),
        ("int4-tensor-float32", "absmax"),
        ("ternary-g64", "stretched"),
        ("int2-g32-hqq", "stretched"),
        ("int3-channel-hqq32", "stretched"),
    ],
)
def test_packed_values_are_those_that_trained(form: str, method: str) -> None:
    weight, scheme = normal(24, 96), parse_scheme(form)
    step = first_step(weight, scheme, method)
    made = fake_quantize(weight, step, scheme=form, method=method, fake_dtype=torch.float32)
    packed = pack(made.codes, made.scale, scheme, method)
    packed.validate()
    assert made.fake is not None
    assert torch.equal(packed.dequantize(), made.fake)
    error = (packed.dequantize() - weight).norm() / weight.norm()
    assert error < {"ternary": 0.55, "int2": 0.42, "int3": 0.25}.get(form.split("-")[0], 0.2)


def test_any_plan_is_a_training_plan() -> None:
    trained = training_plan("int4-g128")
    assert {rule.algorithm for rule in trained.rules} == {"qat"}
    assert trained.rules[-1].format == "int4-g128"
    with pytest.raises(PlanError, match=r"cannot be trained.*fp8_e4m3"):
        training_plan("fp8_e4m3-channel")


def test_random_rounding_of_the_weight_gradient_is_seeded_by_the_step() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(32, 16, bias=False))
    options = {"activation": "int8_token", "weight_gradient": "int8", "method": "absmean"}
    quantized = swap(layer, plan("ternary-channel", **options))

    def gradient(step: int) -> Tensor:
        layer.zero_grad()
        refresh(quantized, step=step)
        (layer(normal(64, 32)) * normal(64, 16, seed=1)).sum().backward()
        assert layer[0].weight.grad is not None
        return layer[0].weight.grad.clone()

    assert torch.equal(gradient(3), gradient(3))
    assert not torch.equal(gradient(3), gradient(4))
    exact = normal(64, 16, seed=1).T @ normal(64, 32)
    mean = torch.stack([gradient(step) for step in range(40)]).mean(0)
    assert (mean - exact).norm() < 0.01 * exact.norm()
