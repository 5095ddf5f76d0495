"""Exits raise: while an author's code runs in this process, it cannot end it unseen."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def exits_raise() -> Generator[None]:
    """os._exit raises SystemExit, as sys.exit does; a fork is ended by it, as ever."""
    end, here = os._exit, os.getpid()

    def raise_exit(status: int) -> NoReturn:
        if os.getpid() == here:
            raise SystemExit(status)
        end(status)

    os._exit = raise_exit
    try:
        yield
    finally:
        os._exit = end
