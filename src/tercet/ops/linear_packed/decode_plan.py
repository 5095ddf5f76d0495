"""How the kernel of decode.cuh cuts up a product: plain arithmetic, no GPU."""

from dataclasses import dataclass

MOST_TOKENS = 16
# columns that may share a scale, where a row has several
GROUPS = (32, 64, 128, 256, 512, 1024)
_UNIT_BYTES, _STEP_COLUMNS, _ROWS = 512, 32, 16
_TILE = 8  # rows of x that one mma takes
_RING = 2048  # where the rings start: scales of x and barriers come first
_SLOT_PITCH, _SCALES_BYTES = 20, 64
_MULTIPROCESSOR, _RESERVED = 228 * 1024, 1024
_WARPS, _STAGES, _LEAST_STAGES = 8, 6, 2


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a product is cut up.

    Attributes:
        blocks: in the grid; each takes a run of row-blocks.
        warps: a block; they split K.
        stages: pieces of a row-block that a warp has under way.
        pieces: units a piece; 0 is the usual.
        early: stages asked for before the kernel ahead has ended, where that is allowed.
        rehearse: whether to run the code once for nothing while the first weights come, so that
            it comes from memory with them.
    """

    blocks: int
    warps: int = _WARPS
    stages: int = _STAGES
    pieces: int = 0
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
    """The usual piece; the same arithmetic as in decode_launch.cuh.

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
    """Eight warps a multiprocessor, in half of its shared memory if they fit.

    The other half is for the kernel after: launched early, it fetches weights while this one ends.

    Args:
        m: rows of x, at most 16.
        row_blocks, units: of W.
        piece: as `piece_of` has it.
        processors: multiprocessors of the GPU.
    """
    warps = min(_WARPS, -(-units // piece.units))
    blocks = min(row_blocks, processors * (_WARPS // warps))
    for room in (_MULTIPROCESSOR // 2 - _RESERVED, _MULTIPROCESSOR - _RESERVED):
        for stages in range(_STAGES, _LEAST_STAGES - 1, -1):
            plan = Plan(blocks=blocks, warps=warps, stages=stages)
            if shared_bytes(m, row_blocks, plan, piece) <= room // (_WARPS // warps):
                return plan
    fixed = shared_bytes(m, 0, Plan(blocks=1, warps=warps, stages=_LEAST_STAGES), piece)
    most = (_MULTIPROCESSOR - _RESERVED - fixed) // _row_bytes(m, warps, piece)
    return Plan(blocks=-(-row_blocks // most), warps=warps, stages=_LEAST_STAGES)
