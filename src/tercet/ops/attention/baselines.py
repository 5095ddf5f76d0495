"""What a user would call instead of attention: torch's operation as it chooses, and cuDNN's."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tercet.errors import UnsupportedError
from tercet.ops.attention.visible import see


def eager(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> Tensor:
    """torch's operation, with a mask where it needs one; what has caps is written out."""
    new, length, grouped = q.shape[1], keys.shape[2], q.shape[2] != keys.shape[1]
    plain = causal and new == length and (not window or window >= length)
    mask = None if plain or not causal else see(new, length, causal, window, q.device)
    queries = q.transpose(1, 2)
    if not soft_cap:
        return scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=plain, scale=scale, enable_gqa=grouped
        ).transpose(1, 2)
    split = queries.reshape(q.shape[0], keys.shape[1], -1, new, q.shape[3])
    score = split @ keys.unsqueeze(2).transpose(-1, -2)
    score = soft_cap * torch.tanh(score * scale / soft_cap)
    seen = see(new, length, causal, window, q.device)
    share = score.masked_fill(~seen, float("-inf")).softmax(-1)
    return (share @ values.unsqueeze(2)).flatten(1, 2).transpose(1, 2)


def prepare_cudnn(arguments: dict[str, Any]) -> dict[str, Any]:
    """UnsupportedError where a mask would be needed: cuDNN is timed as it is fastest."""
    q, keys = arguments["q"], arguments["keys"]
    masked = arguments["window"] or (arguments["causal"] and q.shape[1] != keys.shape[2])
    if masked or arguments["soft_cap"]:
        raise UnsupportedError("cuDNN is timed without masks and caps, on whole prompts alone")
    return arguments


def cudnn(**arguments: Any) -> Tensor:
    """cuDNN's attention, through torch's operation."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return eager(**arguments)
