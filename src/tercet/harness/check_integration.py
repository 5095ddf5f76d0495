"""Check of integration: the op as torch sees it, on a few cases, by a runner."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tercet.harness.finding import Finding
from tercet.harness.gradients import directions, wanted_gradients
from tercet.harness.isolate import WorkerError
from tercet.harness.judge import Verdicts
from tercet.harness.runner import Runner, fault_kind, fault_message
from tercet.kernel.contract import Case, Op

Values = dict[str, Any]
_CASES = 2


def check_integration(
    op: Op,
    runner: Runner,
    implementation: str,
    cases: Sequence[Case],
    seed: int,
    device: str,
    capturable: bool,
) -> list[Finding]:
    """opcheck, torch.compile and, on a GPU, graphs and streams, on a few of these cases."""
    findings = list[Finding]()
    for case in _of_each_dtype(cases)[:_CASES]:
        verdicts = Verdicts(implementation, case.name)
        prepared, other = (op.prepare(case.make(seed + at)) for at in (0, 1))
        names = wanted_gradients(op, prepared)
        ways = directions(op, prepared, seed)
        base = {"first": prepared, "wanted": list(names)}
        calls = {"opcheck": ("opcheck", base), "compile": ("compiled", {**base, "ways": ways})}
        if device == "cuda" and alike(prepared, other):
            both = {**base, "second": other, "ways": ways}
            calls["stream"] = ("streamed", both)
            if capturable:
                calls["graph"] = ("captured", both)
        for name, (function, request) in calls.items():
            try:
                verdicts.add(name, runner.run(function, **request))
            except WorkerError as error:
                verdicts.add(fault_kind(error, name), fault_message(error))
        findings += verdicts.findings
    return findings


def alike(a: Values, b: Values) -> bool:
    """Whether one can be copied to the addresses of the other: shapes and strides agree."""
    return all(
        a[name].shape == b[name].shape and a[name].stride() == b[name].stride()
        if isinstance(a[name], Tensor)
        else not isinstance(b[name], Tensor)
        for name in a
    )


def _of_each_dtype(cases: Sequence[Case]) -> list[Case]:
    """The cases, first one of each dtype that occurs: autograd hides a gradient of a wrong one."""
    first: dict[object, Case] = {}
    for case in cases:
        tensors = (value for value in case.make(0).values() if isinstance(value, Tensor))
        first.setdefault(next((x.dtype for x in tensors), None), case)
    return [*first.values(), *(case for case in cases if case not in first.values())]
