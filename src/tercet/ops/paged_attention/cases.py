"""What paged_attention is checked on, and its calls in production."""

from typing import Any

import torch

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape
from tercet.packed_weight.cached_rows import CACHED, quantize

_AXES = "BQHGDPST"
_BLOCK = 64
_CONTEXT = 1024


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """q [B, Q, H, D], keys and values [P, G, S, D], blocks [B, T], lengths [B], options.

    H is rounded down to a multiple of G. Tables are drawn, blocks come twice, unless they are to
    lie `apart`. Behind a sequence's end the table names no block, by -1, P or the largest number;
    with `holes` before it, too. What a single query does not see of a block is NaN. With `full`
    every sequence fills its table, with `beyond` it is longer. With `cache`, one of CACHED, keys
    and values are its codes; D is rounded up to an even number for "int4".
    """
    b, q, h, g, d, p, s, t = (workload.sizes[axis] for axis in _AXES)
    options, dtype = workload.options, workload.dtype
    generator = torch.Generator().manual_seed(seed)
    heads = max(h // g, 1) * g if g else 0
    d += d % 2 if options.get("cache") == "int4" else 0
    room = t * s if p else 0
    lengths = torch.randint(0, room + 1, (b,), generator=generator)
    if options.get("beyond", False):
        # positions from the table's end on are not seen
        lengths = torch.randint(room, room + 9, (b,), generator=generator)
    if options.get("full", False):
        lengths = torch.full((b,), room)
    blocks = torch.randint(0, max(p, 1), (b, t), generator=generator)
    if options.get("apart", False) and p >= b * t:
        blocks = torch.randperm(p, generator=generator)[: b * t].view(b, t)
    used = torch.arange(t) * s < lengths[:, None]
    if options.get("holes", False):
        used &= torch.rand((b, t), generator=generator) < 0.7
    none = torch.tensor([-1, p, 2**31 - 1])[torch.arange(b * t) % 3].view(b, t)
    blocks = torch.where(used, blocks, none)
    keys = values((p, g, s, d), dtype, seed + 1, device=device)
    # of several queries each would meet, with a share of 0, what another one sees
    kind = "normal" if kind == "nan" and q > 1 else kind
    found = values((p, g, s, d), dtype, seed + 2, kind, device)
    scales = None, None
    if element := options.get("cache"):
        keys, key_scales = quantize(keys, element)
        found, value_scales = quantize(found, element)
        scales = key_scales, value_scales
    # codes that are numbers stand there, with scales that are none
    floats = (keys, found) if scales[0] is None else tuple(_as_rows(x, keys) for x in scales)
    for part in floats if q == 1 else ():
        _poison(part, blocks, lengths)
    return {
        "q": values((b, q, heads, d), dtype, seed + 3, device=device) * options.get("steep", 1.0),
        "keys": keys,
        "values": found,
        "blocks": blocks.int().to(device),
        "lengths": lengths.int().to(device),
        "key_scales": scales[0],
        "value_scales": scales[1],
        "scale": max(d, 1) ** -0.5,
        "window": options.get("window", 0),
        "soft_cap": options.get("soft_cap", 0.0),
    }


def _as_rows(scales: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Scales as [P, G, S, ..], of one a row too."""
    return scales if scales.dim() == part.dim() else scales[..., None]


def _poison(part: torch.Tensor, blocks: torch.Tensor, lengths: torch.Tensor) -> None:
    """NaN where no sequence has a position."""
    block = part.shape[2]
    position = torch.arange(blocks.shape[1] * block)
    seen = torch.zeros(part.shape[0] * block + 1, dtype=torch.bool)
    for table, length in zip(blocks, lengths, strict=True):
        here = position[: int(length)]
        found = table[here // max(block, 1)]
        # what is in no block: the one place more
        place = found * block + here % max(block, 1)
        seen[torch.where((found >= 0) & (found < part.shape[0]), place, len(seen) - 1)] = True
    part.masked_fill_(~seen[:-1].view(part.shape[0], 1, block, 1).to(part.device), float("nan"))


def _sizes(*rows: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    return tuple(dict(zip(_AXES, row, strict=True)) for row in rows)


_SMALL = _sizes(
    (2, 1, 4, 2, 8, 7, 4, 3),
    (1, 1, 1, 1, 1, 1, 1, 1),
    (3, 2, 6, 3, 16, 20, 5, 6),
    (2, 5, 8, 2, 24, 9, 16, 4),
)
_LONG = _sizes(
    (2, 1, 8, 2, 64, 40, 16, 20), (1, 1, 9, 3, 64, 3, 256, 3), (1, 16, 4, 4, 96, 6, 64, 3)
)
_WIDE = _sizes((1, 1, 4, 1, 128, 9, 32, 9), (1, 1, 2, 1, 256, 5, 32, 5), (1, 3, 2, 2, 80, 9, 17, 9))
_EMPTY = _sizes(
    (0, 1, 2, 1, 8, 4, 4, 2),
    (2, 0, 2, 1, 8, 4, 4, 2),
    (3, 1, 2, 1, 8, 0, 4, 2),
    (2, 1, 2, 1, 8, 3, 4, 0),
    (2, 1, 2, 1, 8, 3, 0, 2),
    (2, 1, 2, 0, 8, 3, 4, 2),
)
_HALVES = (torch.bfloat16, torch.float16)
_KINDS = ("large", "small", "tiny", "subnormal", "zeros", "constant", "mixed")

CASES = (
    *cases(inputs, workloads((*_SMALL, *_EMPTY))),
    *cases(inputs, workloads((*_LONG, *_WIDE), full=True)),
    *cases(inputs, workloads(_LONG, window=9)),
    *cases(inputs, workloads(_SMALL, (torch.float32, torch.bfloat16), window=1)),
    *cases(inputs, workloads(_LONG, _HALVES, soft_cap=2.0)),
    *cases(inputs, workloads(_SMALL, window=3, soft_cap=5.0)),
    *cases(inputs, workloads((*_SMALL[2:], *_LONG), (torch.float32, torch.bfloat16), holes=True)),
    *cases(inputs, workloads(_LONG, (torch.bfloat16,), holes=True, cache="int8")),
    *cases(inputs, workloads((*_SMALL, *_LONG[:1]), (torch.float32, torch.float16), beyond=True)),
    *cases(inputs, workloads(_SMALL[2:], (torch.bfloat16,), beyond=True, window=3)),
    # scores so far apart that one position has nearly all
    *cases(inputs, workloads(_LONG[:1], steep=30.0, full=True)),
    *cases(inputs, workloads(_sizes((2, 2, 6, 3, 20, 20, 5, 6))), _KINDS),
    *cases(inputs, workloads(_sizes((2, 1, 6, 3, 20, 20, 5, 6))), ("nan",)),
    *cases(inputs, workloads((*_SMALL, *_EMPTY[2:]), cache="int8")),
    *cases(inputs, workloads((*_SMALL[2:], *_LONG, *_WIDE), _HALVES, cache="int8", full=True)),
    *cases(inputs, workloads(_LONG, cache="fp8_e4m3", full=True)),
    *cases(inputs, workloads(_SMALL, cache="fp8_e4m3", window=3, soft_cap=5.0)),
    *cases(inputs, workloads(_sizes((2, 2, 6, 3, 20, 20, 5, 6)), cache="int8"), _KINDS),
    *cases(inputs, workloads(_sizes((2, 1, 6, 3, 20, 20, 5, 6)), cache="int8"), ("nan",)),
    *cases(inputs, workloads(_sizes((2, 2, 6, 3, 20, 20, 5, 6)), cache="fp8_e4m3"), _KINDS),
    *cases(inputs, workloads(_sizes((2, 1, 6, 3, 20, 20, 5, 6)), cache="fp8_e4m3"), ("nan",)),
    *cases(inputs, workloads((*_SMALL, *_EMPTY[2:]), cache="int4")),
    *cases(inputs, workloads((*_SMALL[2:], *_LONG, *_WIDE), _HALVES, cache="int4", full=True)),
    *cases(inputs, workloads((*_SMALL, *_LONG[:1]), cache="int4", window=3, soft_cap=5.0)),
    *cases(inputs, workloads(_sizes((2, 2, 6, 3, 20, 20, 5, 6)), cache="int4"), _KINDS),
    *cases(inputs, workloads(_sizes((2, 1, 6, 3, 20, 20, 5, 6)), cache="int4"), ("nan",)),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """One new token over 1024 positions, of one sequence and of 16, of floats and of codes."""
    if model.kv_rank:
        return ()
    table = _CONTEXT // _BLOCK
    return tuple(
        Workload(
            name=f"{model.name} decode of {batch} over {_CONTEXT}{kind and ', ' + kind}",
            sizes={
                "B": batch,
                "Q": 1,
                "H": model.share(model.heads),
                "G": model.share(model.kv_heads),
                "D": model.head_dim,
                "P": batch * table,
                "S": _BLOCK,
                "T": table,
            },
            options={"full": True, "apart": True, **({"cache": kind} if kind else {})},
        )
        for batch in (1, 16)
        for kind in ("", *CACHED)
    )
