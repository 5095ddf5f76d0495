"""attention by torch's own operation, which has cuDNN and FlashAttention behind it.

It takes whole prompts in bfloat16: windows and later turns would need masks in memory, caps it has
none, and of float16 it loses shares below 2^-24 of the largest. All that is left to triton.py.
"""

from torch import Tensor, bfloat16
from torch.nn.functional import scaled_dot_product_attention

from tercet.ops.attention import triton


def forward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> Tensor:
    """As op.attention."""
    length, groups = keys.shape[2], keys.shape[1]
    whole = not causal or q.shape[1] == length
    every = not 0 < window < length
    taken = q.dtype == bfloat16 and q.numel() and length and whole and every and not soft_cap
    if not taken:
        return triton.forward(q, keys, values, scale, causal, window, soft_cap)
    found = scaled_dot_product_attention(
        q.transpose(1, 2),
        keys,
        values,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[2] != groups,
    )
    return found.transpose(1, 2).contiguous()
