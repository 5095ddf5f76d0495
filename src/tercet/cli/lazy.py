"""Lazy: commands whose modules are imported when they run, so that `--help` answers at once.

A command is "module:function" and its line of help, which a test compares with the docstring.
"""

import gc
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tercet.checkpoints.named_path import named_path


@contextmanager
def importing() -> Generator[None]:
    """Imports in the block, the first of torch among them, are not looked through for garbage.

    The collector goes through the objects of torch's 1,100 modules again and again while they are
    made, and once more at the end of the process: 0.6 of the 1.4 CPU seconds that importing torch
    takes. What the block made is frozen, that is, left alone for good.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


class LazyCommand(TyperCommand):
    """A command that is known by its name and its line of help until it is called."""

    def __init__(self, name: str, where: str, line: str) -> None:
        super().__init__(name, help=line, short_help=line)
        self._where = where

    @cached_property
    def real(self) -> Any:
        """The command itself: of a function, or of a whole app of subcommands."""
        module, _, attribute = self._where.partition(":")
        with importing():
            found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            app = typer.Typer(add_completion=False)
            app.command(name=self.name)(found)
            found = app
        command: Any = get_command(found)
        command.name = self.name
        _write_out_brackets(command)
        return command

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """The real command's, which is imported now.

        Raises:
            CheckpointError: a path is empty.
        """
        # parsing takes words from the list that it is given
        words = [str(word) for word in arguments[1]]
        context = self.real.make_context(*arguments, **named)
        _refuse_empty_path(words, context.params.values())
        return context


def _write_out_brackets(command: Any) -> None:
    """Has help texts shown as they are: rich would take [tasks] for markup and leave it out."""
    for each in (command, *command.params):
        text = getattr(each, "help", None)
        if text:
            each.help = escape(text)
    for each in getattr(command, "commands", {}).values():
        _write_out_brackets(each)


def _refuse_empty_path(words: Iterable[str], values: Iterable[object]) -> None:
    """CheckpointError where an empty word became a path, as of a shell variable that is not set.

    `Path("")` is the current directory: the command would read, or replace, what lies there.
    """
    given = [word.split("=", 1)[-1] if word.startswith("--") else word for word in words]
    here = Path()
    if "" in given and here in values and not any(word and Path(word) == here for word in given):
        named_path("")


def lazy_group(commands: Mapping[str, tuple[str, str]]) -> type[TyperGroup]:
    """A group of commands: name -> where it is, and its line of help."""

    class LazyGroup(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            del ctx
            return list(commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            del ctx
            if cmd_name not in commands:
                return None
            return LazyCommand(cmd_name, *commands[cmd_name])

    return LazyGroup
