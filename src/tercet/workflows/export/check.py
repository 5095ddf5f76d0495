"""check: whether an export is as it was written, by the seal or the checksums it carries."""

from pathlib import Path

from tercet.checkpoints.gguf.header import damage_error, read_gguf_header
from tercet.checkpoints.gguf.notes import CHECKSUMS, check_checksums
from tercet.checkpoints.seal import SEAL_NAME, read_seal, verified
from tercet.errors import CheckpointError


def check_export(path: str | Path) -> str:
    """Read every byte of an export and compare it with what was written.

    Args:
        path: a directory (any target but gguf) or a GGUF file.

    Returns:
        One line: what vouches for it.

    Raises:
        CheckpointError: a byte was changed, a file is missing or was added, or nothing was noted
            to compare with.
    """
    path = Path(path)
    if path.is_file() and path.suffix == ".gguf":
        return _check_gguf(path)
    if (path / SEAL_NAME).is_file():
        with verified(path):
            known = read_seal(path)
        more = sorted(
            str(each.relative_to(path))
            for each in path.rglob("*")
            if each.is_file() and str(each.relative_to(path)) not in {*known, SEAL_NAME}
        )
        if more:
            raise CheckpointError(
                f"{path}: holds {more[0]!r}, which was not written by the export"
                f"{f', and {len(more) - 1} other such files' if len(more) > 1 else ''}: a program "
                f"may read it; move it away, or export again"
            )
        return f"as it was written, by {SEAL_NAME}"
    raise CheckpointError(
        f"{path}: neither a directory with {SEAL_NAME} nor a GGUF file: there is nothing to "
        f"compare it with; give what tercet export wrote"
    )


def _check_gguf(path: Path) -> str:
    header = read_gguf_header(path)
    if CHECKSUMS not in header.fields:
        raise CheckpointError(
            f"{path}: has no {CHECKSUMS}: written by another program, or damaged; there is nothing "
            f"to compare it with"
        )
    check_checksums(path, header)
    held = sorted((one.begin, one.begin + one.size_bytes) for one in header.tensors.values())
    ends = [header.data_begin, *(end for _, end in held)]
    begins = [*(begin for begin, _ in held), path.stat().st_size]
    with path.open("rb") as file:
        for end, begin in zip(ends, begins, strict=True):
            file.seek(end)
            if any(file.read(begin - end)):
                raise damage_error(path, f"bytes between tensors, from {end} on, are not 0")
    return f"as it was written, by {CHECKSUMS}"
