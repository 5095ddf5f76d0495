"""The seal of a directory: SHA256SUMS, a hash of every file in it, as `sha256sum -c` reads it.

A flipped byte of a weight, a norm or a tokenizer loads without a word and answers nonsense. Hashing
lets other threads run, so files are hashed while torch is imported and weights are read.
"""

import hashlib
import json
import re
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tercet.checkpoints.atomic import write_atomic
from tercet.checkpoints.named_path import named_path, partial_directory
from tercet.environment import usable_cores
from tercet.errors import CheckpointError

SEAL_NAME = "SHA256SUMS"
_MANIFEST_NAME = "tercet_manifest.json"
_LINE = re.compile(r"([0-9a-f]{64})  ([^/\x00-\x1f]+)\n")
_READ_AT_ONCE_BYTES = 1 << 20
# what is read before anything is believed of a checkpoint: configuration, index, tokenizer
_FIRST_BYTES = 1 << 26
_CHANGED = (
    f"copy the directory again; if the change is wanted, remove {SEAL_NAME}, or skip the check "
    "(--no-verify, verify=False)"
)


_GO_ON = "go on with the same command and --resume, or remove it"


class Verification:
    """The check of a directory against its seal, begun at once and finished by `finish`.

    Small files are checked first, and `Verification(directory)` waits for them: whoever reads the
    configuration next can believe it. Weights are hashed in threads. A checkpoint without a seal is
    checked against the hashes in its manifest; one without either (transformers' save_pretrained)
    has nothing to be checked against.

    Raises:
        CheckpointError: the seal cannot be read, or a small file is missing or was changed.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = named_path(directory)
        check_directory(self._directory)
        expected = read_seal(self._directory)
        sizes = {name: _size(self._directory / name) for name in expected}
        workers = min(4, usable_cores())
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tercet-seal")
        small: dict[str, Future[str | None]] = {}
        self._large: dict[str, Future[str | None]] = {}
        for name in sorted(expected, key=lambda name: (_is_weight(name), name)):
            group = self._large if _is_weight(name) or sizes[name] > _FIRST_BYTES else small
            group[name] = self._pool.submit(_hash, self._directory / name)
        self._expected = expected
        self._compare(small)

    def finish(self) -> None:
        """Waits for the last file; CheckpointError names the first that is not as it was."""
        self._compare(self._large)
        self._pool.shutdown()

    def cancel(self) -> None:
        """Ends the check: what was not hashed yet stays unchecked."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compare(self, found: Mapping[str, Future[str | None]]) -> None:
        for name, digest in found.items():
            result = digest.result()
            if result == self._expected[name]:
                continue
            self.cancel()
            wanted = f"sha256 {result}, sealed as {self._expected[name]}"
            said = "missing" if result is None else wanted
            raise CheckpointError(f"{self._directory / name}: {said}: {_CHANGED}")


def check_directory(directory: Path) -> None:
    """CheckpointError where the directory is not there, or is that of an interrupted write."""
    directory = named_path(directory)
    partial = partial_directory(directory)
    if not directory.is_dir():
        hint = f"; an interrupted write lies in {partial}: {_GO_ON}" if partial.is_dir() else ""
        raise CheckpointError(f"{directory}: no such directory; give one that compress wrote{hint}")
    if directory.name.endswith(".partial") and not (directory / SEAL_NAME).is_file():
        raise CheckpointError(f"{directory}: an interrupted write, not whole yet: {_GO_ON}")


@contextmanager
def verified(directory: str | Path, verify: "bool | Verification" = True) -> Generator[None]:
    """The directory's files are checked while the block reads them; CheckpointError at its end.

    Args:
        directory: a packed checkpoint.
        verify: False checks nothing; a Verification is one that was begun before.
    """
    if verify is False:
        yield
        return
    check = verify if isinstance(verify, Verification) else Verification(directory)
    try:
        yield
        check.finish()
    finally:
        check.cancel()


def seal(directory: Path, known: Mapping[str, str] | None = None) -> None:
    """Writes the directory's seal, over every file in it but the seal itself.

    Args:
        directory: holds files; folders in it are left out.
        known: sha256 of files that need no reading, by name.
    """
    names = sorted(path.name for path in directory.iterdir() if path.is_file())
    lines: list[str] = []
    for name in names:
        if name == SEAL_NAME:
            continue
        digest = (known or {}).get(name) or _hash(directory / name)
        lines.append(f"{digest}  {name}\n")
    write_atomic(directory / SEAL_NAME, "".join(lines).encode())


def read_seal(directory: Path) -> dict[str, str]:
    """sha256 of each sealed file, by name; of the weight files alone from an older manifest.

    Raises:
        CheckpointError: the seal is damaged.
    """
    path = directory / SEAL_NAME
    if not path.is_file():
        return _read_manifest(directory)
    raw = path.read_bytes()
    lines = _LINE.findall(raw.decode("utf-8", errors="replace"))
    if "".join(f"{digest}  {name}\n" for digest, name in lines).encode() != raw:
        raise CheckpointError(f"{path}: not a list of sha256 sums: {_CHANGED}")
    return {name: digest for digest, name in lines}


def weights_sha256(directory: Path) -> str | None:
    """One hash of all weight files, as the seal says; None where nothing says it."""
    files = {name: of for name, of in read_seal(directory).items() if _is_weight(name)}
    return _hash_all(files) if files else None


def contents_sha256(directory: Path) -> str:
    """One hash of every sealed file; of the weight files, which are read, where none is."""
    files = read_seal(directory)
    if not files:
        files = {path.name: str(_hash(path)) for path in directory.glob("*.safetensors")}
    return _hash_all(files)


def _read_manifest(directory: Path) -> dict[str, str]:
    try:
        files = json.loads((directory / _MANIFEST_NAME).read_bytes())["files"]
        return {str(name): str(info["sha256"]) for name, info in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # none, or one that whoever opens the checkpoint will refuse by name
        return {}


def _hash_all(files: Mapping[str, str]) -> str:
    return hashlib.sha256(
        "".join(f"{name} {files[name]}\n" for name in sorted(files)).encode()
    ).hexdigest()


def _is_weight(name: str) -> bool:
    return name.endswith(".safetensors")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _hash(path: Path) -> str | None:
    """The file's sha256; None where there is no such file."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_AT_ONCE_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
    except FileNotFoundError:
        return None
    return digest.hexdigest()
