"""What counts as a change of the process that a kernel was called in."""

import threading

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
