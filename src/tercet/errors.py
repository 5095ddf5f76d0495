"""Every error that Tercet raises on bad input.

    TercetError
    ├── FormatError        a number format, scheme or tensor that cannot be encoded
    ├── CheckpointError    weights on disk that are missing, damaged or in the way
    ├── UnsupportedError   a shape, device or architecture that an operation cannot take
    ├── PlanError          a compression plan that cannot be read or applied
    ├── AccuracyError      a result that missed its stated accuracy
    └── BuildError         native code that could not be compiled or loaded

A message says what was given, what is allowed and what to do.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class TercetError(Exception):
    """Root of the family: catch this to catch all of Tercet's own errors."""


class FormatError(TercetError):
    """A number format, a scheme or a tensor that cannot be encoded."""


class CheckpointError(TercetError):
    """Weights on disk that are missing, damaged or in the way."""


class UnsupportedError(TercetError):
    """A shape, a device or an architecture that an operation cannot take."""


class PlanError(TercetError):
    """A compression plan that cannot be read or applied."""


class AccuracyError(TercetError):
    """A result that missed its stated accuracy."""


class BuildError(TercetError):
    """Native code that could not be compiled or loaded."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is not known: the nearest names first, then all of them."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(close) for close in near)}? " if near else ""
    return f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}"
