"""The process that compiles: `python -m tercet.harness.cross_compile.child rms_norm triton sm_90`.

It is a process of its own so that kernels are compiled and not interpreted, and so that launches
are taken from the op's code without touching the caller's. It prints rows as one JSON list.
"""

import sys
from contextlib import redirect_stdout
from functools import partial

from tercet.harness.cross_compile.capture import Launch, capture
from tercet.harness.cross_compile.nvcc import compile_sources
from tercet.harness.cross_compile.report import ROWS, CompileRow, Resources
from tercet.harness.cross_compile.target import Target, target_of, targets_of_device
from tercet.harness.cross_compile.triton_targets import compiled, variant
from tercet.harness.cross_compile.units import compile_each
from tercet.kernel.contract import Implementation, Op
from tercet.kernel.select import find
from tercet.kernel.tuned import table_path

JOBS = 2


def rows_of(
    op: Op, implementation: Implementation, targets: tuple[Target, ...]
) -> tuple[CompileRow, ...]:
    """A row for each kernel, variant and target of an implementation."""
    if implementation.language == "cuda":
        folder = table_path(op.name, "").parent.parent
        return compile_sources(implementation, folder, targets)
    if implementation.language not in ("triton", "gluon"):
        return ()
    return _of_launches(implementation, capture(op, implementation.name), targets)


def _of_launches(
    implementation: Implementation, launches: tuple[Launch, ...], targets: tuple[Target, ...]
) -> tuple[CompileRow, ...]:
    units: dict[tuple[str, str, str], tuple[Launch, Target]] = {}
    for launch in launches:
        written = variant(launch)
        for target in targets:
            if launch.device is None or target.name in targets_of_device(launch.device):
                key = (launch.kernel.__name__, target.name, written)
                units.setdefault(key, (launch, target))
    allowed = {
        key: unit for key, unit in units.items() if _refusal(implementation, unit[1]) is None
    }
    work = [partial(compiled, *unit) for unit in allowed.values()]
    results = dict(zip(allowed, compile_each(work, JOBS), strict=True))
    rows: list[CompileRow] = []
    for key, (launch, target) in units.items():
        kernel, name, written = key
        result = results.get(key) or _refusal(implementation, target)
        found = result if isinstance(result, Resources) else None
        rows.append(
            CompileRow(
                implementation=implementation.name,
                kernel=kernel,
                target=name,
                variant=written,
                workload=launch.workload,
                outcome="refused" if found is None else "compiled",
                reason=None if isinstance(result, Resources) else result,
                resources=found,
            )
        )
    return tuple(rows)


def _refusal(implementation: Implementation, target: Target) -> str | None:
    """Why the implementation's own requirement rules the target out."""
    needs = implementation.requirement.capability
    if needs is None or (target.capability is not None and target.capability >= needs):
        return None
    return f"needs CUDA compute capability {needs[0]}.{needs[1]}"


def main(name: str, implementation: str, targets: str) -> None:
    """Prints the rows of an op (name or folder) for targets separated by commas."""
    printed = sys.stdout
    with redirect_stdout(sys.stderr):
        op = find(name)
        chosen = tuple(target_of(target) for target in targets.split(","))
        rows = rows_of(op, op.implementation(implementation), chosen)
    printed.write(ROWS.dump_json(rows).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
