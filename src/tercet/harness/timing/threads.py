"""Threads: finds threads that a kernel started, whose work may go on after its call returns."""

import threading
from collections.abc import Generator
from contextlib import contextmanager

from tercet.harness.finding import Finding


class ThreadWatch:
    """Which Python threads run that did not run before, and who started them."""

    def __init__(self) -> None:
        self._known = _running()

    @contextmanager
    def allowing(self) -> Generator[None]:
        """Threads that are started in the block are no fault: torch.compile keeps some."""
        before = _running()
        yield
        self._known |= _running() - before

    def finding(self, name: str, case: str) -> Finding:
        """Finding "threads", right after a call of that implementation; each thread shows once."""
        started = _running() - self._known
        self._known |= started
        names = ", ".join(sorted(thread.name for thread in started))
        message = f"still running after the call: {names}: what a thread does later is not timed"
        return Finding(
            implementation=name,
            case=case,
            check="threads",
            passed=not started,
            message=message if started else "",
        )


def _running() -> set[threading.Thread]:
    """Without the dummies that stand for threads of others, such as autograd's."""
    alive = threading.enumerate()
    return {
        thread
        for thread in alive
        if type(thread).__name__ != "_DummyThread" and not _of_torch_compile(thread)
    }


def _of_torch_compile(thread: threading.Thread) -> bool:
    """The pool in which a baseline is compiled starts threads whenever it likes."""
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", "")).startswith("torch._inductor.")
