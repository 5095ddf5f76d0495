"""Fragment levels: a tile of a weight in fragments as levels, in Triton; exact for every element.

A tile is [BN, BK] of W, of BN / 16 whole blocks of 16 rows. `whole_steps` loads words as they lie,
16 bytes a thread, and moves them in registers to where their rows and columns belong;
`any_columns` gathers each code by itself, for columns that start anywhere in a unit.
"""

import triton
import triton.language as tl

INTEGER, E4M3, E5M2, TERNARY = (tl.constexpr(kind) for kind in (0, 1, 2, 4))
KINDS = {"fp8_e4m3": 1, "fp8_e5m2": 2, "fp4_e2m1": 3, "ternary": 4}
# how whole_steps may give levels: as they are; as int8, 2^(8 - BITS) times as large; ternary ones
# as the upper half of a float16 or bfloat16, twice as large
PLAIN, OCTETS, HALVES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
STEP = 32


@triton.jit
def _half(bits):
    """The float16 of the low 16 bits, as float32."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def level(words, shift, BITS: tl.constexpr, KIND: tl.constexpr):
    """The level of the code at that bit of each word: int32 for integers, else float32; exact.

    A small float is a float16 with fewer bits: subnormals and all, up to a power of two.
    """
    code = (words >> shift) & ((1 << BITS) - 1)
    if KIND == INTEGER or KIND == TERNARY:  # noqa: SIM109 Triton has no tuple to look in
        found = (words << (32 - BITS - shift)) >> (32 - BITS)
    elif KIND == E4M3:
        found = _half(((code & 0x80) << 8) | ((code & 0x7F) << 7)) * 256.0
    elif KIND == E5M2:
        found = _half(code << 8)
    else:
        found = _half(((code & 8) << 12) | ((code & 7) << 9)) * 16384.0
    return found


@triton.jit
def whole_steps(
    block_ptr, k, inside, units, BITS: tl.constexpr, KIND: tl.constexpr, FORM: tl.constexpr,
    DOT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Levels [BN, BK] from column k on, a multiple of 32 and of BK up to a unit.

    block_ptr [BN / 16] points to the first word of each block of rows; `inside` [BN / 16] says
    which to read, `units` how many a row has. FORM is OCTETS or HALVES (of DOT) where a shift and a
    mask of a word give four or two levels at once, else PLAIN.
    """
    UNIT: tl.constexpr = 256 // BITS
    EACH: tl.constexpr = BK // UNIT if BK > UNIT else 1
    FIELDS: tl.constexpr = (BK if BK < UNIT else UNIT) // 32
    unit = (k // UNIT + tl.arange(0, EACH))[:, None]
    some = inside[:, None, None]
    if BK > 128:  # rows are padded to 128 columns: of more, the last may belong to the next block
        some &= (unit < units)[None, :, :]
    word = unit * 128 + tl.arange(0, 128)[None, :]
    words = tl.load(block_ptr[:, None, None] + word[None, :, :], some, 0)
    # [block, unit, l / 4, l % 4, i / 2, i % 2] to row (block, i % 2, l / 4), columns the rest
    words = tl.reshape(words, (BN // 16, EACH, 8, 4, 2, 2))
    words = tl.reshape(tl.permute(words, (0, 5, 2, 1, 4, 3)), (BN, EACH, 8))
    at = k % UNIT // 32 * BITS if BK < UNIT else 0
    levels = _field(words, at, BITS, KIND, FORM, DOT)
    if FIELDS == 2:
        other = _field(words, at + BITS, BITS, KIND, FORM, DOT)
        levels = tl.permute(tl.join(levels, other), (0, 1, 5, 2, 3, 4))
    if FIELDS == 4:
        even = tl.join(levels, _field(words, at + 2 * BITS, BITS, KIND, FORM, DOT))
        other = _field(words, at + BITS, BITS, KIND, FORM, DOT)
        odd = tl.join(other, _field(words, at + 3 * BITS, BITS, KIND, FORM, DOT))
        levels = tl.permute(tl.join(even, odd), (0, 1, 5, 6, 2, 3, 4))
    return tl.reshape(levels, (BN, BK))


@triton.jit
def _field(
    words, at, BITS: tl.constexpr, KIND: tl.constexpr, FORM: tl.constexpr, DOT: tl.constexpr
):
    """Levels [..., 2, 2] of the codes at that bit of a word's four bytes, held by one thread.

    Joined, not broadcast: so a thread holds four columns that follow one another, and they go to
    the tensor cores as they are. Broadcast, each went through shared memory by itself.
    """
    if FORM == OCTETS:
        MASK: tl.constexpr = (256 - (1 << (8 - BITS))) * 0x01010101 - (1 << 32)
        four = (words << (8 - BITS - at)) & MASK
        even = tl.join(four.to(tl.int8), (four >> 16).to(tl.int8))
        odd = tl.join((four >> 8).to(tl.int8), (four >> 24).to(tl.int8))
    elif FORM == HALVES:
        # 01 and 11 at the top of 16 bits are 2.0 and -2.0, in float16 and in bfloat16
        low = (words << (14 - at)) & -0x3FFF4000
        high = (words << (6 - at)) & -0x3FFF4000
        even = tl.join(low.to(tl.int16), (low >> 16).to(tl.int16)).to(DOT, bitcast=True)
        odd = tl.join(high.to(tl.int16), (high >> 16).to(tl.int16)).to(DOT, bitcast=True)
    else:
        even = tl.join(level(words, at, BITS, KIND), level(words, at + 16, BITS, KIND))
        odd = tl.join(level(words, at + 8, BITS, KIND), level(words, at + 24, BITS, KIND))
    return tl.join(even, odd)


@triton.jit
def any_columns(row_ptr, columns, inside, BITS: tl.constexpr, KIND: tl.constexpr):
    """Levels [BN, BK] of columns [BK] that start anywhere.

    row_ptr [BN, 1] points to the first word of each row in its block.
    """
    UNIT: tl.constexpr = 256 // BITS
    word = columns // UNIT * 128 + columns % 16 // 4 * 4 + columns % 32 // 16 * 2
    words = tl.load(row_ptr + word[None, :], inside, 0)
    shift = columns % UNIT // 32 * BITS + columns % 4 * 8
    return level(words, shift[None, :], BITS, KIND)


def step_columns(group: int, columns: int, most: int) -> int:
    """Columns at once: a power of two from 32 on that divides the group, or 32."""
    if group >= columns:
        return min(most, max(STEP, triton.next_power_of_2(columns)))
    step = STEP
    while step < most and group % (2 * step) == 0:
        step *= 2
    return step
