"""Memory that torch freed and the C library still holds."""

import ctypes
import sys


def return_freed_memory() -> None:
    """Gives memory that is free in the allocator back to the system.

    glibc keeps freed blocks of up to 32 MB for the next ones: of the hidden states of a batch, none
    of which fit what comes after, 300 to 400 MiB of a model of 0.5B. Elsewhere nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
