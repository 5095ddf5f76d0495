"""How experts of few rows are tiled on Hopper: plain arithmetic, no GPU."""

import math
from collections.abc import Mapping
from functools import lru_cache

from tercet.ops.grouped_linear_packed.hopper_prefill.plan import FEW
from tercet.ops.grouped_linear_packed.task import Cut
from tercet.ops.grouped_linear_packed.triton import token_tiles
from tercet.packed_weight.expert_weights import expert_blocks

# rows of an expert, on average: above them tiles of 48 (and up to FEW kernel_few.cuh)
_MANY = 26
# of experts_few: bytes of x, and others; blocks of a multiprocessor, least and most where all run
# at once; row-blocks of W of a block where not all do, and most where they do, as kernel_few.cuh
_FEW_X, _OUT, _RESIDENT, _PART_BLOCKS, _MOST_BLOCKS = 64 * 1024, 4096, (4, 5), 24, 32
_SHARED, _OF_BLOCK = 228 * 1024, 1024  # bytes of a multiprocessor; of each block, its own
_CROWD = 0.02  # what another block of a multiprocessor costs, as measured on an H200
_AHEAD = 2048  # bytes of a row-block that are asked for before the offsets are known


def cut_for(sizes: Mapping[str, int], x_bytes: int, bits: int, processors: int) -> Cut:
    """Tiles that hold the rows of most experts; for few rows, blocks that all run at once.

    Args:
        sizes: T rows of x, E experts, W [N, K] of each.
        x_bytes: of an element of x as it is multiplied.
        bits: of a code.
        processors: multiprocessors of the GPU.
    """
    axes = sizes["T"], sizes["E"], sizes["N"], sizes["K"]
    return _cut_for(axes, x_bytes, bits, processors)


@lru_cache(maxsize=4096)
def _cut_for(axes: tuple[int, ...], x_bytes: int, bits: int, processors: int) -> Cut:
    sizes = dict(zip("TENK", axes, strict=True))
    each, row = sizes["T"] / sizes["E"], sizes["K"] * x_bytes
    if each > FEW or row > 3 * _FEW_X:
        rows = 48 if each > _MANY else 32
        return Cut(bits=bits, rows=rows, most_tiles=token_tiles(sizes, rows))
    rows = max(1, min(8, _FEW_X // row))
    fit = max(1, min(_RESIDENT[1], (_SHARED - _OF_BLOCK) // (rows * row + _OUT)))
    resident = residents(sizes["E"], each, expert_blocks(sizes["N"]), fit, processors)
    return Cut(
        bits=bits,
        rows=rows,
        most_tiles=token_tiles(sizes, rows),
        slice_blocks=0 if resident else _PART_BLOCKS,
        slots=(resident or fit) * processors,
        shared=0 if resident in (0, fit) else _SHARED // (resident + 1) - _OF_BLOCK + 16,
        ahead=_ahead(sizes["K"], bits) if resident and each >= 1 and x_bytes == 1 else 0,
    )


def residents(experts: int, each: float, blocks: int, fit: int, processors: int) -> int:
    """Blocks a multiprocessor that give it the fewest row-blocks; 0 if not all run at once.

    Args:
        experts: of the layer.
        each: rows of an expert on average, if all are as likely.
        blocks: row-blocks of an expert.
        fit: blocks of a multiprocessor that there is room for.
        processors: multiprocessors.
    """
    none = math.exp(-each)  # of an expert to have no rows
    spread = math.sqrt(max(0.0, experts * none * (1.0 - none * (1.0 + each))))
    used = [max(1.0, experts * (1.0 - none) + by * spread) for by in (-1.0, 0.0, 1.0)]
    if used[1] * -(-blocks // _MOST_BLOCKS) > fit * processors:
        return 0

    def cost(resident: int) -> float:
        parts = (max(1, int(resident * processors / tiles)) for tiles in used)
        return sum(-(-blocks // part) for part in parts) * resident * (1.0 + _CROWD * resident)

    return min(range(min(_RESIDENT[0], fit), fit + 1), key=cost)


def _ahead(columns: int, bits: int) -> int:
    """Bytes to ask for ahead: of a row-block, 16 a lane and unit."""
    return min(_AHEAD, -(-columns * bits // 256) * 512)
