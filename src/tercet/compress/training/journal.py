"""Journal: one JSON line a logged step, and the same as TensorBoard events.

A resumed run cuts the lines of steps that it does again, so the journal is one curve.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any, cast

from tercet.checkpoints.atomic import write_atomic
from tercet.errors import UnsupportedError

Line = dict[str, Any]

NAME = "training.jsonl"


def read_journal(path: Path) -> list[Line]:
    """The lines of a journal; one cut short by a kill is left out."""
    lines: list[Line] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def check_tensorboard() -> None:
    """UnsupportedError where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UnsupportedError(
            "TensorBoard is not installed: pip install 'tercet[tensorboard]', or leave "
            "--tensorboard out"
        )


class Journal:
    """Appends lines.

    Args:
        directory: where training.jsonl, and tensorboard/, are written.
        step: the first step that will be logged; lines from it on are cut.
        tensorboard: whether to write events, too.

    Raises:
        UnsupportedError: TensorBoard is asked for and not installed.
    """

    def __init__(self, directory: Path, step: int, tensorboard: bool) -> None:
        if tensorboard:
            check_tensorboard()
        path = directory / NAME
        kept = [line for line in read_journal(path) if line["step"] < step]
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file = path.open("a", encoding="utf-8")
        self._events: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(directory / "tensorboard"), purge_step=step)

    def write(self, line: Line) -> None:
        """Appends a line and flushes it: a killed run loses none."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._events is not None:
            for name, value in _flat(line).items():
                self._events.add_scalar(name, value, line["step"])

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        if self._events is not None:
            self._events.close()


def _flat(line: Line) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            parts = cast("dict[str, Any]", value)
            found.update({f"{name}/{part}": float(seconds) for part, seconds in parts.items()})
        elif value is not None and name != "step":
            found[name] = float(value)
    return found
