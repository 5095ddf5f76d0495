"""What counts as a change of the process that a kernel was called in."""

import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from ctypes import CDLL
from typing import Any

import numpy as np
import pytest
import torch

from tercet.harness.sandbox.state import changes, settings


def test_a_thread_that_is_left_counts_and_one_that_ends_does_not() -> None:
    stop, later = threading.Event(), threading.Event()
    older = threading.Thread(target=stop.wait)
    older.start()
    before = settings()
    stop.set()
    older.join()
    assert changes(before, settings()) == []
    left = threading.Thread(target=later.wait)
    left.start()
    try:
        assert changes(before, settings()) == ["threads that still run"]
    finally:
        later.set()
        left.join()


def lower_limit(by: int) -> None:
    """Of files, from what it is now: others may have lowered it since this was imported."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - by, hard))


_UPWARD, _NEAREST = 0x800, 0
# a setting: what sets it, another value, and what says the one that it has, and is set back to
SETTINGS: dict[str, tuple[Callable[[Any], Any], Any, Callable[[], Any]]] = {
    "umask": (os.umask, 0o111, lambda: settings()["umask"]),
    "blocked signals": (
        lambda signals: signal.pthread_sigmask(signal.SIG_SETMASK, signals),
        {signal.SIGUSR1},
        lambda: settings()["blocked signals"],
    ),
    "resource limits": (lower_limit, 1, lambda: -1),
    "thread switch interval": (sys.setswitchinterval, 0.02, sys.getswitchinterval),
    "module search path": (lambda path: setattr(sys, "path", path), [], lambda: sys.path),
    "standard streams": (lambda stream: setattr(sys, "stdin", stream), None, lambda: sys.stdin),
    "sys.excepthook": (
        lambda hook: setattr(sys, "excepthook", hook),
        print,
        lambda: sys.excepthook,
    ),
    "logging": (
        logging.getLogger().setLevel,
        logging.CRITICAL,
        lambda: logging.getLogger().level,
    ),
    "numpy's print options": (
        lambda precision: np.set_printoptions(precision=precision),
        3,
        lambda: np.get_printoptions()["precision"],
    ),
    "torch's print options": (lambda count: torch.set_printoptions(edgeitems=count), 2, lambda: 3),
    "warnings that torch repeats": (
        torch.set_warn_always,
        True,
        torch.is_warn_always_enabled,
    ),
    "kernels of torch's attention": (
        torch.backends.cuda.enable_flash_sdp,
        False,
        torch.backends.cuda.flash_sdp_enabled,
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_process_counts(name: str) -> None:
    change, other, current = SETTINGS[name]
    before, usual = settings(), current()
    change(other)
    try:
        assert changes(before, settings()) == [name]
    finally:
        change(usual)
    assert changes(before, settings()) == []


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this platform pins no process")
def test_the_cores_that_a_process_runs_on_count() -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("one core: there is no other set of cores")
    before = settings()
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert changes(before, settings()) == ["CPU affinity"]
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="its number of a direction is another")
def test_how_floats_are_rounded_counts() -> None:
    before = settings()
    CDLL(None).fesetround(_UPWARD)
    try:
        assert changes(before, settings()) == ["rounding of floats"]
    finally:
        CDLL(None).fesetround(_NEAREST)
