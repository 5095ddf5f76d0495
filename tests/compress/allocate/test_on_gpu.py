"""Sensitivity on a GPU is what it is on a CPU; where there is no GPU, on a pretended one."""

from pathlib import Path

import pytest
from pretended_gpu import any_gpu
from torch import Tensor

from tercet.compress.allocate.measure import Scope, measure_sensitivity
from tercet.compress.allocate.rows import Windows
from tercet.compress.plan import Plan


@pytest.mark.parametrize("in_context", [False, True])
def test_as_on_a_cpu(
    model: Path, tokens: Tensor, plan: Plan, tmp_path: Path, in_context: bool
) -> None:
    scope = Scope(formats=("int3-g64", "int4-g64-asym"), in_context=in_context)
    # quickly rounded: on a pretended GPU Triton is interpreted
    rounding = {"algorithm": "rtn", "options": {"fit": "absmax"}}
    rules = tuple(rule.model_copy(update=rounding) for rule in plan.rules)
    plan = plan.model_copy(update={"rules": rules})

    def measure(device: str) -> dict[tuple[str, str], tuple[float, float]]:
        found = measure_sensitivity(
            model,
            scope,
            tmp_path / device,
            plan=plan,
            calibration=tokens,
            windows=Windows(count=2, length=24),
            device=device,
        )
        return {
            pair: (line.kl_nats or 0.0, line.proxy_nats or 0.0)
            for pair, line in found.lines.items()
        }

    there = measure("cpu")
    with any_gpu():
        here = measure("cuda")
    assert here.keys() == there.keys()
    for pair, (kl, proxy) in here.items():
        assert kl == pytest.approx(there[pair][0], rel=0.1, abs=1e-5), pair
        assert proxy == pytest.approx(there[pair][1], rel=0.1, abs=1e-5), pair
