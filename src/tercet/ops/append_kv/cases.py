"""What append_kv is checked on, and its calls in production."""

from typing import Any

import torch

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape
from tercet.packed_weight.cached_rows import CACHED, quantize

_AXES = "BQHGDRLPST"
_BLOCK = 64
_CONTEXT = 1024
_BASE = 10000.0


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """qkv [B, Q, (H + 2 G) D], cos and sin [L, R], keys and values [P, G, S, D], tables, norms.

    No two sequences share a block: where P < B * T, tables name no block at their end, by -1, P
    or the largest number. 2 R is at most D. With `norms` queries and keys are normalized, with
    weights of their own. With `cache`, one of CACHED, keys and values are its codes; D is rounded
    up to an even number for "int4". With `offset`, keys of "int4" have one.
    """
    b, q, h, g, d, r, most, p, s, t = (workload.sizes[axis] for axis in _AXES)
    options, dtype = workload.options, workload.dtype
    generator = torch.Generator().manual_seed(seed)
    d += d % 2 if options.get("cache") == "int4" else 0
    half = min(r, d // 2)
    angle = torch.arange(most).double()[:, None] * _BASE ** -(
        torch.arange(half).double() / max(half, 1)
    )
    kept = torch.float32 if options.get("float32_angles", False) else dtype
    # some sequences are longer than their table: such positions are not written
    lengths = torch.randint(0, t * s + q + 2, (b,), generator=generator)
    if options.get("full", False):
        lengths = torch.full((b,), t * s)
    order = torch.randperm(max(p, b * t), generator=generator)[: b * t].view(b, t)
    none = torch.tensor([-1, p, 2**31 - 1])
    norms = options.get("norms", False)
    keys = values((p, g, s, d), dtype, seed + 2, device=device)
    held = values((p, g, s, d), dtype, seed + 3, device=device)
    key_scales = value_scales = None
    if element := options.get("cache"):
        keys, key_scales = quantize(keys, element)
        held, value_scales = quantize(held, element)
    return {
        "qkv": values((b, q, (h + 2 * g) * d), dtype, seed + 1, kind, device),
        "cos": angle.cos().to(kept).to(device),
        "sin": angle.sin().to(kept).to(device),
        "keys": keys,
        "values": held,
        "blocks": torch.where(order < p, order, none[order % 3]).int().to(device),
        "lengths": lengths.int().to(device),
        "key_scales": key_scales,
        "value_scales": value_scales,
        "query_norm": values((d,), dtype, seed + 4, device=device) if norms else None,
        "key_norm": values((d,), dtype, seed + 5, device=device) if norms else None,
        "eps": 1e-6,
        "key_offset": _offset(g, d, seed + 6, device) if options.get("offset", False) else None,
    }


def _offset(groups: int, width: int, seed: int, device: str) -> torch.Tensor:
    return values((groups, width), torch.float32, seed, device=device)


def _sizes(*rows: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    return tuple(dict(zip(_AXES, row, strict=True)) for row in rows)


_SMALL = _sizes(
    (2, 1, 4, 2, 8, 4, 20, 7, 4, 3),
    (1, 1, 1, 1, 2, 1, 1, 1, 1, 1),
    (3, 2, 6, 3, 16, 8, 40, 20, 5, 6),
    (2, 5, 8, 2, 64, 32, 70, 9, 16, 4),
)
_PARTIAL = _sizes((2, 3, 3, 1, 13, 5, 30, 8, 4, 3), (1, 4, 2, 2, 80, 16, 50, 3, 16, 3))
_WIDE = _sizes((1, 1, 4, 1, 128, 64, 70, 3, 32, 2), (1, 1, 2, 1, 256, 128, 40, 3, 32, 1))
_EMPTY = _sizes(
    (0, 1, 2, 1, 8, 4, 9, 4, 4, 2),
    (2, 0, 2, 1, 8, 4, 9, 4, 4, 2),
    (2, 1, 0, 1, 8, 4, 9, 4, 4, 2),
    (2, 1, 2, 1, 8, 0, 9, 4, 4, 2),
    (2, 1, 2, 1, 8, 4, 9, 0, 4, 2),
    (2, 1, 2, 1, 8, 4, 9, 3, 4, 0),
    (2, 1, 2, 1, 8, 4, 9, 3, 0, 2),
)
_KINDS = ("large", "tiny", "subnormal", "zeros", "constant", "mixed", "inf", "nan")
_HALVES = (torch.float16, torch.bfloat16)

CASES = (
    *cases(inputs, workloads((*_SMALL, *_PARTIAL, *_EMPTY))),
    *cases(inputs, workloads((*_SMALL, *_PARTIAL), norms=True)),
    *cases(inputs, workloads((*_SMALL, *_WIDE), _HALVES, float32_angles=True, full=True)),
    *cases(inputs, workloads(_WIDE, norms=True, full=True)),
    *cases(inputs, workloads(_sizes((2, 2, 6, 3, 20, 10, 20, 12, 5, 3))), _KINDS),
    *cases(inputs, workloads((*_SMALL, *_PARTIAL, *_EMPTY), cache="int8")),
    *cases(inputs, workloads((*_SMALL, *_WIDE), _HALVES, cache="int8", norms=True, full=True)),
    *cases(inputs, workloads((*_SMALL, *_PARTIAL), cache="fp8_e4m3", norms=True)),
    *cases(inputs, workloads(_WIDE, cache="fp8_e4m3", float32_angles=True, full=True)),
    *cases(inputs, workloads(_sizes((2, 2, 6, 3, 20, 10, 20, 12, 5, 3)), cache="int8"), _KINDS),
    *cases(inputs, workloads(_sizes((2, 2, 6, 3, 20, 10, 20, 12, 5, 3)), cache="fp8_e4m3"), _KINDS),
    *cases(inputs, workloads((*_SMALL, *_PARTIAL, *_EMPTY), cache="int4")),
    *cases(inputs, workloads((*_SMALL, *_WIDE), _HALVES, cache="int4", norms=True, full=True)),
    *cases(inputs, workloads((*_PARTIAL, *_WIDE), cache="int4", float32_angles=True, full=True)),
    *cases(inputs, workloads((*_SMALL, *_PARTIAL, *_WIDE), cache="int4", offset=True, full=True)),
    *cases(inputs, workloads(_sizes((2, 2, 6, 3, 20, 10, 20, 12, 5, 3)), cache="int4"), _KINDS),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """One new token behind 1023 others, of one sequence and of 16; written as floats, as codes."""
    if model.kv_rank:
        return ()
    table = _CONTEXT // _BLOCK
    options = {"full": True, "float32_angles": True, "norms": model.query_key_norm}
    return tuple(
        Workload(
            name=f"{model.name} append of {batch}{kind and ', ' + kind}",
            sizes={
                "B": batch,
                "Q": 1,
                "H": model.share(model.heads),
                "G": model.share(model.kv_heads),
                "D": model.head_dim,
                "R": model.head_dim // 2,
                "L": _CONTEXT,
                "P": batch * table,
                "S": _BLOCK,
                "T": table,
            },
            options={**options, **({"cache": kind} if kind else {})},
        )
        for batch in (1, 16)
        for kind in ("", *CACHED)
    )
