"""The weights to aim at, against the formula in float64."""

import pytest
import torch
from torch import Tensor

from tercet.compress import target
from tercet.compress.algorithm import Statistics
from tercet.compress.calibration.products import multiply_precisely
from tercet.compress.target import target_weights
from tests.pretended_gpu import any_gpu

ROWS, COLUMNS, TOKENS = 30, 12, 200


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """W [N, K], and inputs x and t [tokens, K] of the compressed and the uncompressed model."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(ROWS, COLUMNS, generator=generator)
    t = torch.randn(TOKENS, COLUMNS, generator=generator)
    return weight, t + 0.2 * torch.randn(TOKENS, COLUMNS, generator=generator), t


def statistics(x: Tensor, t: Tensor, weight: Tensor | None) -> Statistics:
    plain = x.abs()
    return Statistics(
        gram=x.T @ x / TOKENS,
        absmax=plain.amax(0),
        absmean=plain.mean(0),
        drift=(t - x).T @ x / TOKENS if weight is None else None,
        outputs={} if weight is None else {"w": (t @ weight.T).T @ x / TOKENS},
    )


@pytest.mark.parametrize("by_outputs", [False, True])
@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("at_once", [1 << 20, 7 * COLUMNS])
def test_target_is_the_formula(
    by_outputs: bool, share: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(target._WEIGHTS_AT_ONCE, "cpu", at_once)
    weight, x, t = inputs()
    found = target_weights({"w": weight}, statistics(x, t, weight if by_outputs else None), share)[
        "w"
    ]
    w, x, t = weight.double(), x.double(), t.double()
    gram, cross = x.T @ x / TOKENS, t.T @ x / TOKENS
    damped = gram + 0.05 * gram.diagonal().mean() * torch.eye(COLUMNS)
    expected = w + share * w @ (cross - gram) @ torch.linalg.inv(damped)
    assert (expected - w).norm() > 0.01 * w.norm()
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_without_the_uncompressed_model_or_a_share_the_target_is_the_weight() -> None:
    weight, x, t = inputs()
    whole = statistics(x, t, None)
    blind = Statistics(gram=whole.gram, absmax=whole.absmax, absmean=whole.absmean)
    assert target_weights({"w": weight}, blind, 0.5)["w"] is weight
    assert target_weights({"w": weight}, whole, 0.0)["w"] is weight


@pytest.mark.parametrize("columns", [3, 4096, 4099])
def test_a_product_of_three_keeps_a_float32s_bits(columns: int) -> None:
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(5, 300, generator=generator) * 10 ** torch.randn(300, generator=generator)
    right = torch.randn(300, columns, generator=generator)
    with any_gpu() as device:
        found = multiply_precisely(left.to(device), right.to(device)).cpu()
    size = left.double().abs() @ right.double().abs()
    error = (found - left.double() @ right.double()).abs()
    # tensor cores cut each sum of eight products off at 24 bits
    cut = 300 / 8 * 2**-24 if torch.cuda.is_available() else 0.0
    assert (error <= (2**-20 + cut) * size).all()
