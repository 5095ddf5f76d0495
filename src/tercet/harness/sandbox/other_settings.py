"""Other settings: those of a process at the value that they do not have by default.

A call that sets one back to the default, and not to what it found, is seen where its caller had
changed it.
"""

import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tercet.harness.sandbox.state import FLAGS

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BLOCKED = signal.SIGUSR2
_MORE_CALLS = 100
_MASK, _OTHER_MASK = 0o077, 0o027


@contextmanager
def other_settings() -> Generator[None]:
    """Every setting that a caller may have changed is another one inside of this.

    Some change what is computed (subnormal numbers are 0, products are less exact), so results are
    not to be judged here. Those that are also judged at another value, the default dtype, the
    number of threads and the like, are left alone.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(np.errstate(all="ignore"))
        stack.enter_context(np.printoptions(precision=3))
        _set_other(stack, _switch_collector, gc.isenabled(), not gc.isenabled())
        _set_other(stack, _set_threshold, gc.get_threshold(), (500, 9, 9))
        limit = sys.getrecursionlimit()
        _set_other(stack, sys.setrecursionlimit, limit, limit + _MORE_CALLS)
        interval = sys.getswitchinterval()
        _set_other(stack, sys.setswitchinterval, interval, interval / 2)
        disabled = logging.root.manager.disable
        _set_other(stack, logging.disable, disabled, disabled + 1)
        _set_other(stack, sys.setprofile, sys.getprofile(), _ignore)
        _set_other_of_system(stack)
        # signals are the main thread's
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                _set_other(stack, _handler_of(number), signal.getsignal(number), _ignore)
        _set_other_of_torch(stack)
        yield


@contextmanager
def deterministic() -> Generator[None]:
    """As in a training that must repeat: torch refuses what is not sure to."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


@contextmanager
def temporary_folder(folder: Path) -> Generator[None]:
    """Where Python's tempfile puts what this process makes with it."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _set_other_of_system(stack: ExitStack) -> None:
    mask = os.umask(_MASK)
    stack.callback(os.umask, mask)
    if mask == _MASK:
        os.umask(_OTHER_MASK)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    _set_other(stack, _block_only, blocked, blocked ^ {_BLOCKED})
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    if len(cores) > 1:
        _set_other(stack, _run_on, cores, cores - {max(cores)})


def _set_other_of_torch(stack: ExitStack) -> None:
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    _set_other(stack, _set_deterministic, (enabled, warn_only), (not enabled, True))
    repeats = torch.is_warn_always_enabled()
    _set_other(stack, torch.set_warn_always, repeats, not repeats)
    anomaly = torch.is_anomaly_enabled()
    _set_other(stack, _set_anomaly, anomaly, not anomaly)
    for flag in FLAGS:
        # torch reads no precision of products where these and that one were both set
        if flag.endswith("allow_tf32"):
            continue
        owner, name = _owner_of(flag)
        value = getattr(owner, name)
        if isinstance(value, bool):
            _set_other(stack, _setter_of(owner, name), value, not value)
    precision = torch.get_float32_matmul_precision()
    other = "high" if precision == "highest" else "highest"
    _set_other(stack, torch.set_float32_matmul_precision, precision, other)
    flushed = not float(torch.tensor(1e-40) * 1) > 0
    _set_other(stack, torch.set_flush_denormal, flushed, not flushed)


def _set_other(stack: ExitStack, change: Callable[[Any], Any], value: Any, other: Any) -> None:
    stack.callback(change, value)
    change(other)


def _switch_collector(on: bool) -> None:
    (gc.enable if on else gc.disable)()


def _set_threshold(threshold: tuple[int, int, int]) -> None:
    gc.set_threshold(*threshold)


def _block_only(signals: set[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _run_on(cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)


def _set_deterministic(both: tuple[bool, bool]) -> None:
    enabled, warn_only = both
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def _set_anomaly(on: bool) -> None:
    # it warns that it is slow
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.autograd.set_detect_anomaly(on, check_nan=False)


def _handler_of(number: int) -> Callable[[Any], Any]:
    return lambda handler: signal.signal(number, handler)


def _owner_of(flag: str) -> tuple[Any, str]:
    module, _, name = flag.rpartition(".")
    found: Any = import_module("torch")
    for each in module.split(".")[1:]:
        found = getattr(found, each)
    return found, name


def _setter_of(owner: Any, name: str) -> Callable[[Any], None]:
    return lambda value: setattr(owner, name, value)


def _ignore(*_: object) -> None:
    """What profiles nothing, and handles a signal by doing nothing."""
