"""The `tercet` command: errors become one line and exit code 2."""

import errno
import json
import logging
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from tercet.cli.lazy import lazy_group
from tercet.errors import TercetError
from tercet.version import VERSION

COMMANDS = {
    "fetch": (
        "tercet.cli.fetch:fetch_command",
        "Bring a model into the cache, unless it is there already, and print its path.",
    ),
    "compress": (
        "tercet.cli.compress:compress_command",
        "Quantize a model's weights and write them as a packed checkpoint.",
    ),
    "sensitivity": (
        "tercet.cli.allocation.sensitivity:sensitivity_command",
        "Measure how much each number format hurts each module of a model.",
    ),
    "allocate": (
        "tercet.cli.allocation.allocate:allocate_command",
        "Choose a format for each module within a budget, and write the plan.",
    ),
    "finetune": (
        "tercet.cli.training.finetune:finetune_command",
        "Train a packed checkpoint as a whole for its teacher's predictions, in the same formats.",
    ),
    "distill": (
        "tercet.cli.training.distill:distill_command",
        "Distill a model into a quantized copy of itself and write a packed checkpoint.",
    ),
    "train": (
        "tercet.cli.training.train:train_command",
        "Train a quantized model on text by next-token prediction and write a packed checkpoint.",
    ),
    "eval": (
        "tercet.cli.evaluate:evaluate_command",
        "Measure compressed models: perplexity, divergence from the teacher, size; or tasks.",
    ),
    "compare": (
        "tercet.cli.tasks.compare:compare_command",
        "Compare two runs of tasks question by question, with intervals.",
    ),
    "gate": (
        "tercet.cli.tasks.gate:gate_command",
        "Decide whether a compressed model lost more on tasks than is allowed.",
    ),
    "report": (
        "tercet.cli.report:report_command",
        "Write one page about compressed models: sizes, losses, speeds, layers, bytes and texts.",
    ),
    "run": (
        "tercet.cli.run:run_command",
        "Generate text with a packed checkpoint, printing tokens as they are generated.",
    ),
    "bench": (
        "tercet.cli.bench:bench_command",
        "Time a packed checkpoint, and other engines on the same weights, taking turns.",
    ),
    "inspect": (
        "tercet.cli.inspect:inspect_command",
        "Show a packed checkpoint's layers, formats, size and source model.",
    ),
    "export": (
        "tercet.cli.export:export_command",
        "Convert a packed checkpoint for another program, keeping every code and scale exactly.",
    ),
    "import": (
        "tercet.cli.import_:import_command",
        "Convert a quantized checkpoint (GPTQ, AWQ, GGUF, BitNet, compressed-tensors) losslessly.",
    ),
    "mcp": (
        "tercet.cli.mcp:mcp_command",
        "Serve the `tercet kernel` commands to agents over the Model Context Protocol (stdio).",
    ),
    "plan": ("tercet.cli.plan:app", "List and show compression plans."),
    "kernel": (
        "tercet.cli.kernel.app:app",
        "Write, check, benchmark, profile and tune kernels, and guard them against regressions.",
    ),
}
app = typer.Typer(
    cls=lazy_group(COMMANDS),
    help="Compress language models to ternary, nonary and other low-bit formats, and run them "
    "without unpacking the weights.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


class _Said(logging.Handler):
    """What a wait is for, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        from tercet.cli.show import say

        say(record.getMessage())


_SAID = _Said()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Compress language models, and run them without unpacking the weights."""
    del version
    logger = logging.getLogger("tercet")
    logger.setLevel(logging.INFO)
    logger.addHandler(_SAID)


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 1 a check failed, 2 bad input (one line on standard error), 3 a gate was
    not decided, 130 interrupted.
    """
    _replace_unknown_characters()
    try:
        _run(sys.argv)
    except TercetError as error:
        _refuse(type(error).__name__, str(error))
    except OSError as error:
        _drop_unwritten_output()
        where = error.filename
        if where is None and error.errno in _FULL:
            # a write names no file, be it to standard output
            where = "standard output, or a file that was being written"
        # any other that names no file is none that the user can mend
        if where is None or error.strerror is None:
            raise
        advice = _ADVICE.get(error.errno or 0, "choose another place or name")
        _refuse(type(error).__name__, f"{where}: {error.strerror}: {advice}")
    except SystemExit as end:
        # the command line parser makes an exit of a Ctrl-C before it can be caught here
        if end.code == _INTERRUPTED:
            typer.echo(_message_of_interruption(sys.argv), err=True)
        raise


def _run(words: list[str]) -> None:
    """Run the command; of `tercet kernel`, which runs an author's files, JSON alone is printed."""
    if words[1:2] != ["kernel"] or "--json" not in words:
        app()
        return
    from tercet.cli.show import only_json_on_stdout

    with only_json_on_stdout():
        app()


_INTERRUPTED = 130
_ADVICE = {
    errno.EACCES: "ask for the permission, or choose another place",
    errno.EPERM: "ask for the permission, or choose another place",
    errno.EROFS: "the file system is read-only: choose another place",
    errno.ENOSPC: "free some space, or choose another place",
    errno.EDQUOT: "free some space, or choose another place",
    errno.EISDIR: "give a file, not a directory",
    errno.ENOTDIR: "a part of the path is a file: choose another place",
    errno.ENOENT: "check the path",
    errno.ENAMETOOLONG: "choose a shorter name",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_RESUMABLE = ("compress", "sensitivity", "finetune", "distill", "train", "eval", "gate")


def _refuse(kind: str, text: str) -> NoReturn:
    message = " ".join(text.split())
    if "--json" in sys.argv:
        # standard output may be what failed
        with suppress(OSError):
            typer.echo(json.dumps({"error": kind, "message": message}))
        _drop_unwritten_output()
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)


def _message_of_interruption(words: list[str]) -> str:
    if len(words) > 1 and words[1] in _RESUMABLE and (words[1] != "eval" or "--tasks" in words):
        return "interrupted; what is on disk is kept: go on with --resume"
    return "interrupted"


def _replace_unknown_characters() -> None:
    """Have a question mark written for a character that the terminal's encoding lacks.

    A model may generate any character; the text around it is of more use than a traceback.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_unwritten_output() -> None:
    """Give up what a full disk does not take: the interpreter would try and fail again at its end.

    Nothing more is written to standard output then.
    """
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
