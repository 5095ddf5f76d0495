"""What rope is checked on, and its calls in production."""

from typing import Any

import torch
from torch import Tensor

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape

_BASE = 10000.0


def angles(batch: int, tokens: int, half: int, seed: int, device: str) -> Tensor:
    """The angle of each position and pair [tokens, half], or [batch, tokens, half].

    With a batch every sequence starts at a random position of its own.
    """
    frequency = _BASE ** -(torch.arange(half, device=device) / max(half, 1)).double()
    position = torch.arange(tokens, device=device).double()
    if batch:
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(0, 100_000, (batch, 1), generator=generator)
        position = position + first.to(device)
    return position.unsqueeze(-1) * frequency


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """q [B, S, H, D], k [B, S, G, D], cos and sin [S, R] or [B, S, R], interleaved."""
    b, s, h, g, d, r = (workload.sizes[axis] for axis in "BSHGDR")
    per_sequence = b if workload.options.get("per_sequence", False) else 0
    kept = torch.float32 if workload.options.get("float32_angles", False) else workload.dtype
    angle = angles(per_sequence, s, r, seed + 2, device)
    return {
        "q": values((b, s, h, d), workload.dtype, seed, kind, device),
        "k": values((b, s, g, d), workload.dtype, seed + 1, device=device),
        "cos": angle.cos().to(kept),
        "sin": angle.sin().to(kept),
        "interleaved": workload.options.get("interleaved", False),
    }


def _sizes(*rows: tuple[int, int, int, int, int, int]) -> tuple[dict[str, int], ...]:
    return tuple(dict(zip("BSHGDR", row, strict=True)) for row in rows)


_SMALL = _sizes((2, 3, 4, 2, 8, 4), (1, 1, 1, 1, 2, 1), (1, 5, 9, 3, 64, 32))
_PARTIAL = _sizes((2, 3, 3, 1, 13, 5), (1, 4, 2, 2, 80, 16), (1, 3, 2, 1, 7, 0))
_EMPTY = _sizes((0, 4, 2, 1, 8, 4), (2, 0, 2, 1, 8, 4), (1, 3, 2, 0, 8, 4), (1, 3, 2, 1, 0, 0))
_LONG = _sizes((1, 37, 40, 8, 128, 64))
_KINDS = ("large", "tiny", "subnormal", "zeros", "constant", "mixed", "inf", "nan")
_HALVES = (torch.float16, torch.bfloat16)

CASES = (
    *cases(inputs, workloads((*_SMALL, *_PARTIAL, *_EMPTY))),
    *cases(inputs, workloads((*_SMALL, *_PARTIAL), interleaved=True)),
    *cases(inputs, workloads(_SMALL, per_sequence=True)),
    *cases(inputs, workloads(_LONG, _HALVES, float32_angles=True)),
    *cases(inputs, workloads(_LONG, _HALVES, per_sequence=True, interleaved=True)),
    *cases(inputs, workloads(_sizes((1, 3, 3, 2, 24, 10))), _KINDS),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """Queries and keys of one layer, all heads of this GPU, cos and sin in float32."""
    sizes = {
        "B": 1,
        "S": model.tokens,
        "H": model.share(model.heads),
        "G": model.share(model.kv_heads),
        "D": model.head_dim,
        "R": model.head_dim // 2,
    }
    options = {"float32_angles": True}
    return (
        Workload(name=f"{model.name} rope", sizes=sizes, options=options),
        Workload(
            name=f"{model.name} rope interleaved",
            sizes=sizes,
            options={**options, "interleaved": True},
        ),
    )
