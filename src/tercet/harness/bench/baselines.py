"""Baselines: what a user would call instead, loaded for the same timing as an implementation.

The first baseline of an op is plain torch, differentiated by autograd; "compile" is torch.compile
of it. A baseline whose package is missing is reported with the command that installs it.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from tercet.errors import UnsupportedError, unknown_name
from tercet.kernel.contract import Baseline, Op, outputs_of

COMPILE = "compile"
Prepared = Mapping[str, Any]
Call = Callable[[Prepared], tuple[Tensor, ...]]


def baseline_names(op: Op, wanted: bool | Sequence[str], device: str) -> tuple[str, ...]:
    """Which baselines to time.

    Args:
        op: of which op.
        wanted: all (True), none (False), or these. "compile" is left out of all on a CPU, where it
            compiles for minutes.
        device: where.

    Raises:
        UnsupportedError: for a name that the op has not.
    """
    known = [baseline.name for baseline in op.baselines]
    if known:
        known.insert(1, COMPILE)
    if isinstance(wanted, bool):
        return tuple(name for name in known if wanted and (name, device) != (COMPILE, "cpu"))
    for name in wanted:
        if name not in known:
            raise UnsupportedError(unknown_name(f"baseline of {op.name}", name, known))
    return tuple(wanted)


def load_baseline(op: Op, name: str) -> Call:
    """The baseline as a function of prepared arguments.

    Raises:
        ImportError: where its package is missing.
    """
    function = find_baseline(op, name).load()
    if name == COMPILE:
        # What was compiled for other shapes must not turn this one dynamic.
        torch.compiler.reset()
        function = torch.compile(function, dynamic=False)
    return lambda prepared: outputs_of(function(**prepared))


def missing_package(op: Op, name: str, error: ImportError) -> str:
    """What to do about it."""
    package = None if name == COMPILE else find_baseline(op, name).package
    if package is None:
        return f"{name} does not import: {error}"
    return f"needs the package {package}: run `pip install {package}` ({error})"


@contextmanager
def repeatable_backward() -> Generator[None]:
    """torch.compile keeps what a second backward through the same graph reads.

    By default it writes over saved tensors ("donated buffers") and refuses `retain_graph`.
    """
    with functorch_config.patch({"donated_buffer": False}):
        yield


def find_baseline(op: Op, name: str) -> Baseline:
    """The baseline of that name; "compile" is the first."""
    if name == COMPILE:
        return op.baselines[0]
    return next(baseline for baseline in op.baselines if baseline.name == name)
