"""tercet export DIR --to TARGET --out PATH [--type TYPE] [--verify], and --list."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.checkpoints.atomic import write_atomic
from tercet.cli.show import Json, console, mebibytes, print_json, say
from tercet.errors import PlanError
from tercet.records import append, check_appendable
from tercet.workflows.export.check import check_export
from tercet.workflows.export.contents import acceptances
from tercet.workflows.export.modelfile import read_modelfile
from tercet.workflows.export.report import ExportReport, record
from tercet.workflows.export.run import export


def export_command(
    directory: Annotated[Path, typer.Argument(help="Packed checkpoint; with --check, an export.")],
    to: Annotated[str | None, typer.Option("--to", help="Export target; --list shows all.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Output file or directory.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="Tensor type for every layer, where the target has several (GGUF: TQ2_0, Q4_0 "
            "...; GPTQ: int4, int8). Default: for each layer the smallest that holds it exactly.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            help="Read the exported file back, run it in the target program and compare logits.",
        ),
    ] = False,
    listing: Annotated[
        bool,
        typer.Option(
            "--list", help="List the targets, and the layers of this checkpoint each can hold."
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Check that an export, given as DIRECTORY, is as it was written."
        ),
    ] = False,
    modelfile: Annotated[
        Path | None,
        typer.Option(help="Also write what `ollama create -f` reads, beside a GGUF file."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens to generate with --verify. Default: 16.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Append the result of --verify to this JSON-lines file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert a packed checkpoint for another program, keeping every code and scale exactly."""
    if check:
        found = check_export(directory)
        if as_json:
            print_json({"export": str(directory), "found": found})
        else:
            say(f"{directory}: {found}")
        return
    if listing:
        _list(directory, as_json)
        return
    if to is None or out is None:
        raise PlanError("give --to TARGET and --out PATH, or --list to see the targets")
    if records is not None and not verify:
        raise PlanError("--records needs --verify: an export that was not verified is no record")
    if tokens is not None and not verify:
        raise PlanError("--tokens is about --verify")
    _demand_different({"--out": out, "--modelfile": modelfile, "--records": records})
    if records is not None:
        check_appendable(records)
    text = None if modelfile is None else read_modelfile(directory, to, out, modelfile)
    report = export(directory, to, out, verify, kind=kind, count=tokens or 16, progress=say)
    if modelfile is not None and text is not None:
        write_atomic(modelfile, text.encode())
    if records is not None:
        append(records, [record(report)])
    if as_json:
        print_json({**report.model_dump(mode="json"), "passed": report.passed})
    else:
        _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _demand_different(files: dict[str, Path | None]) -> None:
    """PlanError where two of the options name one file: the last one written would be left."""
    named = dict[Path, str]()
    for option, path in files.items():
        if path is not None and (other := named.setdefault(path.resolve(), option)) != option:
            raise PlanError(f"{path}: is both {other} and {option}: give each a name of its own")


def _show(report: ExportReport) -> None:
    main = report.main_module
    console.print(
        f"{report.out}: {mebibytes(report.size_bytes)} (packed: "
        f"{mebibytes(report.packed_size_bytes)}), {report.format} as {main.kind}, "
        f"{main.bits_per_weight:.3f} bits a weight",
        soft_wrap=True,
        highlight=False,
    )
    client = report.client
    if client is None:
        return
    equal = sum(bool(module.bit_equal) for module in report.modules)
    verdict = "within" if client.passed else "OUTSIDE"
    lines = [
        f"values bit-equal: {equal} of {len(report.modules)} modules",
        *_unpacked(report),
        f"logits in {client.client}: off by {client.error:.2e}, {verdict} {client.bound:.2e} "
        f"(float32 twin {client.twin_error:.2e}, int8 inputs {client.activation_error:.2e})",
        f"most likely token the same at {client.top1_agreement:.1%} of {len(client.tokens)} places",
        f"ours:   {client.our_text if client.our_text is not None else client.our_greedy}",
        f"client: {client.text if client.text is not None else client.greedy}",
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _unpacked(report: ExportReport) -> list[str]:
    if report.differences is None:
        return ["norms, biases and settings: not read back from this target"]
    if not report.differences:
        return ["norms, biases and settings: every bit the same"]
    return [f"DIFFERENT: {line}" for line in report.differences]


def _list(directory: Path, as_json: bool) -> None:
    found = acceptances(directory)
    if as_json:
        print_json([entry.model_dump(mode="json") for entry in found])
        return
    console.print(f"{directory}: what is held dequantizes to exactly our values", highlight=False)
    for entry in found:
        client = f"{entry.client} {entry.installed}" if entry.installed else entry.install
        bits = f"{entry.bits_per_weight:.3f} bits a weight" if entry.bits_per_weight else "refused"
        lines = [f"{entry.target}: {bits} ({client})"]
        lines += [f"  {count} x {kind}" for kind, count in entry.kinds.items()]
        lines += [f"  {count} refused: {reason}" for reason, count in entry.refusals.items()]
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False)
