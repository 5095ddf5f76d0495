"""shard_of: which part of a weight vLLM gives a rank, from the shape that it makes room for."""

from tercet.errors import UnsupportedError
from tercet.formats.shard import Shard


def shard_of(
    shape: tuple[int, int], local: tuple[int, int], rank: int, ranks: int, module: str
) -> Shard:
    """The shard of W [N, K] that rank `rank` of `ranks` holds, of the shape `local`.

    Ranks share out rows or columns in order. Rows that are not enough for all are repeated: eight
    key heads on sixteen ranks give each head to two neighbours, as vLLM does.

    Raises:
        UnsupportedError: the weight cannot be shared out so.
    """
    (rows, columns), (local_rows, local_columns) = shape, local
    copies, left = divmod(local_rows * ranks, rows) if rows else (1, 0)
    fits = copies >= 1 and not left and ranks % copies == 0
    if not fits or local_columns not in (columns, columns // ranks) or columns % local_columns:
        raise UnsupportedError(
            f"{module}: a weight {list(shape)} cannot be shared out over {ranks} ranks as "
            f"{list(local)} each: choose a tensor-parallel size that divides its heads and columns"
        )
    first_row = rank // copies * local_rows
    first_column = rank * local_columns if local_columns < columns else 0
    return Shard(
        first_row=first_row,
        end_row=first_row + local_rows,
        first_column=first_column,
        end_column=first_column + local_columns,
    )
