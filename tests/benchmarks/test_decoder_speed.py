"""The benchmark of the decoder's speed counts the bytes that a step reads."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from tercet.models import Decoder, KeyValueCache
from tercet.models.catalog.entry import CatalogEntry
from tercet.packed_weight import prepare

ENTRY = CatalogEntry(
    source="drawn",
    parameters=1,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=128,
    tie_word_embeddings=False,
)
KEYS_AND_VALUES = 2 * 2 * 3 * 100 * 2 * 16 * 2


@pytest.fixture
def speed(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/decoder/speed.py")


def reserved(decoder: Decoder) -> KeyValueCache:
    """A cache of three sequences that has room for more than is read."""
    cache = decoder.cache(3)
    cache.reserve(300)
    return cache


def test_a_packed_model(speed: ModuleType) -> None:
    source = speed.DrawnSource(ENTRY, 2, "ternary-channel", "int8-channel", "int8_token", "cpu")
    decoder = Decoder.from_checkpoint(source, torch.bfloat16)
    weights = [prepare(source.read_packed(name)) for name in source.modules if "embed" not in name]
    assert len(weights) == 2 * 7 + 1
    expected = KEYS_AND_VALUES + sum(weight.size_bytes for weight in weights)
    assert speed.read_bytes(decoder, reserved(decoder), context=100) == expected


def test_a_plain_model(speed: ModuleType) -> None:
    source = speed.DrawnSource(ENTRY, 2, "none", "none", None, "cpu")
    decoder = Decoder.from_checkpoint(source, torch.bfloat16)
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96
    expected = KEYS_AND_VALUES + 2 * (2 * layer + 128 * 64)
    assert speed.read_bytes(decoder, reserved(decoder), context=100) == expected


def test_a_cache_of_codes(speed: ModuleType) -> None:
    source = speed.DrawnSource(ENTRY, 2, "none", "none", None, "cpu")
    bytes_of = [
        speed.read_bytes(decoder, reserved(decoder), context=100)
        for decoder in (
            Decoder.from_checkpoint(source, torch.bfloat16, kv_cache_dtype=kept)
            for kept in (None, "int8", "int4")
        )
    ]
    # heads of 16: 16 codes and a scale in place of 32 bytes, or 8 bytes with two scales of 16 bits
    assert bytes_of[0] - bytes_of[1] == KEYS_AND_VALUES - 2 * 2 * 3 * 100 * 2 * (16 + 4)
    assert bytes_of[0] - bytes_of[2] == KEYS_AND_VALUES - 2 * 2 * 3 * 100 * 2 * (8 + 4)
    cache = Decoder.from_checkpoint(source, torch.bfloat16, kv_cache_dtype="fp8_e4m3").cache(2)
    speed.fill(cache, 20)
    assert cache.length == 20
    for layer in cache.extend(0):
        assert all(part.isfinite().all() and part.any() for part in layer.read(torch.float32))
