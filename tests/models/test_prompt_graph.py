"""Prompts whose shape came before, by a graph that runs its function anew at each replay."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from tercet.models import Decoder
from tercet.models.decoder.gpu import prompt_graph
from tercet.models.decoder.gpu.prompt_graph import padded

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 7},
    "gemma2": {"head_dim": 32, "sliding_window": 7, "attn_logit_softcapping": 1.5},
    "qwen3": {"head_dim": 32},
}


class Rerun:
    """As CUDA's graph: what it reads and writes is where it was captured; nothing runs then."""

    captured = 0

    def __init__(self, run: Callable[[], Tensor], device: torch.device) -> None:
        Rerun.captured += 1
        self._run = run
        self.result = torch.full_like(run(), torch.nan)

    def replay(self) -> None:
        self.result.copy_(self._run())


@pytest.fixture(autouse=True)
def rerun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_graph, "Captured", Rerun)
    monkeypatch.setattr(prompt_graph, "_free_bytes", lambda _: 2**40)
    Rerun.captured = 0


def run(decoder: Decoder, ids: Tensor, spare: int = 0) -> tuple[Tensor, Any]:
    """Scores [B, T, V] of a prompt as a GPU makes them, and its cache."""
    cache = decoder.cache(ids.shape[0])
    cache.reserve(spare)
    with torch.inference_mode():
        scores = decoder._scores(decoder._prompts.run(ids, cache))
    assert cache.length == ids.shape[1]
    return scores.view(*ids.shape, -1), cache


def drawn(batch: int, count: int, seed: int) -> Tensor:
    return torch.randint(3, 96, (batch, count), generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 1 << 20))
def test_a_quarter_more_at_most(count: int) -> None:
    whole = padded(count)
    assert count <= whole == padded(whole)
    assert whole < count + max(16, count / 4)
    assert whole == count or whole % 16 == 0


def test_four_lengths_an_octave() -> None:
    assert len({padded(count) for count in range(1025, 2049)}) == 4
    assert {padded(count) for count in range(17, 65)} == {32, 48, 64}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codes", [None, "int8", "int4"])
def test_scores_and_cache(
    build: Callable[..., Any], source_of: Any, kind: str, codes: str | None
) -> None:
    source = source_of(build(kind, **KINDS[kind]))
    source.pack("model.layers.0.mlp.down_proj", "ternary")
    decoder = Decoder.from_checkpoint(source, kv_cache_dtype=codes)
    other = drawn(2, 3, 9)
    for seed, count in enumerate((20, 29, 17, 32, 20)):
        ids = drawn(2, count, seed)
        expected = decoder.logits(ids)
        limit = {None: 2e-5, "int8": 5e-3, "int4": 5e-2}[codes] * float(expected.abs().max())
        scores, cache = run(decoder, ids, spare=300 if seed == 2 else 0)
        assert_close(scores, expected, rtol=0, atol=limit)
        # and whatever follows
        plain = decoder.cache(2)
        decoder.fill(ids, plain)
        after = decoder.logits_at(other, torch.ones_like(other, dtype=torch.bool), cache)
        same = decoder.logits_at(other, torch.ones_like(other, dtype=torch.bool), plain)
        assert_close(after, same, rtol=0, atol=limit)
    assert Rerun.captured == 1


def test_batches_apart(build: Callable[..., Any], source_of: Any) -> None:
    decoder = Decoder.from_checkpoint(source_of(build("llama")))
    for seed, (batch, count) in enumerate([(1, 5), (3, 5), (1, 5), (1, 6), (3, 5), (1, 6)]):
        ids = drawn(batch, count, seed)
        assert_close(run(decoder, ids)[0], decoder.logits(ids), rtol=0, atol=1e-4)
    assert Rerun.captured == 3


def test_the_oldest_gives_way(
    build: Callable[..., Any], source_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Decoder.from_checkpoint(source_of(build("llama")))
    prompts = decoder._prompts
    size = prompt_graph.graph_bytes(decoder.config, decoder.dtype, decoder.cache(), 48)
    monkeypatch.setattr(prompt_graph, "MOST_BYTES", 2 * size)
    for count in (20, 40, 40, 48, 20):
        run(decoder, drawn(1, count, 1))
    first, second = prompts.graphs._graphs[1, 48], prompts.graphs._graphs[1, 32]
    assert first is not None
    assert second is not None
    gone = weakref.ref(first)
    del first
    gc.collect()
    for count in (16, 16, 17):
        ids = drawn(1, count, count)
        assert_close(run(decoder, ids)[0], decoder.logits(ids), rtol=0, atol=1e-4)
    assert gone() is None
    assert prompts.graphs._graphs[1, 48] is None
    assert prompts.graphs._graphs[1, 32] is second
    assert Rerun.captured == 3


def test_too_many_tokens_are_run_as_they_are(
    build: Callable[..., Any], source_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Decoder.from_checkpoint(source_of(build("llama")))
    monkeypatch.setattr("tercet.models.decoder.gpu.prompts.MOST_BYTES", 1000)
    ids = drawn(2, 21, 3)
    for _ in range(3):
        assert_close(run(decoder, ids)[0], decoder.logits(ids), rtol=0, atol=1e-4)
    assert Rerun.captured == 0
    assert not decoder._prompts.graphs._graphs


def test_without_memory_for_a_graph(
    build: Callable[..., Any], source_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Decoder.from_checkpoint(source_of(build("llama")))
    monkeypatch.setattr(prompt_graph, "_free_bytes", lambda _: 1000)
    ids = drawn(2, 21, 3)
    for _ in range(3):
        assert_close(run(decoder, ids)[0], decoder.logits(ids), rtol=0, atol=1e-4)
    assert Rerun.captured == 0
    monkeypatch.setattr(prompt_graph, "_free_bytes", lambda _: 2**40)
    assert_close(run(decoder, ids)[0], decoder.logits(ids), rtol=0, atol=1e-4)
    assert Rerun.captured == 1


def test_shapes_without_end(build: Callable[..., Any], source_of: Any) -> None:
    decoder = Decoder.from_checkpoint(source_of(build("llama")))
    graphs = decoder._prompts.graphs
    for batch in range(1, 100):
        graphs.find((batch, 16), 1, torch.device("cpu"), lambda: pytest.fail("captured"))
    assert len(graphs._graphs) == 64


def test_freed_with_the_decoder(build: Callable[..., Any], source_of: Any) -> None:
    """Its graphs are in no cycle with it."""
    decoder = Decoder.from_checkpoint(source_of(build("llama")))
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            run(decoder, drawn(1, 20, 1))
        gone = weakref.ref(decoder)
        del decoder
        assert gone() is None
    finally:
        gc.enable()
