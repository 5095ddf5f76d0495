"""Commands that are imported when they run: what their groups say of them is what they say."""

from typing import Annotated

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from tercet.cli.kernel import app as kernel
from tercet.cli.lazy import LazyCommand
from tercet.cli.main import COMMANDS, app
from tercet.errors import CheckpointError

EVERY = {**COMMANDS, **{f"kernel {name}": row for name, row in kernel.COMMANDS.items()}}


@pytest.mark.parametrize(("name", "row"), EVERY.items(), ids=list(EVERY))
def test_the_line_of_help_is_the_commands_own(name: str, row: tuple[str, str]) -> None:
    own = LazyCommand(name.split()[-1], *row).real.help
    assert own.split("\n\n")[0].split("\n")[0] == row[1]


def test_help_shows_brackets_as_they_are() -> None:
    for words in (["eval", "--help"], ["gate", "--help"]):
        done = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
        assert "'tercet[tasks]'" in done.output or words == ["gate", "--help"]
    own = LazyCommand("x", "tests.cli.test_lazy:_command", "Shows [a] word.").real
    assert own.params[0].help == r"As in \[b]."


def _command(word: Annotated[str, typer.Option(help="As in [b].")] = "") -> None:
    """Shows [a] word."""


def test_an_unknown_command_is_named() -> None:
    done = CliRunner().invoke(app, ["compres"])
    assert done.exit_code == 2
    assert "compres" in done.output


def test_a_command_below_a_group_takes_its_arguments() -> None:
    done = CliRunner().invoke(app, ["kernel", "list", "--json"])
    assert done.exit_code == 0
    assert '"name": "swiglu"' in done.output
    assert set(get_command(app).list_commands(None)) == set(COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", ""],
        ["run", "", "--prompt", "w"],
        ["import", "m", "--out", ""],
        ["import", "m", "--out=", "--overwrite"],
        ["export", "", "--to", "mlx", "--out", "x"],
    ],
)
def test_an_empty_path_is_not_the_current_directory(words: list[str]) -> None:
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, CheckpointError)
    assert "an empty path" in str(error)


def test_an_empty_text_is_no_path() -> None:
    done = CliRunner().invoke(app, ["run", ".", "--prompt", ""])
    assert "an empty path" not in str(done.exception)
