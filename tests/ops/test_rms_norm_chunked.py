"""rms_norm walking over a row in pieces: for wide rows, or where a tuned table says so."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tercet.harness.check.run import check
from tercet.kernel.contract import Case, outputs_of
from tercet.kernel.select import load, using
from tercet.kernel.tuned import force
from tercet.ops.discover import find
from tercet.ops.rms_norm import triton as kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OP = find("rms_norm")
RUNS = [(added, dtype) for added in (False, True) for dtype in (torch.float32, torch.bfloat16)]
_LARGEST_M, _LARGEST_N = 8, 300


def small(case: Case) -> bool:
    x = case.make(0)["x"]
    return x.shape[0] <= _LARGEST_M and x.shape[1] <= _LARGEST_N


def test_check_is_green_in_pieces() -> None:
    cases = [case for case in OP.cases if small(case)][::7]
    assert len(cases) >= 5
    with (
        force("rms_norm", "triton", "forward", {"WALK": 32, "ROWS": 2, "num_warps": 2}),
        force("rms_norm", "triton", "backward", {"WALK": 32, "num_warps": 2}),
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


@pytest.mark.parametrize(("added", "dtype"), RUNS)
@pytest.mark.parametrize(("n", "piece", "rows"), [(1000, 128, 1), (1024, 256, 2), (70, 1024, 1)])
def test_pieces_are_as_the_whole_row(
    added: bool, dtype: torch.dtype, n: int, piece: int, rows: int
) -> None:
    """More than two pieces, the last one whole or not, or one that is wider than the row."""
    generator = torch.Generator().manual_seed(n)
    x = (torch.randn(5, n + 6, generator=generator) + 3).to(DEVICE, dtype)[:, :n]
    weight = torch.randn(n, generator=generator).to(DEVICE, dtype)
    more = torch.randn(5, n, generator=generator).to(DEVICE, dtype) if added else None
    results = list[tuple[torch.Tensor, ...]]()
    for walk in (0, piece):
        chosen = {"WALK": walk, "ROWS": rows, "num_warps": 4}
        with using(OP, load(OP, "triton")), force("rms_norm", "triton", "forward", chosen):
            results.append(outputs_of(OP.run(x, weight, more, 1e-5)))
    # one rounding to 8 bits apart at most, where a float32 sum differs in its last bit
    relative = 2e-6 if dtype == torch.float32 else 2**-7
    for whole, pieces in zip(*results, strict=True):
        limit = 2e-6 if whole.dtype == torch.float32 else relative
        torch.testing.assert_close(pieces, whole, rtol=limit, atol=2e-6)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that a launcher would have run, none of which runs."""
    names = list[str]()

    class Noted:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
            return lambda *_, **__: names.append(self.name)

    for name in ("_chunked", "_forward", "_gradient", "_gradient_chunked", "_add_parts"):
        monkeypatch.setattr(kernels, name, Noted(name))
    return names


@pytest.mark.parametrize(
    ("n", "chosen", "kernel"),
    [
        (40, {}, "_forward"),
        (40, {"WALK": 32}, "_chunked"),
        (4096, {"num_warps": 2}, "_forward"),
        (16384, {}, "_chunked"),
        (16384, {"num_warps": 2}, "_chunked"),
        (16384, {"num_warps": 16}, "_forward"),
    ],
)
def test_a_row_too_wide_to_hold_is_walked(
    launched: list[str], n: int, chosen: dict[str, int], kernel: str
) -> None:
    """Also where the nearest shape was tuned for rows that are held."""
    with force("rms_norm", "triton", "forward", chosen):
        kernels.forward(torch.ones(2, n), torch.ones(n), None, 1e-5)
    assert launched == [kernel]


@pytest.mark.parametrize(
    ("n", "chosen", "kernel"),
    [
        (40, {}, "_gradient"),
        (40, {"WALK": 32}, "_gradient_chunked"),
        (4096, {"ROWS": 2}, "_gradient"),
        (8192, {"num_warps": 4}, "_gradient_chunked"),
        (8192, {"ROWS": 2}, "_gradient_chunked"),
        (16384, {}, "_gradient_chunked"),
        (16384, {"num_warps": 16}, "_gradient_chunked"),
    ],
)
def test_the_gradient_of_a_row_too_wide_to_hold_is_walked(
    launched: list[str], n: int, chosen: dict[str, int], kernel: str
) -> None:
    x = torch.ones(2, n)
    with force("rms_norm", "triton", "backward", chosen):
        kernels.gradient(x, None, x, torch.ones(n), torch.ones(2))
    assert launched == [kernel, "_add_parts"]


@pytest.mark.parametrize("added", [False, True])
def test_gradients_in_pieces_are_as_the_whole_row(added: bool) -> None:
    """Rows of three programs, the last with a part of its columns."""
    generator = torch.Generator().manual_seed(7)
    x, grad, through = (torch.randn(5, 300, generator=generator).to(DEVICE) for _ in range(3))
    weight, rstd = x[0] + 1, x.square().mean(1).rsqrt()
    results = list[tuple[torch.Tensor, torch.Tensor]]()
    for walk in (0, 32):
        with force("rms_norm", "triton", "backward", {"WALK": walk, "num_warps": 2}):
            results.append(kernels.gradient(grad, through if added else None, x, weight, rstd))
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=2e-6, atol=2e-6)
