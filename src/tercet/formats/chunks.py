"""Chunks: rows are worked on some at a time, to bound what is held beside the result."""

from tercet.formats.dispatch_mode import in_dispatch_mode


def chunk_rows(rows: int, most: int) -> list[slice]:
    """[0, rows) cut into slices of `most` rows.

    One slice inside a dispatch mode: torch's fake tensors take no memory, and each operation on
    them costs as much as on a large real one.
    """
    step = max(rows, 1) if in_dispatch_mode() else most
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]
