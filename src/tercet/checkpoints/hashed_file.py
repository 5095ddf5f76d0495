"""HashedFile: a weight file read once, from its first byte to its last, and hashed on the way."""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self

_CHUNK_BYTES = 1 << 20


class Digest(Protocol):
    """What `hashlib.sha256()` returns."""

    def update(self, data: Any, /) -> None: ...


class HashBeside:
    """SHA-256 of bytes that a thread of its own takes.

    Args:
        behind: may fall behind the reader, and holds the bytes until then; else the reader waits
            for the piece before.
    """

    def __init__(self, *, behind: bool) -> None:
        self._behind = behind
        self._digest = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def update(self, data: Any, /) -> None:
        """Takes bytes, which must not change any more."""
        if not self._behind:
            self._wait()
        self._last = self._thread.submit(self._digest.update, data)

    def hexdigest(self) -> str:
        """Of all bytes so far; waits until they are in it."""
        self._wait()
        return self._digest.hexdigest()

    def close(self) -> None:
        """Ends the thread; bytes that it has not come to are not hashed."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()


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
