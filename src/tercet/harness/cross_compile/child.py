"""What the child process that compiles runs.

It is a process of its own so that kernels are compiled and not interpreted, and so that launches
are taken from the op's code without touching the caller's.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch

from tercet.harness.cross_compile.baseline import read_baseline
from tercet.harness.cross_compile.capture import Launch, capture
from tercet.harness.cross_compile.nvcc import compile_builds
from tercet.harness.cross_compile.report import ROWS, CompileRow, Resources
from tercet.harness.cross_compile.reuse import ALL, reuse_or_compile
from tercet.harness.cross_compile.target import Target, target_of, targets_of_device
from tercet.harness.cross_compile.triton_targets import compile_launch, digest, variant
from tercet.harness.cross_compile.units import compile_each
from tercet.kernel.contract import Implementation, Op, Workload
from tercet.ops.discover import find

JOBS = 2


def get_ready() -> None:
    """In the process that children are forks of: what all of them import."""
    for name in ("torch._dynamo", "triton.compiler", "triton.backends.nvidia.compiler"):
        import_module(name)


def rows_of(
    op: Op,
    implementation: Implementation,
    targets: tuple[Target, ...],
    asked: tuple[Workload, ...] = (),
    recompile: int = 0,
) -> tuple[tuple[CompileRow, ...], int]:
    """A row for each kernel, variant and target of an implementation, in its production calls.

    Args:
        asked: in these calls instead.
        recompile: how many unchanged units are compiled all the same.

    Returns:
        The rows, and how many compilations accepted rows have spared.
    """
    accepted = [row for row in read_baseline(op) if row.implementation == implementation.name]
    if implementation.language == "cuda":
        return compile_builds(implementation, targets, accepted, recompile)
    if implementation.language not in ("triton", "gluon"):
        return (), 0
    launches = capture(op, implementation.name, asked)
    return _of_launches(implementation, launches, targets, accepted, recompile)


def _of_launches(
    implementation: Implementation,
    launches: tuple[Launch, ...],
    targets: tuple[Target, ...],
    accepted: Iterable[CompileRow],
    recompile: int,
) -> tuple[tuple[CompileRow, ...], int]:
    units: dict[tuple[str, str, str], tuple[Launch, Target]] = {}
    for launch in launches:
        written = variant(launch)
        for target in targets:
            if launch.device is None or target.name in targets_of_device(launch.device):
                key = (launch.kernel.__name__, target.name, written)
                units.setdefault(key, (launch, target))

    def row_of(key: tuple[str, str, str], result: Resources | str | None) -> CompileRow:
        kernel, target, written = key
        found = result if isinstance(result, Resources) else None
        return CompileRow(
            implementation=implementation.name,
            kernel=kernel,
            target=target,
            variant=written,
            workload=units[key][0].workload,
            outcome="refused" if found is None else "compiled",
            reason=None if isinstance(result, Resources) else result,
            resources=found,
        )

    def compile_all(keys: Sequence[tuple[str, str, str]]) -> list[list[CompileRow]]:
        anew = recompile >= ALL
        work = [partial(compile_launch, *units[key], anew=anew) for key in keys]
        results = compile_each(work, JOBS)
        return [[row_of(*each)] for each in zip(keys, results, strict=True)]

    refused = {key: _refusal(implementation, target) for key, (_, target) in units.items()}
    digests = {key: digest(*units[key]) for key, why in refused.items() if why is None}
    found, reused = reuse_or_compile(digests, accepted, recompile, compile_all)
    rows = [
        found[key][0].model_copy(update={"workload": launch.workload})
        if key in found
        else row_of(key, refused[key])
        for key, (launch, _) in units.items()
    ]
    return tuple(rows), reused


def _refusal(implementation: Implementation, target: Target) -> str | None:
    """Why the implementation's own requirement rules the target out."""
    return implementation.requirement.unmet_by(target.capability)


def compile_rows(
    name: str,
    implementation: str,
    targets: list[str],
    asked: list[dict[str, Any]],
    recompile: int,
) -> dict[str, Any]:
    """The `rows` of an op (name or folder) for these targets and workloads, as plain data.

    `reused` says how many compilations were spared.
    """
    op = find(name)
    chosen = tuple(target_of(target) for target in targets)
    workloads = tuple(
        Workload(**{**each, "dtype": getattr(torch, each["dtype"])}) for each in asked
    )
    rows, reused = rows_of(op, op.implementation(implementation), chosen, workloads, recompile)
    return {"rows": ROWS.dump_python(rows, mode="json"), "reused": reused}
