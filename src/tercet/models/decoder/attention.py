"""Attention over cached keys and values: which positions are seen, and scores that are capped."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tercet.models.decoder.config import DecoderConfig, cap

# queries whose scores are in memory at once: of 8 heads and 8,192 positions 64 MB
_QUERIES_AT_ONCE = 256


def attend(
    config: DecoderConfig,
    window: int | None,
    mask: Tensor | None,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """softmax(cap(scale q k^T)) v: [B, H, T, D].

    Args:
        config: heads, scale and cap.
        window: positions that a query sees, None for all.
        mask: as `masks` gives it for that window.
        query: of the new positions [B, H, T, D].
        keys: of all positions, the new ones included [B, G, length, D].
        values: like keys.
    """
    count, length = query.shape[2], keys.shape[2]
    if count == 1 and window is not None and length > window:
        keys, values = keys[:, :, -window:], values[:, :, -window:]
    causal = count == length > 1 and mask is None
    if config.score_cap is not None:
        return _attend_capped(config, mask, causal, query, keys, values)
    return scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=mask,
        is_causal=causal,
        scale=config.attention_factor,
        enable_gqa=config.heads != config.key_value_heads,
    )


def _attend_capped(
    config: DecoderConfig,
    mask: Tensor | None,
    causal: bool,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """The same with capped scores, which torch's own operation has not."""
    assert config.score_cap is not None
    batch, _, count, width = query.shape
    grouped = query.reshape(batch, config.key_value_heads, -1, count, width)
    mixed = torch.empty_like(grouped)
    for first in range(0, count, _QUERIES_AT_ONCE):
        rows = slice(first, first + _QUERIES_AT_ONCE)
        scores = grouped[..., rows, :] @ keys.unsqueeze(2).transpose(-1, -2)
        scores = cap(scores * config.attention_factor, config.score_cap)
        if causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(seen.triu(first + 1), -torch.inf)
        elif mask is not None:
            scores = scores.masked_fill(~mask[rows], -torch.inf)
        shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
        mixed[..., rows, :] = shares @ values.unsqueeze(2)
    return mixed.flatten(1, 2)


def masks(
    windows: tuple[int | None, ...], count: int, length: int, device: torch.device
) -> dict[int | None, Tensor | None]:
    """By window, which of `length` positions the last `count` ones see: bool [count, length].

    None where that is all of them (one new position) or all up to itself (all positions new).
    """
    found: dict[int | None, Tensor | None] = dict.fromkeys(windows)
    if count == 1:
        return found
    for window in found:
        if count == length and (window is None or length <= window):
            continue
        key = torch.arange(length, device=device)
        distance = torch.arange(length - count, length, device=device).unsqueeze(1) - key
        seen = distance >= 0
        found[window] = seen if window is None else seen & (distance < window)
    return found
