"""Two kernels of the decoder: attention of a new token in each text, and a draw from its scores."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_KEYS, _BLOCK_SCORES = 64, 1024
_LEAST_ROWS = tl.constexpr(16)
"""Of a product on tensor cores."""


@triton.jit(do_not_specialize=["place", "texts"])
def _attend(
    given_ptr, room_ptr, turn_ptr, out_ptr, place, length, texts, scale,
    GROUPS: tl.constexpr, SHARING: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The heads of one text that share keys: rotates, keeps key and value, attends."""
    text, group = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS
    columns = tl.arange(0, WIDTH)
    partner = (columns + WIDTH // 2) % WIDTH
    rows = tl.arange(0, _LEAST_ROWS)
    heads: tl.constexpr = GROUPS * SHARING
    given_ptr += text.to(tl.int64) * (heads + 2 * GROUPS) * WIDTH
    cosine = tl.load(turn_ptr + place * WIDTH + columns)
    sine = tl.load(turn_ptr + (length + place) * WIDTH + columns)
    at = (group * SHARING + rows)[:, None] * WIDTH
    there = (rows < SHARING)[:, None]
    query = tl.load(given_ptr + at + columns[None, :], there, 0.0) * cosine[None, :]
    query += tl.load(given_ptr + at + partner[None, :], there, 0.0) * sine[None, :]
    dtype = room_ptr.dtype.element_ty
    query = query.to(dtype)
    at = (heads + group) * WIDTH
    key = tl.load(given_ptr + at + columns) * cosine + tl.load(given_ptr + at + partner) * sine
    key = key.to(dtype)
    value = tl.load(given_ptr + at + GROUPS * WIDTH + columns)
    keys_ptr = room_ptr + (text.to(tl.int64) * GROUPS + group) * length * WIDTH
    values_ptr = keys_ptr + texts.to(tl.int64) * GROUPS * length * WIDTH
    tl.store(keys_ptr + place * WIDTH + columns, key)
    tl.store(values_ptr + place * WIDTH + columns, value)
    # the new token itself comes first: it is in registers
    top = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
    total = tl.full((_LEAST_ROWS,), 1.0, tl.float32)
    found = tl.zeros((_LEAST_ROWS, WIDTH), tl.float32) + value.to(tl.float32)[None, :]
    for first in range(0, place, BLOCK):
        others = first + tl.arange(0, BLOCK)
        inside = others < place
        cells = others[:, None] * WIDTH + columns[None, :]
        keys = tl.load(keys_ptr + cells, inside[:, None], 0.0)
        values = tl.load(values_ptr + cells, inside[:, None], 0.0)
        scores = tl.dot(query, tl.trans(keys)) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        now = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - now[:, None])
        less = tl.exp(top - now)
        total = total * less + tl.sum(weights, 1)
        found = found * less[:, None] + tl.dot(weights.to(dtype), values)
        top = now
    out_ptr += text.to(tl.int64) * heads * WIDTH
    at = (group * SHARING + rows)[:, None] * WIDTH + columns[None, :]
    tl.store(out_ptr + at, (found / total[:, None]).to(out_ptr.dtype.element_ty), there)


def attend(given: Tensor, room: Tensor, turn: Tensor, place: int, heads: int) -> Tensor:
    """What the heads of each text's new token find, [B, heads D].

    Args:
        given: [B, (heads + 2 G) D], queries, keys and values of the new token, not yet rotated.
        room: [2, B, G, T, D], keys and values of the tokens before; the new one's are added.
        turn: float32 [2, T, D], cosines, and sines that are negative in the first half.
        place: of the new token.
        heads: of queries.
    """
    _, texts, groups, length, width = room.shape
    out = given.new_empty(texts, heads * width)
    _attend[(texts * groups,)](
        given, room, turn, out, place, length, texts, width**-0.5,
        GROUPS=groups, SHARING=heads // groups, WIDTH=width, BLOCK=_BLOCK_KEYS, num_warps=2,
    )  # fmt: skip
    return out


@triton.jit
def _noise(uniform):
    """Numbers whose largest, added to logarithms, is where a draw of those probabilities falls."""
    return -tl.log(-tl.log(uniform))


@triton.jit(do_not_specialize=["seed"])
def _draw(scores_ptr, heat_ptr, out_ptr, seed, vocabulary, BLOCK: tl.constexpr):
    """One text's next token."""
    text = tl.program_id(0)
    scores_ptr += text.to(tl.int64) * vocabulary
    cooler = 1.0 / tl.load(heat_ptr + text)
    # a call makes four random numbers: for as many quarters of the vocabulary
    quarter = (vocabulary + 3) // 4
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    which = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, quarter, BLOCK):
        at = first + tl.arange(0, BLOCK)
        a, b, c, d = tl.rand4x(seed, text * quarter + at)
        most, which = _better(scores_ptr, cooler, at, 0, quarter, vocabulary, a, most, which)
        most, which = _better(scores_ptr, cooler, at, 1, quarter, vocabulary, b, most, which)
        most, which = _better(scores_ptr, cooler, at, 2, quarter, vocabulary, c, most, which)
        most, which = _better(scores_ptr, cooler, at, 3, quarter, vocabulary, d, most, which)
    best = tl.max(most, 0)
    tl.store(out_ptr + text, tl.min(tl.where(most == best, which, vocabulary), 0).to(tl.int64))


@triton.jit
def _better(scores_ptr, cooler, at, part, quarter, vocabulary, uniform, most, which):
    """The better of what was found and what lies in this quarter."""
    token = part * quarter + at
    inside = (at < quarter) & (token < vocabulary)
    score = tl.load(scores_ptr + token, inside, float("-inf")).to(tl.float32)
    noisy = score * cooler + _noise(uniform)
    # never what is outside, nor noise of -inf
    more = inside & (noisy > most)
    return tl.where(more, noisy, most), tl.where(more, token, which)


def draw(scores: Tensor, heat: Tensor, seed: int) -> Tensor:
    """Tokens int64 [B] with probabilities softmax(scores / heat).

    Args:
        scores: [B, V].
        heat: float32 [B], temperatures.
        seed: another for every draw.
    """
    out = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
    block = min(_BLOCK_SCORES, triton.next_power_of_2(scores.shape[1]))
    _draw[(len(scores),)](scores, heat, out, seed, scores.shape[1], BLOCK=block, num_warps=4)
    return out
