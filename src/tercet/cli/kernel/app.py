"""The verbs of `tercet kernel`."""


import typer

app = typer.Typer(
    help="Write, prove, profile, tune and guard kernels.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def root() -> None:
    """Write, prove, profile, tune and guard kernels."""
