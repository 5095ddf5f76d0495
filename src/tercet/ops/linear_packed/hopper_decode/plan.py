"""How the kernel of kernel.cuh divides a product: plain arithmetic, no GPU."""

from dataclasses import dataclass
from functools import cache

from tercet.errors import UnsupportedError

MOST_TOKENS = 16
# columns that may share a scale, where a row has several
GROUPS = (32, 64, 128, 256, 512, 1024)
_STEP_COLUMNS, _ROWS = 32, 16
_TILE = 8  # rows of x that one mma takes
# tokens that blocks can quantize for themselves
MOST_QUANTIZED = _TILE
PIECE_UNITS = 4  # of a row-block
# the longest rows of 16-bit floats of which 16 fit the shared memory of eight blocks
MOST_COLUMNS = 53248
_SLOT_PITCH = 20
_DIGITS = 4
# tokens whose digits are at most the rows of x that one mma takes
DIGIT_TOKENS = _TILE // _DIGITS
_SHARED = 227 * 1024
_MOST_WARPS = 16
_UNIT_BYTES, _PIECES = 512, 2  # of codes; pieces that a warp has in flight
# x that a block takes without splitting K with another: so much, or a part of its weights; and
# where TMA multicasts it
_SMALL_X, _PART_OF_WEIGHTS, _MOST_SENT = 64 * 1024, 3, 128 * 1024
# a block's weights for each byte of x, up to which two blocks have x sent to them together; eight
# tokens and more always
_FEW_WEIGHTS = 4
# weights of a multiprocessor up to which a single token is quicker with two small blocks, and the x
# that each of them may have
_SMALL_WEIGHTS, _X_OF_TWO = 128 * 1024, 32 * 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a product is divided among blocks and warps.

    Attributes:
        clusters: of blocks in the grid; each takes a run of row-blocks.
        cluster_size: blocks of a cluster, 1, 2, 4 or 8; they split K.
        warps_k: warps of a block that split its part of K.
        warps_n: as many such rows of warps; they take row-blocks round robin. 16 warps in all.
        multicast: so many neighbouring clusters form one, whose blocks receive their part of x by
            TMA multicast; 0: the threads of each block copy it.
    """

    clusters: int
    cluster_size: int
    warps_k: int
    warps_n: int
    multicast: int = 0

    def warp_units(self, units: int) -> int:
        """Units of a row-block that a warp takes: whole pieces."""
        return -(-units // (self.cluster_size * self.warps_k * PIECE_UNITS)) * PIECE_UNITS


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes of shared memory that a product takes.

    Attributes:
        x: of a unit, for one row of x, as it is multiplied.
        rows: that a row of x is multiplied as: its digits.
        sums: of a unit, for the sums of x that zero points need, or the steps of digits.
        scales: of a warp, for scales and zero points of groups.
    """

    x: int
    rows: int = 1
    sums: int = 0
    scales: int = 0


def in_digits(m: int, row_blocks: int, processors: int) -> bool:
    """Whether 16-bit floats are multiplied as int8 digits, where W has no zero points."""
    # of one row-block a multiprocessor, making digits costs what it saves
    return m <= DIGIT_TOKENS and row_blocks > processors


def needs_of(
    m: int,
    bits: int,
    x_bytes: int,
    groups: int = 1,
    group_steps: int = 1,
    zeros: bool = False,
    digits: bool = False,
) -> Needs:
    """What such a product needs; the same arithmetic as `Pace` in kernel.cuh.

    Args:
        m: rows of x, at most 16.
        bits: of a code.
        x_bytes: of an element of x as it is multiplied.
        groups: scales a row of W.
        group_steps: columns a scale, where there are several, over 32; a power of two.
        zeros: whether each has a zero point.
        digits: whether 16-bit floats are multiplied as int8 digits; then x_bytes is 1.
    """
    steps, tiles = 8 // bits, -(-m // _TILE)
    runs = steps if zeros else -(-steps // group_steps)
    scales = PIECE_UNITS * runs * _ROWS * 4 if groups > 1 or zeros else 0
    if digits:
        return Needs(x=256 // bits, rows=_DIGITS, sums=2 * 4 // PIECE_UNITS, scales=scales)
    return Needs(
        x=steps * _STEP_COLUMNS * x_bytes,
        sums=steps * tiles * _TILE * 4 if zeros else 0,
        scales=scales * (2 if zeros else 1),
    )


def shared_bytes(m: int, row_blocks: int, units: int, plan: Plan, needs: Needs) -> int:
    """Shared memory of a block; the same arithmetic as `places_of` in launch.cuh."""
    rows = -(-row_blocks // plan.clusters)
    here = plan.warps_k * plan.warp_units(units)
    x = m * needs.rows * (here * needs.x + 16) + here * needs.sums
    slots = rows * plan.warps_k * m * _SLOT_PITCH * 4
    return 128 + -(-rows * 64 // 128) * 128 + x + slots + plan.warps_k * plan.warps_n * needs.scales


@cache
def plan_for(
    m: int, row_blocks: int, units: int, needs: Needs, processors: int, *, sent: bool = False
) -> Plan:
    """A block a multiprocessor, or two small ones for a single token, with two pieces a warp.

    Blocks share K where each would need more of x than it has time to load, four and eight only
    where less does not fit.

    Args:
        m: rows of x, at most 16.
        row_blocks, units: of W.
        needs: as `needs_of` has it.
        processors: multiprocessors of the GPU.
        sent: whether TMA can load x.
    """
    pieces = -(-units // PIECE_UNITS)
    weights = row_blocks * units * _UNIT_BYTES
    x = m * needs.rows * units * needs.x
    most_x = max(_SMALL_X, min(_MOST_SENT, weights // processors // _PART_OF_WEIGHTS))
    if sent:
        most_x = _MOST_SENT
    small = weights <= processors * _SMALL_WEIGHTS and x <= _X_OF_TWO
    per = 2 if m == 1 and small and 2 * row_blocks * pieces >= 3 * _MOST_WARPS * processors else 1
    rounds = 1
    while rounds <= row_blocks:
        for cluster_size in (1, 2, 4, 8):
            if cluster_size == 1 and pieces > 1 and x > most_x:
                continue
            # clusters of four and more leave some multiprocessors over
            blocks = rounds * per * (processors if cluster_size < 4 else processors * 9 // 10)
            clusters = min(row_blocks, max(1, blocks // cluster_size))
            long = m >= _TILE or weights <= _FEW_WEIGHTS * x * clusters
            rows = -(-row_blocks // clusters)
            for warps_k, warps_n in _warp_grids(
                m, -(-pieces // cluster_size), rows, _MOST_WARPS // per
            ):
                together = cluster_size == per == 1 and not clusters % 2 and long
                plan = Plan(
                    clusters=clusters,
                    cluster_size=cluster_size,
                    warps_k=warps_k,
                    warps_n=warps_n,
                    multicast=1 + together if sent else 0,
                )
                if shared_bytes(m, row_blocks, units, plan, needs) <= _SHARED:
                    return plan
        rounds *= 2
    raise UnsupportedError(
        f"decode: {m} tokens against {units} units of {needs.x} bytes of x do not fit the shared "
        f"memory: at most {MOST_COLUMNS} columns are taken"
    )


def _warp_grids(m: int, share: int, rows: int, most_warps: int) -> list[tuple[int, int]]:
    """(warps_k, warps_n) to go over `rows` row-blocks of `share` pieces, the shortest first.

    Of those that are equally short the first wastes least; then it has some eight warps along K for
    a single token, whose sums are soon added, and few for more.
    """
    found = list[tuple[int, int, int, int, int]]()
    many = _MOST_WARPS // 2
    most = min(most_warps, max(many, share * rows // _PIECES))
    for warps_n in (1, 2, 4, 8, 16):
        for warps_k in range(1, min(share, most // warps_n) + 1):
            each = -(-share // warps_k)
            if -(-share // each) == warps_k and warps_n <= rows:
                length, waste = each * -(-rows // warps_n), each * warps_k - share
                found.append(
                    (length, waste, abs(warps_k - many) if m == 1 else warps_k, warps_k, warps_n)
                )
    return [(warps_k, warps_n) for *_, warps_k, warps_n in sorted(found)]
