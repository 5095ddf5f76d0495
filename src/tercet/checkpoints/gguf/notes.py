"""What Tercet notes in the metadata of a GGUF file that it writes; other programs skip the keys.

tercet.formats      JSON: module -> scheme name, so that an import restores the very bytes
tercet.rotation     JSON: config.json's rope_parameters, where the file has only the numbers that
                    follow from them; it counts as long as those numbers do
tercet.checksums    CRC-32 in 8 hex digits each: of the header with this text all "0", then
                    of each tensor's bytes, in the file's order
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tercet.checkpoints.gguf.header import GgufHeader, Value, damage_error

FORMATS = "tercet.formats"
ROTATION = "tercet.rotation"
CHECKSUMS = "tercet.checksums"
DIGITS = 8
_CHUNK_BYTES = 1 << 20


def crc32(chunks: Iterable[bytes]) -> str:
    """CRC-32 of the chunks one after the other, as DIGITS hex digits."""
    found = 0
    for chunk in chunks:
        found = zlib.crc32(chunk, found)
    return f"{found:0{DIGITS}x}"


def noted_formats(path: Path, header: GgufHeader) -> dict[str, str]:
    """Scheme names by module; {} in a file of another program."""
    return _read_note(path, header.fields, FORMATS)


def noted_rotation(path: Path, fields: Mapping[str, Value]) -> dict[str, Any]:
    """rope_parameters; {} where none are noted."""
    return _read_note(path, fields, ROTATION)


def _read_note(path: Path, fields: Mapping[str, Value], key: str) -> dict[str, Any]:
    try:
        return dict(json.loads(str(fields.get(key, "{}"))))
    except (TypeError, ValueError) as error:
        raise damage_error(path, f"its {key} cannot be read ({error})") from error


def check_checksums(path: Path, header: GgufHeader) -> None:
    """CheckpointError, naming the tensor, where the file's bytes are not those that were written.

    Does nothing to a file of another program, which has no checksums.
    """
    if CHECKSUMS not in header.fields:
        if FORMATS in header.fields:
            raise damage_error(path, f"it has {FORMATS}, but no {CHECKSUMS}")
        return
    text = str(header.fields[CHECKSUMS])
    checksums = [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]
    if len(checksums) != 1 + len(header.tensors):
        raise damage_error(
            path, f"{len(checksums)} checksums for the header and {len(header.tensors)} tensors"
        )
    with path.open("rb") as file:
        head = file.read(header.data_begin).replace(text.encode(), b"0" * len(text), 1)
    if crc32([head]) != checksums[0]:
        raise damage_error(path, "the checksum of its header does not match: a byte was changed")
    for (name, tensor), expected in zip(header.tensors.items(), checksums[1:], strict=True):
        if crc32(_read_chunks(path, tensor.begin, tensor.size_bytes)) != expected:
            raise damage_error(path, f"the checksum of tensor {name!r} does not match")


def join_checksums(checksums: Sequence[str]) -> bytes:
    """The text of the note."""
    return "".join(checksums).encode()


def _read_chunks(path: Path, begin: int, size: int) -> Iterable[bytes]:
    with path.open("rb") as file:
        file.seek(begin)
        while size:
            chunk = file.read(min(size, _CHUNK_BYTES))
            if not chunk:
                raise damage_error(path, "it became shorter while it was read")
            size -= len(chunk)
            yield chunk
