"""The error of an id that is no row of the table."""

from tercet.errors import UnsupportedError


def out_of_range(value: int, index: int, rows: int) -> UnsupportedError:
    """Says which id is wrong and what is allowed."""
    return UnsupportedError(
        f"embedding_packed: id {value} at position {index} is no row of the table: "
        f"ids must be from 0 to {rows - 1}; check that tokenizer and model belong together"
    )
