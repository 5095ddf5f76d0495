"""Keys and values kept as codes, against transformers with a cache that rounds them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import DynamicCache, PreTrainedModel

from tercet.errors import UnsupportedError
from tercet.models import Decoder, KeyValueCache

Make = Callable[..., Any]

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": 7},
    "gemma2": {"head_dim": 32, "sliding_window": 7, "attn_logit_softcapping": 1.5},
    "phi3": {
        "sliding_window": None,
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75},
    },
}
# what one code more or less may change in logits of this size, where two roundings differ
LIMITS = {"int8": 2e-3, "fp8_e4m3": 1e-2, "int4": 2e-2}


def hadamard(size: int) -> Tensor:
    """Sylvester's matrix of a power of two, normalized."""
    found = torch.ones(1, 1)
    while len(found) < size:
        found = torch.cat((torch.cat((found, found), 1), torch.cat((found, -found), 1)))
    return found / size**0.5


def in_four_bits(x: Tensor, turn: Tensor, offset: Tensor | float = 0.0) -> Tensor:
    """x [.., D] by way of 4 bits; D at most 32 and a power of two, so a row is one group."""
    x = x @ turn - offset
    least = x.amin(-1, keepdim=True).bfloat16().float()
    step = ((x.amax(-1, keepdim=True) - least) / 15).bfloat16().float()
    return (((x - least) / step).round().clamp(0, 15) * step + least + offset) @ turn


def rounded(x: Tensor, codes: str) -> Tensor:
    """x [.., D] by way of codes, of 8 bits with one scale a row."""
    if codes == "int4":
        return in_four_bits(x, torch.eye(x.shape[-1]))
    largest = x.abs().amax(-1, keepdim=True)
    if codes == "int8":
        return (x / (largest / 127)).round() * (largest / 127)
    return (x / (largest / 448)).to(torch.float8_e4m3fn).float() * (largest / 448)


class RoundingCache(DynamicCache):
    """transformers' cache, which rounds what it is given."""

    codes: str
    offsets: Sequence[Tensor] | None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *more: Any, **named: Any
    ) -> Any:
        if self.codes == "int4":
            offset = 0.0 if self.offsets is None else self.offsets[layer_idx].unsqueeze(-2)
            keys = in_four_bits(key_states, hadamard(key_states.shape[-1]), offset)
        else:
            keys = rounded(key_states, self.codes)
        return super().update(keys, rounded(value_states, self.codes), layer_idx, *more, **named)


def with_rounding(
    model: PreTrainedModel, ids: Tensor, codes: str, offsets: Sequence[Tensor] | None
) -> Tensor:
    cache = RoundingCache(config=model.config)
    cache.codes, cache.offsets = codes, offsets
    with torch.no_grad():
        return model(ids, past_key_values=cache, use_cache=True).logits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codes", LIMITS)
@pytest.mark.parametrize("cuts", [[19], [7, 1, 1, 6, 4]], ids=str)
def test_scores_are_those_of_rounded_keys_and_values(
    build: Make, source_of: Make, ids: Tensor, kind: str, codes: str, cuts: list[int]
) -> None:
    model = build(kind, **KINDS[kind])
    decoder = Decoder.from_checkpoint(source_of(model), kv_cache_dtype=codes)
    offsets = decoder.cache().key_offsets
    assert (offsets is None) == (codes != "int4" or kind == "gemma2")
    expected = with_rounding(model, ids, codes, offsets)
    cache, limit = decoder.cache(2), LIMITS[codes] * float(expected.abs().max())
    found = torch.cat(
        [
            decoder.logits_at(part, torch.ones_like(part, dtype=torch.bool), cache).view(
                *part.shape, -1
            )
            for part in ids.split(cuts, 1)
        ],
        1,
    )
    assert_close(found, expected, rtol=0, atol=limit)
    with torch.no_grad():
        exact = model(ids).logits
    assert (found - expected).abs().mean() < 0.1 * (found - exact).abs().mean()


@pytest.mark.parametrize("codes", LIMITS)
def test_what_it_takes(build: Make, source_of: Make, codes: str) -> None:
    source = source_of(build("llama"))
    sizes = []
    for kept in (None, codes):
        cache = Decoder.from_checkpoint(source, kv_cache_dtype=kept).cache(3)
        cache.reserve(100)
        sizes.append(cache.size_bytes)
    # heads of 16: 16 codes and one float32 in place of 16 numbers, or 8 bytes and two bfloat16
    taken = {"int8": 16 + 4, "fp8_e4m3": 16 + 4, "int4": 8 + 4}
    assert sizes == [2 * 3 * 4 * 256 * 64, 2 * 3 * 4 * 256 * taken[codes]]


def filled(codes: str | None, batch: int = 1, count: int = 9) -> KeyValueCache:
    """A cache of two layers with keys and values of its own at `count` positions."""
    cache = KeyValueCache(2, batch, 3, 8, torch.float32, codes=codes)
    generator = torch.Generator().manual_seed(batch)
    for layer in cache.extend(count):
        layer.write(torch.randn(batch, 6, count, 8, generator=generator))
    return cache


def numbers(cache: KeyValueCache) -> Tensor:
    """Keys and values of all layers [L, 2, B, H, length, D]."""
    layers = cache.extend(0)
    return torch.stack([torch.stack(layer.read(torch.float32)) for layer in layers])


@pytest.mark.parametrize("codes", [None, *LIMITS])
def test_growing_copying_and_cutting_keep_what_is_held(codes: str | None) -> None:
    cache = filled(codes)
    before = numbers(cache)
    assert before.shape == (2, 2, 1, 3, 9, 8)
    copy = cache.repeat(4, room=300)
    assert_close(numbers(copy), before.expand(-1, -1, 4, -1, -1, -1), rtol=0, atol=0)
    cache.reserve(1000)
    assert cache.capacity == 1024
    assert_close(numbers(cache), before, rtol=0, atol=0)
    cache.truncate(5)
    assert_close(numbers(cache), before[..., :5, :], rtol=0, atol=0)
    other = filled(codes, batch=2, count=12)
    theirs = numbers(other)
    other.put(1, cache)
    found = numbers(other)
    assert_close(found[:, :, 1, :, :5], before[:, :, 0, :, :5], rtol=0, atol=0)
    assert_close(found[:, :, 1, :, 5:], theirs[:, :, 1, :, 5:], rtol=0, atol=0)
    assert_close(found[:, :, 0], theirs[:, :, 0], rtol=0, atol=0)


@pytest.mark.parametrize("codes", ["int8", "fp8_e4m3"])
def test_rows_of_zeros_and_outliers(codes: str) -> None:
    cache = KeyValueCache(1, 1, 1, 4, torch.float32, codes=codes)
    rows = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1e30, 1.0, 0.0, -1e30]])
    (layer,) = cache.extend(2)
    layer.write(rows.expand(1, 2, 2, 4))
    keys, values = layer.read(torch.float32)
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1e30, 0.0, 0.0, -1e30]])
    assert_close(keys[0, 0], expected, rtol=1e-6, atol=0)
    assert_close(values, keys, rtol=0, atol=0)


def test_another_name_is_refused(build: Make, source_of: Make) -> None:
    with pytest.raises(UnsupportedError, match=r"cache 'int5'.*known: fp8_e4m3, int4, int8"):
        Decoder.from_checkpoint(source_of(build("llama")), kv_cache_dtype="int5")


def test_heads_of_an_odd_width_have_no_four_bits() -> None:
    with pytest.raises(UnsupportedError, match=r"rows of 5 columns cannot be kept in 4 bits.*int8"):
        KeyValueCache(1, 1, 1, 5, torch.float32, codes="int4")
