"""tercet kernel compile [OP ...]."""

from itertools import groupby
from shlex import quote
from typing import Annotated

import typer
from rich.text import Text

from tercet.cli.kernel.calls import (
    GivenDtype,
    Models,
    Shapes,
    TensorParallel,
    Tokens,
    select_workloads,
)
from tercet.cli.options.op import Options
from tercet.cli.show import Json, console, print_json, say
from tercet.errors import UnsupportedError
from tercet.harness.cross_compile import (
    ALL,
    MODELS,
    TARGETS,
    CompileReport,
    CompileRow,
    accept,
    baseline_path,
    cross_compile,
)
from tercet.ops.discover import address_of, discover, find


def compile_command(
    ops: Annotated[
        list[str] | None, typer.Argument(help="Ops: names or folders. Default: all.")
    ] = None,
    implementation: Annotated[
        str | None, typer.Option(help="Compile only this implementation. Default: all.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help=f"GPU architecture (may be repeated): {', '.join(TARGETS)}. Default: all."
        ),
    ] = None,
    shape: Shapes = None,
    model: Models = None,
    tensor_parallel: TensorParallel = 1,
    tokens: Tokens = None,
    dtype: GivenDtype = None,
    option: Options = None,
    update: Annotated[
        bool,
        typer.Option(help="Accept the result as the new baseline: write the op's compiled.json."),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            "--recompile",
            help="Compile also what has not changed since the baseline was accepted or since it "
            "was last compiled.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Cross-compile kernels, no GPU needed, and compare their resources with the baseline.

    Resources are registers, spills, shared memory and tensor-core instructions; the baseline is
    the op's compiled.json. With --shape, --model or --dtype only spills are judged. A kernel
    whose sources, options and compiler are those of the baseline is not compiled again.
    """
    asked = bool(shape or model or dtype or option)
    if asked and update:
        raise UnsupportedError(
            "--update writes the baseline of an op's production calls: leave out --shape, --model, "
            "--dtype and --option"
        )
    found = [find(name) for name in ops] if ops else list(discover().values())
    reports: list[CompileReport] = []
    for op in found:
        workloads = (
            select_workloads(
                op, shape, model if model or shape else list(MODELS), dtype=dtype, options=option,
                tensor_parallel=tensor_parallel, tokens=tokens,
            )
            if asked
            else ()
        )  # fmt: skip
        report = cross_compile(
            op, implementation=implementation, targets=target or TARGETS, workloads=workloads,
            recompile=ALL if everything else 0,
        )  # fmt: skip
        if update and (accepted := accept(op, report)) is not report:
            report = accepted
            say(f"wrote {baseline_path(op)}")
        reports.append(report)
        if not as_json:
            _show(reports[-1], address_of(op), asked=asked)
    passed = all(report.passed for report in reports)
    if as_json:
        print_json(
            {"passed": passed, "reports": [report.model_dump(mode="json") for report in reports]}
        )
    if not passed:
        raise typer.Exit(1)


_COLUMNS = ("registers", "spills", "shared", "loads", "stores", "matrix instructions")


def _line(target: str, *cells: str) -> str:
    """One line of the table, of 80 columns but for what is told at its end."""
    *short, last = cells
    return f"  {target:<6}{''.join(f'{cell:>10}' for cell in short)}  {last}".rstrip()


def _print(line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False)


def _name(row: CompileRow) -> str:
    return f"{row.implementation}: {row.kernel}" + (f" ({row.workload})" if row.workload else "")


def _values(row: CompileRow) -> tuple[str, ...]:
    if row.resources is None:
        return ("", f"{row.outcome}: {row.reason or 'no reason given'}")
    has = row.resources
    return (
        str(has.registers),
        str(has.spills),
        f"{has.shared_bytes:,}",
        f"{has.loads}x{has.load_bits_mean:.0f}",
        f"{has.stores}x{has.store_bits_mean:.0f}",
        ", ".join(f"{n}x {kind}" for kind, n in has.instructions().items() if n),
    )


def _show(report: CompileReport, address: str, *, asked: bool = False) -> None:
    if not report.rows and report.passed:
        say(f"{report.op}: nothing to compile for a GPU")
        return
    console.print(report.op, style="bold")
    _print(_line("target", *_COLUMNS))
    for name, rows in groupby(report.rows, _name):
        _print(name)
        for row in rows:
            _print(_line(row.target, *_values(row)))
    if report.reused:
        say(f"{report.op}: {report.reused} compilations spared: nothing they depend on has changed")
    if not report.has_baseline and not asked:
        say(
            f"{report.op}: no committed baseline, so only spills are judged; in the repository "
            f"`tercet kernel compile {quote(address)} --update` writes one"
        )
    for finding in report.findings:
        what = f" {finding.implementation}, {finding.case}: {finding.message}"
        console.print(Text.assemble((finding.check, "red"), what), highlight=False, soft_wrap=True)
