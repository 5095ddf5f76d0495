"""What a run says while it goes on."""

import json
import time
from pathlib import Path
from typing import Any


class Journal:
    """Lines with the seconds since the run began.

    Args:
        file: lines are appended to; None for a process that says nothing.
        began: seconds of the Unix clock; None for now.
    """

    def __init__(self, file: Path | None, began: float | None = None) -> None:
        before = 0.0 if began is None else time.time() - began
        self._file, self._start = file, time.perf_counter() - before

    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._start

    def say(self, what: str, **values: Any) -> None:
        """A line, on the screen too."""
        if self._file is None:
            return
        line = json.dumps({"seconds": round(self.seconds(), 1), "what": what, **values})
        print(line, flush=True)
        with self._file.open("a") as file:
            file.write(line + "\n")
