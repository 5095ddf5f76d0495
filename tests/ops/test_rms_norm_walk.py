"""rms_norm walking over a row in pieces: a form that only a tuned table chooses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tercet.harness.check import check
from tercet.kernel.contract import Case, outputs_of
from tercet.kernel.select import find, load, using
from tercet.kernel.tuned import forced
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
    with forced("rms_norm", "triton", "forward", {"WALK": 32, "ROWS": 2, "num_warps": 2}):
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
        with using(OP, load(OP, "triton")), forced("rms_norm", "triton", "forward", chosen):
            results.append(outputs_of(OP.run(x, weight, more, 1e-5)))
    # one rounding to 8 bits apart at most, where a float32 sum differs in its last bit
    relative = 2e-6 if dtype == torch.float32 else 2**-7
    for whole, pieces in zip(*results, strict=True):
        limit = 2e-6 if whole.dtype == torch.float32 else relative
        torch.testing.assert_close(pieces, whole, rtol=limit, atol=2e-6)


def test_the_walking_kernel_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.ones(2, 40, device=DEVICE), torch.ones(40, device=DEVICE)

    def ran(chosen: dict[str, int]) -> str:
        names = list[str]()

        class Noted:
            def __init__(self, name: str) -> None:
                self.name = name

            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
                return lambda *_, **__: names.append(self.name)

        for name in ("_walk", "_forward"):
            monkeypatch.setattr(kernels, name, Noted(name))
        with forced("rms_norm", "triton", "forward", chosen):
            kernels.forward(x, weight, None, 1e-5)
        return names[0]

    assert ran({}) == "_forward"
    assert ran({"WALK": 32}) == "_walk"
