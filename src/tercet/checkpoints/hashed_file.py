"""HashedFile: a weight file read once, from its first byte to its last, and hashed on the way."""

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

_CHUNK_BYTES = 1 << 20


class Digest(Protocol):
    """What `hashlib.sha256()` returns."""

    def update(self, data: Any, /) -> None: ...


class _Beside:
    """A digest that another thread takes its bytes to, one piece behind the reader."""

    def __init__(self, digest: Digest, thread: ThreadPoolExecutor) -> None:
        self._digest, self._thread = digest, thread
        self._last: Future[None] | None = None

    def update(self, data: Any, /) -> None:
        """Takes bytes, which must not change any more; waits for those before them."""
        self.wait()
        self._last = self._thread.submit(self._digest.update, data)

    def wait(self) -> None:
        """Until all bytes are in the digest."""
        if self._last is not None:
            self._last.result()


@contextmanager
def digest_beside(digest: Digest) -> Generator[Digest]:
    """A digest whose work is done beside the reader's; complete after the block."""
    with ThreadPoolExecutor(1) as thread:
        beside = _Beside(digest, thread)
        yield beside
        beside.wait()


class ReadableFile(Protocol):
    """What a tensor is read from: a file that is open for reading, or a HashedFile."""

    def seek(self, position: int, /) -> int: ...

    def read(self, size: int, /) -> bytes: ...

    def readinto(self, data: Any, /) -> int: ...


class HashedFile:
    """A file that is read forwards only; its bytes go into the digest, those skipped as well.

    Args:
        path: the file.
        digest: takes every byte of the file, in order; complete when the block ends.
    """

    def __init__(self, path: Path, digest: Digest) -> None:
        self._file = path.open("rb")
        self._digest = digest
        self._position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            while kind is None and self.read(_CHUNK_BYTES):
                pass

    def seek(self, position: int, /) -> int:
        """Goes on to that byte, which must not lie behind."""
        assert position >= self._position, "a hashed file is read once"
        while self._position < position:
            if not self.read(min(_CHUNK_BYTES, position - self._position)):
                break
        return self._position

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes; fewer at the end of the file."""
        data = self._file.read(size)
        self._digest.update(data)
        self._position += len(data)
        return data

    def readinto(self, data: Any, /) -> int:
        """Fills `data` with the next bytes; returns how many there were."""
        count = self._file.readinto(data)
        self._digest.update(memoryview(data)[:count])
        self._position += count
        return count
