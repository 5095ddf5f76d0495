"""Imports: how a command imports torch, which makes objects that no collector need look at."""

import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager


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
