"""How the kernel of decode.cuh cuts up a product: plain arithmetic, no GPU."""

from dataclasses import dataclass

MOST_TOKENS = 16
# columns that may share a scale, where a row has several
GROUPS = (32, 64, 128, 256, 512, 1024)
_UNIT_BYTES, _STEP_COLUMNS, _ROWS = 512, 32, 16
_TILE = 8  # rows of x that one mma takes
_RING = 2048  # where the rings start: scales of x and barriers come first
_SLOT_PITCH, _SCALES_BYTES = 20, 64
_SHARED = 227 * 1024
_STAGES, _MOST_WARPS, _LEAST_WARPS = 2, 16, 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a product is cut up.

    Attributes:
        blocks: in the grid; each takes a run of row-blocks.
        warps: a block; they split K.
        stages: pieces of a row-block that a warp has under way.
        early: stages asked for before the kernel ahead has ended, where that is allowed.
        rehearse: whether to run the code once for nothing while the first weights come, so that
            it comes from memory with them.
    """

    blocks: int
    warps: int = 8
    stages: int = _STAGES
    early: int = _STAGES
    rehearse: bool = True


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What a warp fetches at once: `units` units of a row-block, with the scales of their groups.

    Attributes:
        units: of 512 bytes each.
        stage_bytes: in shared memory.
        row_bytes: of one row of x against it, in shared memory.
        sum_bytes: of the sums of x that zero points need, in shared memory.
        one_slot: whether the warps add to one sum: integers.
    """

    units: int
    stage_bytes: int
    row_bytes: int
    sum_bytes: int = 0
    one_slot: bool = False


def piece_of(
    m: int,
    bits: int,
    x_bytes: int,
    groups: int = 1,
    group_steps: int = 1,
    scale_bytes: int = 2,
    zeros: bool = False,
) -> Piece:
    """The piece of such a product; the same arithmetic as in decode_launch.cuh.

    Args:
        m: rows of x, at most 16.
        bits: of a code.
        x_bytes: of an element of x as it is multiplied.
        groups: scales a row of W.
        group_steps: columns a scale, where there are several, over 32; a power of two.
        scale_bytes: of one.
        zeros: whether each has a zero point.
    """
    steps, tiles = 8 // bits, -(-m // _TILE)
    # as many as leave registers for more than x
    units = 2 if steps * 2 * x_bytes * tiles > (15 if groups > 1 or zeros else 16) else 4
    stage_bytes = units * _UNIT_BYTES
    if groups > 1 or zeros:
        touched = min((units * steps - 1) // group_steps + 2, groups)
        stage_bytes += touched * _ROWS * scale_bytes * (2 if zeros else 1)
    return Piece(
        units=units,
        stage_bytes=-(-stage_bytes // 128) * 128,
        row_bytes=units * steps * _STEP_COLUMNS * x_bytes + 16,
        sum_bytes=units * steps * tiles * _TILE * 4 if zeros else 0,
        one_slot=x_bytes == 1 and groups == 1 and not zeros,
    )


def shared_bytes(m: int, row_blocks: int, plan: Plan, piece: Piece) -> int:
    """Shared memory of a block; the same arithmetic as `Places` in decode.cuh."""
    rows = -(-row_blocks // plan.blocks)
    warp = plan.stages * piece.stage_bytes + m * piece.row_bytes + piece.sum_bytes
    return _RING + plan.warps * warp + rows * _row_bytes(m, plan.warps, piece)


def _row_bytes(m: int, warps: int, piece: Piece) -> int:
    return (1 if piece.one_slot else warps) * m * _SLOT_PITCH * 4 + _SCALES_BYTES


def plan_for(m: int, row_blocks: int, units: int, piece: Piece, processors: int) -> Plan:
    """A block a multiprocessor, with a warp for each piece of a row-block, up to 16.

    Two stages: 32 to 64 KiB a multiprocessor keep the memory busy, and x and code, which come the
    same way, wait behind all that is asked for.

    Args:
        m: rows of x, at most 16.
        row_blocks, units: of W.
        piece: as `piece_of` has it.
        processors: multiprocessors of the GPU.
    """
    pieces = -(-units // piece.units)
    for most_warps in (_MOST_WARPS, _MOST_WARPS // 2):
        warps = min(most_warps, pieces)
        # several narrow blocks make up for one
        blocks = min(row_blocks, processors * max(1, _LEAST_WARPS // warps))
        plan = Plan(blocks=blocks, warps=warps, stages=_STAGES)
        room = _SHARED // max(1, _LEAST_WARPS // warps)
        if shared_bytes(m, row_blocks, plan, piece) <= room:
            return plan
    fixed = shared_bytes(m, 0, plan, piece)
    most = (room - fixed) // _row_bytes(m, plan.warps, piece)
    return Plan(blocks=-(-row_blocks // most), warps=plan.warps, stages=_STAGES)
