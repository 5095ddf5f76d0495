"""The compiled loops of loops.cpp, or None where there is no compiler: torch does the same then."""

import ctypes
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from tercet import environment
from tercet.errors import BuildError
from tercet.kernel.jit.cpp import build as build_library

_SOURCE = Path(__file__).with_name("loops.cpp")
_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


@lru_cache(maxsize=1)
def loops() -> ctypes.CDLL | None:
    """The library, built once a machine."""
    try:
        library = build_library(_SOURCE)
    except BuildError:
        return None
    library.tercet_spread.argtypes = (_P, _P, _P, _P, _I32, _I32)
    library.tercet_sweep.argtypes = (_P, _P, _P, _P, _P, _P, _I32, _I32)
    library.tercet_search_scale.argtypes = (_P, _P, _P, _P, _P, _I64, _I32, _I32)
    for native in (library.tercet_spread, library.tercet_sweep, library.tercet_search_scale):
        native.restype = None
    return library


def best_isa() -> int:
    """The best instruction set that loops may use, as an index of CPU_ISAS."""
    allowed = environment.cpu_isa() or environment.CPU_ISAS[-1]
    return environment.CPU_ISAS.index(allowed)


def address(tensor: Tensor | None) -> int | None:
    """Of the first element; None for none."""
    return None if tensor is None else tensor.data_ptr()
