"""The proxy against what is known of it by other means."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tercet.checkpoints.sources.open import open_source
from tercet.compress.algorithm import Quantized
from tercet.compress.allocate.fisher import output_fisher, proxy_nats
from tercet.compress.ptq.rtn import quantize
from tercet.compress.skeleton import Skeleton
from tercet.formats import parse_scheme

LINEARS = ("lm_head", "model.layers.0.self_attn.v_proj", "model.layers.1.mlp.up_proj")


def fisher_of(model: Path, tokens: Tensor, change: dict[str, Tensor]) -> dict[str, Tensor]:
    skeleton = Skeleton(open_source(model))
    with skeleton.materialize([name for name, _ in skeleton.model.named_children()]):
        for name, value in change.items():
            skeleton.put(name, value)
        targets: dict[str, nn.Module] = {name: skeleton.module(name) for name in LINEARS}
        found = output_fisher(skeleton, tokens, targets)
        with torch.no_grad():
            logits = skeleton.model(input_ids=tokens).logits
        q = logits.flatten(0, 1).softmax(-1)
    return {**found, "expected": (q * (1 - q)).mean(0)}


def test_of_logits_it_is_the_variance_of_the_draw(model: Path, tokens: Tensor) -> None:
    """E[(1[t = i] - q_i)^2] over t ~ q is q_i (1 - q_i)."""
    found = fisher_of(model, tokens, {})
    total, expected = found["lm_head"].sum(), found["expected"].sum()
    assert float(total) == pytest.approx(float(expected), rel=0.05)


def test_what_reaches_no_output_costs_nothing(model: Path, tokens: Tensor) -> None:
    off = {"model.layers.0.self_attn.o_proj.weight": torch.zeros(64, 64)}
    found = fisher_of(model, tokens, off)
    assert float(found["model.layers.0.self_attn.v_proj"].abs().max()) == 0
    assert float(found["model.layers.1.mlp.up_proj"].min()) > 0


def test_equal_to_the_sum_over_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, 64, generator=generator) for n in (5, 50))
    fisher = torch.rand(5, generator=generator)
    packed = quantize(weight, parse_scheme("int3-g64"))
    error = packed.dequantize().double() - weight.double()
    expected = ((x.double() @ error.T).square() * fisher.double()).sum(-1).mean() / 2
    found = proxy_nats(weight, Quantized(packed=packed), x.T @ x / len(x), fisher)
    assert found == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("factor", [1.5, 4.0])
def test_orders_planted_damage(factor: float) -> None:
    """The same error in a column, and in a row, that counts more costs more, by its square."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 64, generator=generator)
    packed = quantize(weight, parse_scheme("int8-g64"))
    scales = torch.ones(64)
    scales[3] = factor
    gram, fisher = scales.square().diag(), torch.ones(8)

    def damaged(row: int, column: int, in_context: Tensor = fisher) -> float:
        hurt = packed.dequantize()
        hurt[row, column] += 10.0
        result = Quantized(packed=replace(packed, codes=packed.codes))
        return proxy_nats(weight - (hurt - packed.dequantize()), result, gram, in_context)

    plain, column = damaged(2, 9), damaged(2, 3)
    assert column / plain == pytest.approx(factor**2, rel=0.01)
    row = damaged(2, 9, torch.where(torch.arange(8) == 2, factor, 1.0))
    assert row / plain == pytest.approx(factor, rel=0.01)
