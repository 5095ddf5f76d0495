"""paged_attention in plain torch: one query after the other, over what it sees and nothing else."""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
UNUSUAL = (
    "A loop over sequences and queries gathers just the positions that a query sees, from the "
    "last to the first, and computes its heads in float64: no mask, no padding."
)
DEVICE = "any"


def forward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    scale: float,
    window: int,
    soft_cap: float,
) -> Tensor:
    if keys.dtype == torch.uint8:
        # rows in 4 bits, as the op has them
        return torch_path.forward(
            q, keys, values, blocks, lengths, key_scales,
            value_scales, scale, window, soft_cap,
        )  # fmt: skip
    _, new, heads, width = q.shape
    count, groups, block, _ = keys.shape
    y = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    if not q.numel() or not count:
        return y
    most = blocks.shape[1] * block
    for b, length in enumerate(lengths.tolist()):
        for i in range(new):
            own = length - new + i
            first = max(own - window + 1, 0) if window else 0
            last = min(own, most - 1)
            if last < first:
                continue
            position = torch.arange(last, first - 1, -1, device=q.device)
            place = blocks[b].long()[position // block]
            held = (place >= 0) & (place < count)
            place, row = place[held], position[held] % block
            if not len(place):
                continue
            k = _rows(keys, key_scales, place, row)
            v = _rows(values, value_scales, place, row)
            one = q[b, i].double().reshape(groups, heads // groups, width)
            score = torch.einsum("grd,ngd->grn", one, k) * scale
            if soft_cap:
                score = soft_cap * torch.tanh(score / soft_cap)
            mixed = torch.einsum("grn,ngd->grd", score.softmax(-1), v)
            y[b, i] = mixed.reshape(heads, width).to(q.dtype)
    return y


def _rows(part: Tensor, scales: Tensor | None, place: Tensor, row: Tensor) -> Tensor:
    """[n, G, D] in float64."""
    found = part[place, :, row].float().double()
    return found if scales is None else found * scales[place, :, row].double()[..., None]
