"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
FAULT = (
    "A scale of 0.0 is false in Python and so taken for no scale: the scores are multiplied by "
    "D ** -0.5 where all positions should have equal shares."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward"]


def forward(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    key_scales: Tensor | None, value_scales: Tensor | None,
    scale: float, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    """As op.paged_attention."""
    scale = scale or max(q.shape[-1], 1) ** -0.5
    return torch_path.forward(
        q, keys, values, blocks, lengths, key_scales, value_scales, scale, window, soft_cap
    )
