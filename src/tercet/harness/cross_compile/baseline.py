"""Baseline: what an op's kernels compiled to when it was last accepted, in its `compiled.json`.

It lies in the repository, not in the installed package, which holds no `compiled.json`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote

from pydantic import ValidationError

from tercet.checkpoints.atomic import write_atomic
from tercet.errors import UnsupportedError
from tercet.harness.cross_compile.report import ROWS, CompileReport, CompileRow, Resources
from tercet.harness.cross_compile.target import target_of
from tercet.harness.finding import Finding
from tercet.kernel.contract import Op
from tercet.kernel.register import folder_of
from tercet.ops.discover import address_of

# ptxas moves a few registers between versions; a quarter more can cost a resident block
REGISTER_GROWTH = 1.25
# one of two operands that is read by single elements halves the mean width of all accesses
WIDTH_LEFT = 0.75
# registers of a block, and of a thread
_FILE, _MOST = 65536, 255
_CONTRADICTED = (
    "compiled.json tells of other resources for the very same sources, as if it had been edited: "
    "--all --update"
)


def baseline_path(op: Op) -> Path:
    """The op's `compiled.json`, in its folder."""
    return folder_of(op.name) / "compiled.json"


def read_baseline(op: Op) -> tuple[CompileRow, ...]:
    """The accepted rows; none where the op has no baseline yet."""
    path = baseline_path(op)
    if not path.exists():
        return ()
    try:
        return ROWS.validate_json(path.read_bytes())
    except ValidationError as error:
        raise UnsupportedError(
            f"{path} is no list of compiled rows: {error}; write it anew with "
            f"`tercet kernel compile {quote(address_of(op))} --update`"
        ) from error


def write_baseline(op: Op, rows: Collection[CompileRow]) -> Path:
    """Accepts the rows; those of implementations and targets that are not in them stay.

    A row that was skipped for want of a compiler replaces nothing.
    """
    fresh = [row for row in rows if row.outcome != "skipped"]
    judged = {(row.implementation, row.target) for row in fresh}
    known = {one.name for one in op.implementations}
    kept = [
        row
        for row in read_baseline(op)
        if (row.implementation, row.target) not in judged and row.implementation in known
    ]
    lines = [
        row.model_dump_json(exclude_defaults=True)
        for row in sorted((*kept, *fresh), key=lambda row: row.identity)
    ]
    path = baseline_path(op)
    write_atomic(path, ("[\n" + ",\n".join(lines) + "\n]\n").encode())
    return path


def judge(op: Op, rows: Sequence[CompileRow], reused: int = 0) -> CompileReport:
    """The rows as a report, with what is wrong with them given the op's baseline."""
    implementations = {row.implementation for row in rows}
    accepted = [row for row in read_baseline(op) if row.implementation in implementations]
    findings = compare(rows, accepted, {row.target for row in rows})
    return CompileReport(
        op=op.name,
        rows=tuple(rows),
        findings=findings,
        has_baseline=baseline_path(op).exists(),
        reused=reused,
    )


def accept(op: Op, report: CompileReport) -> CompileReport:
    """Writes the rows as the new baseline: the report with the findings that are left.

    Nothing is written, and the report is as it was, where rows are missing.
    """
    if not report.rows or any(finding.check == "capture" for finding in report.findings):
        return report
    write_baseline(op, report.rows)
    return judge(op, report.rows, report.reused)


def compare(
    rows: Iterable[CompileRow], baseline: Iterable[CompileRow], targets: Collection[str]
) -> tuple[Finding, ...]:
    """What is wrong with the rows, given those that were accepted.

    Args:
        rows: what was compiled now.
        baseline: the accepted rows of the same implementations.
        targets: what was compiled for; the baseline's other targets are not looked at.
    """
    accepted = {row.identity: row for row in baseline if row.target in targets}
    findings: list[Finding] = []
    skipped: set[tuple[str, str]] = set()
    for row in rows:
        before = accepted.pop(row.identity, None)
        if row.outcome == "skipped":
            skipped.add((row.implementation, row.target))
        elif before is not None and _contradicts(row, before):
            findings.append(_finding(row, "baseline", _CONTRADICTED))
        elif row.resources is None:
            findings += _refused(row, before)
        else:
            then = before.resources if before is not None else None
            findings += [_finding(row, *fault) for fault in _faults(row, row.resources, then)]
    findings += [
        _finding(row, "baseline", "in compiled.json, and no call launches it any more: --update")
        for row in accepted.values()
        if (row.implementation, row.target) not in skipped
    ]
    return tuple(findings)


def _contradicts(row: CompileRow, before: CompileRow) -> bool:
    """Whether the same sources were accepted with other resources."""
    same = row.digest is not None and row.digest == before.digest
    return same and (row.outcome, row.resources) != (before.outcome, before.resources)


def _refused(row: CompileRow, before: CompileRow | None) -> list[Finding]:
    if before is None or before.resources is None:
        return []
    return [_finding(row, "compiles", f"compiled before; now refused: {row.reason}")]


def _faults(row: CompileRow, now: Resources, before: Resources | None) -> Iterator[tuple[str, str]]:
    """(check, message) of everything that is worse than accepted."""
    allowed = before.spills if before is not None else 0
    if now.spills > allowed:
        yield (
            "spills",
            f"{now.spills} bytes of registers spill to memory, {allowed} accepted. "
            f"{_registers(row)}Use more warps or smaller blocks, or hold fewer values at once: "
            "finish sums before the stores, and load again what is needed late",
        )
    if before is None:
        return
    left = now.instructions()
    for name, count in before.instructions().items():
        if count and not left[name]:
            yield "instruction", f"{name} is gone: {count} in the assembly before"
    yield from _accesses(now, before)
    if now.registers > REGISTER_GROWTH * before.registers:
        yield "registers", f"{now.registers} registers a thread, {before.registers} before"


def _registers(row: CompileRow) -> str:
    """What a thread of the launch has, where the launch says how many there are."""
    warps = re.search(r"\bnum_warps=(\d+)", row.variant)
    if warps is None:
        return ""
    threads = int(warps[1]) * target_of(row.target).warp
    most = min(_FILE // threads, _MOST)
    sizes = [int(size) for size in re.findall(r"\b[A-Z_]+=(\d+)\b", row.variant)]
    tile = max(sizes, default=0) / threads
    held = f"; a row of {max(sizes)} values is {tile:.3g} of them, for each tensor alive" * (
        tile >= 1
    )
    return f"Each of {threads} threads has at most {most} registers{held}. "


def _accesses(now: Resources, before: Resources) -> Iterator[tuple[str, str]]:
    for kind, (bits, mean), (old_bits, old_mean) in (
        (
            "loads",
            (now.load_bits, now.load_bits_mean),
            (before.load_bits, before.load_bits_mean),
        ),
        (
            "stores",
            (now.store_bits, now.store_bits_mean),
            (before.store_bits, before.store_bits_mean),
        ),
    ):
        if bits < old_bits or mean < WIDTH_LEFT * old_mean:
            yield (
                "vectorisation",
                f"{kind} of at most {bits} bits, {mean:.0f} on average; before {old_bits} and "
                f"{old_mean:.0f}: a stride or pointer is no longer known to be divisible by 16, or "
                "a mask is not constant along 16 bytes",
            )


def _finding(row: CompileRow, check: str, message: str) -> Finding:
    return Finding(
        implementation=row.implementation,
        case=f"{row.kernel} for {row.target}: {row.variant}",
        check=check,
        passed=False,
        message=message,
    )
