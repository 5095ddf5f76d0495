"""The subcommands of `tercet kernel`."""

import typer

from tercet.cli.lazy import lazy_group

COMMANDS = {
    "list": (
        "tercet.cli.kernel.list:list_command",
        "List all ops with their axes, implementations and number of check cases.",
    ),
    "explain": (
        "tercet.cli.kernel.explain:explain_command",
        "Show which implementation would run for a shape, and why each other one would not.",
    ),
    "new": (
        "tercet.cli.kernel.new:new_command",
        "Create the folder of a new op from a template that already passes its check.",
    ),
    "check": (
        "tercet.cli.kernel.check:check_command",
        "Check an op's forward and backward pass against its float64 reference.",
    ),
    "mutate": (
        "tercet.cli.kernel.mutate:mutate_command",
        "Change an op's own kernels in one place each, and list the changes that no check notices.",
    ),
    "compile": (
        "tercet.cli.kernel.compile:compile_command",
        "Cross-compile kernels, no GPU needed, and compare their resources with the baseline.",
    ),
    "bench": (
        "tercet.cli.kernel.bench:bench_command",
        "Time an op and its baselines, and compare them with this machine's measured roofline.",
    ),
    "profile": (
        "tercet.cli.kernel.profile:profile_command",
        "Profile calls one by one: each GPU kernel's time, what limits it, and what to try next.",
    ),
    "tune": (
        "tercet.cli.kernel.tune:tune_command",
        "Search for the fastest correct configuration of a kernel on this device, and save it.",
    ),
    "shapes": (
        "tercet.cli.kernel.shapes:shapes_command",
        "Show the shapes that an op has in published models.",
    ),
    "regress": (
        "tercet.cli.kernel.regress:regress_command",
        "Compare two versions' records; exit code 1 if the new one is slower beyond the noise.",
    ),
    "report": (
        "tercet.cli.kernel.report:report_command",
        "Write benchmark records as one HTML page with rooflines, history and sortable tables.",
    ),
}
_HELP = "Write, check, benchmark, profile and tune kernels, and guard them against regressions."

app = typer.Typer(cls=lazy_group(COMMANDS), help=_HELP, no_args_is_help=True, add_completion=False)


@app.callback()
def kernel() -> None:
    """A group has a callback, or typer takes it for its only command."""
