"""layer_norm walking over a row in pieces: for wide rows, or where a tuned table says so."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tercet.harness.check.run import check
from tercet.kernel.contract import Case, outputs_of
from tercet.kernel.select import load, using
from tercet.kernel.tuned import force
from tercet.ops.discover import find
from tercet.ops.layer_norm import triton as kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OP = find("layer_norm")


def small(case: Case) -> bool:
    x = case.make(0)["x"]
    return x.shape[0] <= 8 and x.shape[1] <= 300


def run(
    walk: int, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    with using(OP, load(OP, "triton")), force("layer_norm", "triton", "forward", {"WALK": walk}):
        return outputs_of(OP.run(x, weight, bias, 1e-5))


def test_check_is_green_in_pieces() -> None:
    cases = [case for case in OP.cases if small(case)][::7]
    assert len(cases) >= 4
    with (
        force("layer_norm", "triton", "forward", {"WALK": 32, "num_warps": 2}),
        force("layer_norm", "triton", "backward", {"WALK": 32, "num_warps": 2}),
    ):
        report = check(
            OP,
            implementation="triton",
            device=DEVICE,
            isolated=False,
            cases=cases,
            integration=False,
        )
    faults = [f"{f.check} on {f.case}: {f.message}" for f in report.faults]
    assert not faults, f"seed {report.seed}: {faults[:5]}"


@pytest.mark.parametrize(("n", "piece"), [(1000, 128), (1024, 256), (70, 1024), (65, 64)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_pieces_are_as_float64(n: int, piece: int, has_bias: bool) -> None:
    """Pieces that are whole or not, and a piece wider than the row; a mean far from zero."""
    generator = torch.Generator().manual_seed(n)
    x = (torch.randn(5, n + 6, generator=generator) + 300).to(DEVICE)[:, :n]
    weight = torch.randn(n, generator=generator).to(DEVICE)
    bias = torch.randn(n, generator=generator).to(DEVICE) if has_bias else None
    y, mean, rstd = run(piece, x, weight, bias)
    exact = x.double()
    variance = exact.var(1, correction=0)
    # x has 24 bits of which the mean takes 8: y is known to 2^-15 of what is left
    torch.testing.assert_close(mean, exact.mean(1).float(), rtol=2**-23, atol=0)
    torch.testing.assert_close(rstd, (variance + 1e-5).rsqrt().float(), rtol=2**-15, atol=0)
    normal = (exact - exact.mean(1, keepdim=True)) * (variance + 1e-5).rsqrt()[:, None]
    want = normal * weight.double() + (0.0 if bias is None else bias.double())
    torch.testing.assert_close(y, want.float(), rtol=2**-15, atol=2**-13)


def test_a_constant_row_is_zero_and_its_mean_exact() -> None:
    x = torch.full((2, 200), 0.7, device=DEVICE)
    y, mean, _ = run(64, x, torch.ones(200, device=DEVICE), None)
    assert torch.equal(y, torch.zeros_like(y))
    assert torch.equal(mean, x[:, 0])


@pytest.mark.parametrize("has_bias", [False, True])
def test_gradients_in_pieces_are_as_the_whole_row(has_bias: bool) -> None:
    """Rows of five programs, the last with a part of its columns."""
    generator = torch.Generator().manual_seed(7)
    x, grad = (torch.randn(5, 300, generator=generator).to(DEVICE) for _ in range(2))
    mean, rstd = x.mean(1), x.var(1, correction=0).rsqrt()
    results = list[tuple[torch.Tensor, ...]]()
    for walk in (0, 32):
        with force("layer_norm", "triton", "backward", {"WALK": walk, "num_warps": 2}):
            results.append(kernels.gradient(grad, x, x[0] + 1, mean, rstd, has_bias))
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("n", "chosen", "kernel"),
    [
        (40, {}, "_gradient"),
        (8192, {"num_warps": 8}, "_gradient"),
        (8192, {"ROWS": 2}, "_gradient_chunked"),
        (16384, {}, "_gradient_chunked"),
    ],
)
def test_the_gradient_of_a_row_too_wide_to_hold_is_walked(
    monkeypatch: pytest.MonkeyPatch, n: int, chosen: dict[str, int], kernel: str
) -> None:
    """Also where the nearest shape was tuned for rows that are held."""
    launched = list[str]()

    class Noted:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
            return lambda *_, **__: launched.append(self.name)

    for name in ("_gradient", "_gradient_chunked", "_add_parts"):
        monkeypatch.setattr(kernels, name, Noted(name))
    x = torch.ones(2, n)
    with force("layer_norm", "triton", "backward", chosen):
        kernels.gradient(x, x, torch.ones(n), torch.ones(2), torch.ones(2), True)
    assert launched == [kernel, "_add_parts"]
