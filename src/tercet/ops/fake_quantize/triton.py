"""fake_quantize in Triton: every byte moves once; a block that shares a scale lies in registers.

A segment is what shares a scale within a row: the row, or a group of its columns. Scales that are
found (absmean, absmax) need a segment twice: up to HELD columns it is held in registers, a longer
one is walked twice, the second time out of the L2 cache. A scale of the whole tensor takes a pass
of its own over W. Learned steps are there from the start: one walk. Backward walks too, and adds up
the gradient of the step while it writes that of the weight.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.random_uniform import uniform
from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.launch import as_rows
from tercet.kernel.tuned import configuration
from tercet.ops.fake_quantize.rule import Rule, rule_of
from tercet.ops.fake_quantize.weight_levels import (
    bounded_ratio,
    divided,
    largest_scale,
    level_of,
    mean_scale,
    rounded,
)
from tercet.packed_weight.triton.row_quantizer import absolute_bits

_HELD = 16384
_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def _positions(segments, groups, K, WIDTH, ROWS: tl.constexpr):
    """Of this program's segments [ROWS]: index, row, first column, columns, whether they exist."""
    segment = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = segment // groups
    first = (segment - row * groups) * WIDTH
    return segment, row, first, tl.minimum(K - first, WIDTH), segment < segments


@triton.jit
def _write(
    w, scale, row, columns, inside, seed_ptr, fake_ptr, codes_ptr, K,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, SHIFT: tl.constexpr, RANDOM: tl.constexpr,
    FAKE: tl.constexpr,
):  # fmt: skip
    """Codes and values of w [ROWS, BLOCK] in columns [ROWS, BLOCK] of each row [ROWS]."""
    ratio = bounded_ratio(w, scale)
    number = ratio
    if RANDOM:
        first = tl.min(columns, 1)
        number = uniform(tl.load(seed_ptr), row, first, tl.cdiv(K, 4), w.shape[1])
    units, level = level_of(ratio, number, LOWEST, HIGHEST, SHIFT, RANDOM)
    broken = w != w
    units = tl.where(broken, 0, units)
    if SHIFT != 0.0:
        units = 2 * units + 1
    at = row[:, None] * K + columns
    tl.store(codes_ptr + at, units.to(tl.int8), inside)
    if FAKE:
        # w is NaN there; a global NaN would be unequal to itself, and Triton would see it changed
        value = tl.where(broken, w, (level + SHIFT) * scale[:, None])
        tl.store(fake_ptr + at, value, inside)


@triton.jit
def _held(
    w_ptr, seed_ptr, fake_ptr, codes_ptr, scale_ptr,
    segments, groups, K, w_stride, WIDTH,
    MEAN: tl.constexpr, DIVISOR: tl.constexpr, SCALE: tl.constexpr,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, RANDOM: tl.constexpr, FAKE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scales that are found, of segments of up to BLOCK columns."""
    segment, row, first, count, there = _positions(segments, groups, K, WIDTH, ROWS)
    within = tl.arange(0, BLOCK)[None, :]
    columns = first[:, None] + within
    inside = there[:, None] & (within < count[:, None])
    w = tl.load(w_ptr + row[:, None] * w_stride + columns, inside, 0.0).to(tl.float32)
    if MEAN:
        total = tl.sum(tl.abs(w).to(tl.float64), 1)
        scale = rounded(mean_scale(total, count, DIVISOR), SCALE)
    else:
        scale = rounded(largest_scale(tl.max(absolute_bits(w), 1), DIVISOR), SCALE)
    tl.store(scale_ptr + segment, scale, there)
    _write(
        w, scale, row, columns, inside, seed_ptr, fake_ptr, codes_ptr, K,
        LOWEST, HIGHEST, 0.0, RANDOM, FAKE,
    )  # fmt: skip


@triton.jit
def _statistic(
    w_ptr, row, first, count, there, w_stride, WIDTH,
    MEAN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of |w| (float64) or largest bit patterns [ROWS] of segments of any length."""
    sums = tl.zeros((ROWS, BLOCK), tl.float64 if MEAN else tl.int32)
    for start in range(0, WIDTH, BLOCK):
        within = start + tl.arange(0, BLOCK)[None, :]
        inside = there[:, None] & (within < count[:, None])
        at = row[:, None] * w_stride + first[:, None] + within
        w = tl.load(w_ptr + at, inside, 0.0).to(tl.float32)
        if MEAN:
            sums += tl.abs(w).to(tl.float64)
        else:
            sums = tl.maximum(sums, absolute_bits(w))
    return tl.sum(sums, 1) if MEAN else tl.max(sums, 1)


@triton.jit
def _parts(
    w_ptr, part_ptr, segments, groups, K, w_stride, WIDTH,
    MEAN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The statistic of each row, for the scale of the whole tensor."""
    segment, row, first, count, there = _positions(segments, groups, K, WIDTH, ROWS)
    part = _statistic(w_ptr, row, first, count, there, w_stride, WIDTH, MEAN, ROWS, BLOCK)
    tl.store(part_ptr + segment, part, there)


@triton.jit
def _joined(
    part_ptr, scale_ptr, parts, count,
    MEAN: tl.constexpr, DIVISOR: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The one scale of a tensor of `count` weights from its rows' parts; one program."""
    sums = tl.zeros((1, BLOCK), tl.float64 if MEAN else tl.int32)
    for start in range(0, parts, BLOCK):
        at = start + tl.arange(0, BLOCK)[None, :]
        part = tl.load(part_ptr + at, at < parts, 0)
        sums = sums + part if MEAN else tl.maximum(sums, part)
    if MEAN:
        scale = mean_scale(tl.sum(sums, 1), tl.zeros((1,), tl.int64) + count, DIVISOR)
    else:
        scale = largest_scale(tl.max(sums, 1), DIVISOR)
    tl.store(scale_ptr + tl.arange(0, 1), rounded(scale, SCALE))


@triton.jit
def _step_of(
    step_ptr, segment, there, DIVISOR: tl.constexpr, SCALE: tl.constexpr, ONE: tl.constexpr
):
    """Scales [ROWS] from steps (or from scales, where the divisor is 1); 1 where there is none."""
    step = tl.load(step_ptr + (segment * 0 if ONE else segment), there, DIVISOR)
    return rounded(divided(step, DIVISOR), SCALE)


@triton.jit
def _chunked(
    w_ptr, step_ptr, seed_ptr, fake_ptr, codes_ptr, scale_ptr,
    segments, groups, K, w_stride, WIDTH,
    FIND: tl.constexpr, MEAN: tl.constexpr, DIVISOR: tl.constexpr, SCALE: tl.constexpr,
    STORED: tl.constexpr, ONE: tl.constexpr,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, SHIFT: tl.constexpr, RANDOM: tl.constexpr,
    FAKE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Codes of segments of any length. FIND: their scales too, by a walk before the other.

    STORED: writes the scales. ONE: there is one for all.
    """
    segment, row, first, count, there = _positions(segments, groups, K, WIDTH, ROWS)
    if FIND:
        part = _statistic(w_ptr, row, first, count, there, w_stride, WIDTH, MEAN, ROWS, BLOCK)
        scale = rounded(
            mean_scale(part, count, DIVISOR) if MEAN else largest_scale(part, DIVISOR), SCALE
        )
    else:
        scale = _step_of(step_ptr, segment, there, DIVISOR, SCALE, ONE)
    if STORED:
        kept = scale * 0.5 if SHIFT != 0.0 else scale
        tl.store(scale_ptr + segment, kept, there & (segment == 0) if ONE else there)
    for start in range(0, WIDTH, BLOCK):
        within = start + tl.arange(0, BLOCK)[None, :]
        columns = first[:, None] + within
        inside = there[:, None] & (within < count[:, None])
        w = tl.load(w_ptr + row[:, None] * w_stride + columns, inside, 0.0).to(tl.float32)
        _write(
            w, scale, row, columns, inside, seed_ptr, fake_ptr, codes_ptr, K,
            LOWEST, HIGHEST, SHIFT, RANDOM, FAKE,
        )  # fmt: skip


@triton.jit
def _gradient(
    grad_ptr, w_ptr, step_ptr, codes_ptr, grad_w_ptr, part_ptr,
    segments, groups, K, grad_stride, w_stride, codes_stride, WIDTH, slope,
    DIVISOR: tl.constexpr, SCALE: tl.constexpr, ONE: tl.constexpr,
    CLIP_LOW: tl.constexpr, CLIP_HIGH: tl.constexpr, HALF: tl.constexpr, HIGHEST: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """grad_w, and the sum of each segment: whole, or (ONE) a part that is not scaled yet."""
    segment, row, first, count, there = _positions(segments, groups, K, WIDTH, ROWS)
    scale = _step_of(step_ptr, segment, there, DIVISOR, SCALE, ONE)
    usable = ((scale > 0.0) & (scale < float("inf")))[:, None]
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        within = start + tl.arange(0, BLOCK)[None, :]
        columns = first[:, None] + within
        inside = there[:, None] & (within < count[:, None])
        w = tl.load(w_ptr + row[:, None] * w_stride + columns, inside, 0.0).to(tl.float32)
        at = row[:, None] * grad_stride + columns
        grad = tl.load(grad_ptr + at, inside, 0.0).to(tl.float32)
        codes = tl.load(codes_ptr + row[:, None] * codes_stride + columns, inside, 0)
        value = codes.to(tl.float32) * HALF
        ratio = bounded_ratio(w, scale)
        through = (ratio >= CLIP_LOW) & (ratio <= CLIP_HIGH) & (w == w)
        sums += tl.where(usable, grad * (value - tl.where(through, ratio, 0.0)), 0.0)
        passed = tl.where(through & usable, grad, 0.0)
        tl.store(grad_w_ptr + row[:, None] * K + columns, passed, inside)
    part = tl.sum(sums, 1)
    if not ONE:
        part = part * slope / tl.sqrt_rn((count * HIGHEST).to(tl.float32))
    tl.store(part_ptr + segment, part, there)


@triton.jit
def _added(part_ptr, out_ptr, parts, factor, BLOCK: tl.constexpr):
    """factor times the sum of the parts; one program."""
    sums = tl.zeros((1, BLOCK), tl.float32)
    for start in range(0, parts, BLOCK):
        at = start + tl.arange(0, BLOCK)[None, :]
        sums += tl.load(part_ptr + at, at < parts, 0.0)
    tl.store(out_ptr + tl.arange(0, 1), tl.sum(sums, 1) * factor)


def forward(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.fake_quantize."""
    rule, device = rule_of(scheme, method), weight.device
    n, k = weight.shape
    shape = (n, k) if fake_dtype is not None else (0,)
    fake = torch.empty(shape, dtype=fake_dtype or weight.dtype, device=device)
    codes = torch.empty((n, k), dtype=torch.int8, device=device)
    scale = torch.empty(rule.scale_shape(n, k), dtype=torch.float32, device=device)
    if not codes.numel():
        return fake, codes, scale
    rows, width = as_rows(weight), min(rule.group(k), k)
    groups = triton.cdiv(k, width)
    segments = n * groups
    find = not rule.learned
    options = _options("forward", n, k, width, find and not rule.tensor)
    held = find and not rule.tensor and width <= options["HELD"]
    grid, block = _blocks(segments, width, options, held)
    outputs = {
        "LOWEST": rule.lowest, "HIGHEST": rule.highest, "RANDOM": seed is not None,
        "FAKE": fake_dtype is not None, "SCALE": _DTYPES[rule.dtype], "MEAN": rule.mean, **block,
    }  # fmt: skip
    if held:
        _held[grid](
            rows, seed, fake, codes, scale, segments, groups, k, rows.stride(0), width,
            DIVISOR=rule.divisor, **outputs,
        )  # fmt: skip
        return fake, codes, scale
    divisor, stored = rule.divisor, True
    if find and rule.tensor:
        _of_tensor(rows, scale, rule, grid, block)
        step, find, divisor, stored = scale, False, 1.0, False
    _chunked[grid](
        rows, step.contiguous() if step is not None else None, seed, fake, codes, scale,
        segments, groups, k, rows.stride(0), width,
        FIND=find, DIVISOR=divisor, STORED=stored, ONE=rule.tensor, SHIFT=rule.shift, **outputs,
    )  # fmt: skip
    return fake, codes, scale


def _of_tensor(
    rows: Tensor, scale: Tensor, rule: Rule, grid: tuple[int], block: dict[str, int]
) -> None:
    """Writes the one scale of W, rows [N, K]."""
    n, k = rows.shape
    dtype = torch.float64 if rule.mean else torch.int32
    parts = torch.empty(n, dtype=dtype, device=rows.device)
    _parts[grid](rows, parts, n, 1, k, rows.stride(0), k, MEAN=rule.mean, **block)
    _joined[(1,)](
        parts, scale, n, n * k,
        MEAN=rule.mean, DIVISOR=rule.divisor, SCALE=_DTYPES[rule.dtype], BLOCK=4096, num_warps=16,
    )  # fmt: skip


def gradient(
    grad: Tensor, weight: Tensor, step: Tensor, codes: Tensor, scheme: str, method: str
) -> tuple[Tensor, Tensor]:
    """As op.fake_quantize_gradient."""
    rule, device = rule_of(scheme, method), weight.device
    n, k = weight.shape
    grad_weight = torch.empty((n, k), dtype=weight.dtype, device=device)
    grad_step = torch.empty(step.shape, dtype=torch.float32, device=device)
    if not grad_weight.numel():
        return grad_weight, grad_step
    rows, grads, coded = as_rows(weight), as_rows(grad), as_rows(codes)
    width = min(rule.group(k), k)
    groups = triton.cdiv(k, width)
    segments = n * groups
    grid, block = _blocks(segments, width, _options("backward", n, k, width, False), False)
    parts = torch.empty(segments, dtype=torch.float32, device=device) if rule.tensor else grad_step
    _gradient[grid](
        grads, rows, step.contiguous(), coded, grad_weight, parts,
        segments, groups, k, grads.stride(0), rows.stride(0), coded.stride(0), width, rule.slope,
        DIVISOR=rule.divisor, SCALE=_DTYPES[rule.dtype], ONE=rule.tensor,
        CLIP_LOW=rule.clip_low, CLIP_HIGH=rule.clip_high, HALF=0.5 if rule.shift else 1.0,
        HIGHEST=rule.highest, **block,
    )  # fmt: skip
    if rule.tensor:
        factor = rule.slope / (n * k * rule.highest) ** 0.5
        _added[(1,)](parts, grad_step, segments, factor, BLOCK=4096, num_warps=16)
    return grad_weight, grad_step


def _options(direction: str, n: int, k: int, width: int, held: bool) -> dict[str, int]:
    """HELD and TILE, columns and elements that a program has at once; 32 elements a thread."""
    if interpreting():
        return {"HELD": 256, "TILE": 1 << 14, "num_warps": 4}
    wanted = triton.next_power_of_2(width)
    tile = wanted if held and wanted <= _HELD else min(wanted, 4096)
    default = {
        "HELD": _HELD,
        "TILE": max(tile, 2048),
        "num_warps": min(max(tile // 1024, 4), 32),
    }
    return dict(configuration("fake_quantize", "triton", {"N": n, "K": k}, default, direction))


def _blocks(
    segments: int, width: int, options: dict[str, int], held: bool
) -> tuple[tuple[int], dict[str, int]]:
    """The grid, and the constants of a program: its segments and columns at once, its warps."""
    block = max(16, triton.next_power_of_2(width))
    if not held:
        block = min(block, options["TILE"])
    rows = max(1, min(options["TILE"] // block, triton.next_power_of_2(segments)))
    constants = {"ROWS": rows, "BLOCK": block, "num_warps": options["num_warps"]}
    return (triton.cdiv(segments, rows),), constants
