"""What attention is checked on, and its calls in production."""

from typing import Any

import torch

from tercet.kernel.cases import DTYPES, cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape

_AXES = "BTHGND"
_PROMPTS = (1024, 4096, 16384)


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """q [B, T, H, D], keys and values [B, G, N, D], options.

    H is rounded down to a multiple of G. `steep` is what q is multiplied by. With `cached`, keys
    and values are the first N positions of a cache that holds more. NaN is in q, for what a query
    does not see may be anything.
    """
    b, t, h, g, n, d = (workload.sizes[axis] for axis in _AXES)
    options, dtype = workload.options, workload.dtype
    heads = max(h // g, 1) * g if g else 0
    room = n + 3 if options.get("cached", False) else n
    causal = options.get("causal", True)
    asked, kind = (kind, "normal") if kind == "nan" else ("normal", kind)
    return {
        "q": values((b, t, heads, d), dtype, seed + 3, asked, device) * options.get("steep", 1.0),
        "keys": values((b, g, room, d), dtype, seed + 1, device=device)[:, :, :n],
        "values": values((b, g, room, d), dtype, seed + 2, kind, device)[:, :, :n],
        "scale": max(d, 1) ** -0.5,
        "causal": causal,
        "window": options.get("window", 0) if causal else 0,
        "soft_cap": options.get("soft_cap", 0.0),
    }


def _sizes(*rows: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    return tuple(dict(zip(_AXES, row, strict=True)) for row in rows)


_SMALL = _sizes(
    (1, 1, 1, 1, 1, 1),
    (2, 3, 4, 2, 3, 8),
    (1, 9, 6, 3, 21, 16),
    (3, 5, 3, 1, 4, 20),
)
_LONG = _sizes((1, 150, 4, 2, 150, 64), (2, 70, 3, 3, 331, 24), (1, 260, 2, 1, 260, 40))
_WIDE = _sizes((1, 66, 2, 1, 130, 128), (1, 40, 2, 2, 40, 256), (1, 35, 2, 1, 67, 80))
_EMPTY = _sizes(
    (0, 2, 2, 1, 4, 8),
    (2, 0, 2, 1, 4, 8),
    (2, 3, 2, 1, 0, 8),
    (2, 3, 2, 0, 4, 8),
    (2, 3, 2, 1, 4, 0),
)
_HALVES = (torch.bfloat16, torch.float16)
_KINDS = ("large", "small", "tiny", "subnormal", "zeros", "constant", "mixed")

CASES = (
    *cases(inputs, workloads((*_SMALL, *_EMPTY))),
    *cases(inputs, workloads((*_LONG, *_WIDE), cached=True)),
    *cases(inputs, workloads((*_SMALL, *_LONG), causal=False)),
    *cases(inputs, workloads(_LONG, window=17)),
    *cases(inputs, workloads((*_SMALL, *_WIDE), window=2)),
    *cases(inputs, workloads(_LONG[:2], _HALVES, window=128, cached=True)),
    *cases(inputs, workloads(_LONG, _HALVES, soft_cap=2.0)),
    *cases(inputs, workloads(_SMALL, window=3, soft_cap=5.0)),
    *cases(inputs, workloads(_WIDE[:1], causal=False, soft_cap=5.0)),
    # scores so far apart that one position has nearly all
    *cases(inputs, workloads(_LONG[:1], steep=30.0)),
    *cases(inputs, workloads(_sizes((2, 6, 6, 3, 20, 20))), (*_KINDS, "nan")),
    *cases(inputs, workloads(_sizes((2, 6, 6, 3, 20, 20)), DTYPES[:1], window=4), _KINDS),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """Whole prompts, the second part of one, and one whose queries see a window."""
    if model.kv_rank:
        return ()
    calls = [(length, length, 0) for length in _PROMPTS]
    calls += [(512, _PROMPTS[1], 0), (_PROMPTS[1], _PROMPTS[1], 1024)]
    return tuple(
        Workload(
            name=f"{model.name} {new} of {length}{f', window {window}' if window else ''}",
            sizes={
                "B": 1,
                "T": new,
                "H": model.share(model.heads),
                "G": model.share(model.kv_heads),
                "N": length,
                "D": model.head_dim,
            },
            options={"window": window} if window else {},
        )
        for new, length, window in calls
    )
