"""The live line of a training run: step, loss, speed, time left."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from tercet.cli.show import bar
from tercet.compress.training.group import torchrun_rank


@contextmanager
def run_live(quiet: bool) -> Generator[Callable[[dict[str, Any], int], None]]:
    """Within the block, a function that is told (journal line, steps in all).

    Of the processes that torchrun started only the first draws.
    """
    with bar(quiet or torchrun_rank() > 0) as progress:
        task = progress.add_task("reading", total=None)

        def told(line: dict[str, Any], steps: int) -> None:
            words = f"loss {line['loss']:.4f} {line['tokens_per_s']:,.0f} tokens/s"
            progress.update(task, total=steps, completed=line["step"], description=words)

        yield told
