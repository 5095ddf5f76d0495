"""tercet plan show NAME."""

from typing import Annotated

import typer
import yaml

from tercet.cli.show import Json, print_json
from tercet.compress.plan import load_plan, shipped_plans

app = typer.Typer(
    help="List and show compression plans.", no_args_is_help=True, add_completion=False
)


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List the plans that ship with tercet."""
    names = list(shipped_plans())
    if as_json:
        print_json(names)
    else:
        typer.echo("\n".join(names))


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="Shipped plan, number format or path of a plan.")],
    as_json: Json = False,
) -> None:
    """Print a plan as YAML with all defaults filled in: a starting point for --plan."""
    content = load_plan(name).model_dump(mode="json", exclude_defaults=False)
    content["rules"] = [
        {key: value for key, value in rule.items() if value not in (None, {}, False)}
        for rule in content["rules"]
    ]
    if as_json:
        print_json(content)
    else:
        typer.echo(yaml.safe_dump(content, sort_keys=False), nl=False)
