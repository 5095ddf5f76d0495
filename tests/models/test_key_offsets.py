"""What all keys of a head have in common: found from a model, and taken off without a trace."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from tercet.models import Decoder, KeyValueCache
from tercet.models.decoder.key_offsets import find_key_offsets
from tercet.models.decoder.rope import angles, rotate_
from tercet.packed_weight.int4_rows import turn

WIDTH, TOKENS = 16, 64


def rotated(heads: Tensor, inverse: Tensor) -> Tensor:
    """[1, G, T, D] of heads [T, G, D] at positions 0 and on."""
    found = heads.clone()
    rotate_(found, angles(inverse, 0, len(heads), torch.float32))
    return found.transpose(0, 1).unsqueeze(0)


def test_what_turns_slowly_is_found_and_what_turns_fast_is_not() -> None:
    draw = torch.Generator().manual_seed(0)
    common = torch.randn(2, WIDTH, generator=draw)
    heads = common + 0.01 * torch.randn(TOKENS, 2, WIDTH, generator=draw)
    heads[0] = 100.0
    slow, fast = torch.full((WIDTH // 2,), 1e-9), torch.full((WIDTH // 2,), 1.0)
    keys = [rotated(heads, slow), rotated(heads, fast), rotated(heads, slow)]
    found = find_key_offsets(keys, (slow, fast), (0, 1, 0))
    assert_close(turn(found[0]), common, rtol=0, atol=1e-2)
    assert_close(found[2], found[0], rtol=0, atol=0)
    assert float(found[1].abs().max()) < 1e-3


def test_columns_that_do_not_turn_keep_their_mean() -> None:
    draw = torch.Generator().manual_seed(1)
    heads = torch.randn(TOKENS, 1, WIDTH, generator=draw)
    inverse = torch.full((WIDTH // 4,), 0.5)
    (found,) = find_key_offsets([rotated(heads, inverse)], (inverse,), (0,))
    expected = heads[1:].mean(0)[:, WIDTH // 2 :]
    assert_close(turn(found)[:, WIDTH // 2 :], expected, rtol=0, atol=1e-5)


def test_keys_that_are_no_numbers_give_none() -> None:
    keys = torch.full((1, 1, TOKENS, WIDTH), float("nan"))
    (found,) = find_key_offsets([keys], (torch.ones(WIDTH // 2),), (0,))
    assert not found.any()


def test_keys_with_a_large_common_part_lose_less(
    build: Callable[..., Any], source_of: Any, ids: Tensor
) -> None:
    """A bias of keys, which takes most of the 16 levels where it is not taken off."""
    model = build("qwen2", rope_parameters={"rope_type": "default", "rope_theta": 1e60})
    for layer in model.model.layers:
        bias = layer.self_attn.k_proj.bias.data.normal_(0.0, 20.0)
        # all pairs but the first of a head hardly turn
        bias.view(-1, 2, layer.self_attn.head_dim // 2)[..., 0] = 0.0
    source = source_of(model)
    decoder = Decoder.from_checkpoint(source, kv_cache_dtype="int4")
    exact, coded = Decoder.from_checkpoint(source).cache(len(ids)), decoder.cache(len(ids))
    offsets = coded.key_offsets
    assert offsets is not None
    plain = KeyValueCache(len(offsets), len(ids), *offsets[0].shape, torch.float32, codes="int4")
    Decoder.from_checkpoint(source).fill(ids, exact)
    keys = [turn(layer.read(torch.float32)[0]) for layer in exact.extend(0)]
    errors = list[Tensor]()
    for cache, zero in ((coded, 1.0), (plain, 0.0)):
        decoder.fill(ids, cache)
        # of the first layer, before what it loses reaches the next
        found = cache.extend(0)[0].read(torch.float32)[0] + zero * offsets[0].unsqueeze(-2)
        errors.append((found - keys[0]).square().mean())
    assert errors[0] < 0.1 * errors[1]
