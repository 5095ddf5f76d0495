"""What is trained is what is served: the training forward's bits are the packed checkpoint's."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from tercet.compress.plan import Plan
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import refresh, swap
from tercet.compress.training.settings import TrainingSettings
from tercet.export.huggingface import register
from tercet.ops.linear_packed import linear_packed
from tercet.ops.linear_qat import linear_qat
from tercet.workflows.training import from_source

pytestmark = pytest.mark.filterwarnings("ignore:.*slow path")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def one_rule(scheme: str, method: str) -> Plan:
    options = {"method": method, "activation": "int8_token"}
    rule = {"match": "*", "format": scheme, "algorithm": "qat", "options": options}
    return Plan.model_validate({"name": "one", "rules": [rule]})


@pytest.mark.parametrize("scheme", ["ternary-channel", "nonary-tensor", "int4-channel-float32"])
@pytest.mark.parametrize("method", ["learned", "absmean"])
def test_linear_qat_is_linear_packed(scheme: str, method: str) -> None:
    linear = torch.nn.Linear(300, 70, bias=False)
    quantized = swap(torch.nn.Sequential(linear), one_rule(scheme, method))
    (module,) = quantized.values()
    refresh(quantized)
    for dtype in (torch.float32, torch.bfloat16):
        for rows in (1, 9):
            x = normal(rows, 300).to(dtype)
            trained = linear_qat(x, module.codes, module.scale, module.weight).detach()
            assert torch.equal(
                trained, linear_packed(x, module.prepare_product(), activation="int8")
            )


def test_with_a_bias_eval_mode_is_what_is_served() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(300, 70))
    quantized = swap(layer, one_rule("ternary-channel", "learned"))
    refresh(quantized)
    x = normal(50, 300)
    trained = layer(x).detach()
    evaluated = layer.eval()(x)
    served = linear_packed(x, quantized["0"].prepare_product(), layer[0].bias, activation="int8")
    assert torch.equal(evaluated, served)
    torch.testing.assert_close(trained, served, rtol=0, atol=1e-6)


@pytest.mark.parametrize("plan", ["ternary-a8", "nonary-a8", "ternary"])
def test_logits_of_training_are_those_of_the_checkpoint(
    plan: str, model: Path, ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Student] = []
    write = from_source.write_student

    def keep(skeleton, student, *rest):
        kept.append(student)
        return write(skeleton, student, *rest)

    monkeypatch.setattr(from_source, "write_student", keep)
    settings = TrainingSettings(steps=4, sequences=2, length=32, learning_rate=2e-3, warmup=1)
    from_source.distill(model, plan, tmp_path / "out", data=[ids], settings=settings, device="cpu")
    register()
    served = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokens = torch.arange(48).reshape(2, 24) % 64
    for module in kept[0].quantized.values():
        # not their eval mode, but the very forward pass that trained
        module.train(module.products_of_codes)
    with torch.inference_mode():
        trained, packed = kept[0].logits(tokens), served(tokens).logits
    assert torch.equal(trained, packed)
    original = LlamaForCausalLM.from_pretrained(model)
    assert not torch.allclose(original(tokens).logits, packed, atol=0.05), "it is quantized"


def test_a_training_pass_before_the_ramps_end_is_no_serving_pass(model: Path) -> None:
    skeleton = LlamaForCausalLM.from_pretrained(model)
    quantized = swap(skeleton, "ternary-a8")
    tokens = torch.arange(24)[None]
    logits: list[Tensor] = []
    for share in (0.0, 0.5, 1.0):
        refresh(quantized, share)
        logits.append(skeleton(tokens).logits.detach())
    original = LlamaForCausalLM.from_pretrained(model)(tokens).logits.detach()
    distances = [float((one - original).norm()) for one in logits]
    assert distances[0] < 0.1 * distances[1], "at 0 inputs are rounded, weights are not"
    assert distances[1] < 0.9 * distances[2]
