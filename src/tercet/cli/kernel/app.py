"""The verbs of `tercet kernel`."""

import typer

from tercet.cli.kernel import (
    bench,
    check,
    compile,
    explain,
    list,
    new,
    profile,
    regress,
    report,
    shapes,
    tune,
)

app = typer.Typer(
    help="Write, prove, profile, tune and guard kernels.",
    no_args_is_help=True,
    add_completion=False,
)
app.command(name="list")(list.list_command)
app.command(name="explain")(explain.explain_command)
app.command(name="new")(new.new_command)
app.command(name="check")(check.check_command)
app.command(name="compile")(compile.compile_command)
app.command(name="bench")(bench.bench_command)
app.command(name="profile")(profile.profile_command)
app.command(name="tune")(tune.tune_command)
app.command(name="shapes")(shapes.shapes_command)
app.command(name="regress")(regress.regress_command)
app.command(name="report")(report.report_command)
