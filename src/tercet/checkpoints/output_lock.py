"""A lock on an output: two runs that write to one place would end each other after their work."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tercet.checkpoints.atomic import disk_errors
from tercet.errors import CheckpointError


@contextmanager
def lock_output(out: Path) -> Generator[None]:
    """No other process writes to `out` while the block runs.

    The lock is the kernel's, on the file `.OUT.lock` beside the output: it ends with the process,
    however that ends. Directories that had to be made for it are removed where they stay empty.

    Raises:
        CheckpointError: another run holds the lock.
    """
    made = [parent for parent in out.absolute().parents if not parent.exists()]
    path = out.with_name(f".{out.name}.lock")
    with disk_errors(path, None):
        out.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not (_lock(handle) and _is_at(handle, path)):
            raise CheckpointError(
                f"{out}: another run is writing there: wait until it ends, or choose another --out"
            )
        try:
            yield
        finally:
            # still locked: who opened the file meanwhile finds that it is no longer there
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)
        with suppress(OSError):
            for parent in made:
                parent.rmdir()


if sys.platform == "win32":

    def _lock(handle: int) -> bool:
        """There is no such lock: two runs are not told apart."""
        del handle
        return True

else:
    import fcntl

    def _lock(handle: int) -> bool:
        """Whether the lock was taken; also where the file system has none."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            # some network file systems: a run without a lock is better than none
            return True
        return True


def _is_at(handle: int, path: Path) -> bool:
    """Whether the file is still the one of that name; the run that held it before removed it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
