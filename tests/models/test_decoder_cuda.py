"""The decoder on a GPU gives what it gives on a CPU: prompts, captured single tokens, batches."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tercet.models import Decoder
from tercet.runtime import GenerationSettings
from tercet.runtime.generate import stream

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LINEARS = [f"self_attn.{name}_proj" for name in "qkvo"]
LINEARS += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]


KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 7},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"head_dim": 32, "sliding_window": 7, "attn_logit_softcapping": 1.5},
    "gemma3_text": {
        "head_dim": 32,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "olmo2": {},
    "smollm3": {"no_rope_layers": [0, 1]},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("codes", "relative"), [("int8", 5e-3), ("fp8_e4m3", 4e-2), ("int4", 5e-2)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_scores_from_a_cache_of_codes(
    build: Callable[..., Any],
    source_of: Any,
    ids: Tensor,
    kind: str,
    codes: str,
    relative: float,
    dtype: torch.dtype,
) -> None:
    source = source_of(build(kind, **KINDS[kind]))
    expected = Decoder.from_checkpoint(source, kv_cache_dtype=codes).logits(ids)
    decoder = Decoder.from_checkpoint(source, dtype, "cuda", kv_cache_dtype=codes)
    limit = relative * float(expected.abs().max())
    if dtype == torch.bfloat16:
        # keys and values that differ by a rounding get other codes: their scores are as far apart
        # as codes take each from those without (a CPU's own in bfloat16 are, by 13 % of the
        # largest with e4m3), and as far again as bfloat16 does
        plain = Decoder.from_checkpoint(source).logits(ids)
        rounded = Decoder.from_checkpoint(source, dtype).logits(ids).float()
        limit = 2 * float((expected - plain).abs().max() + (rounded - plain).abs().max())
    assert_close(decoder.logits(ids).cpu().float(), expected, rtol=0, atol=limit)
    cache = decoder.cache(2)
    decoder.extend(ids[:, :9], cache)
    for place in range(9, ids.shape[1]):
        scores = decoder.extend(ids[:, place : place + 1], cache).cpu().float()
        assert_close(scores, expected[:, place], rtol=0, atol=limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("scheme", "how"),
    [
        (None, {}),
        ("ternary", {}),
        ("nonary", {"hadamard": 64}),
        ("int4-g32-asym", {}),
        ("ternary-channel", {"activation": "int8_token"}),
    ],
    ids=str,
)
def test_same_scores(
    build: Callable[..., Any],
    source_of: Any,
    ids: Tensor,
    kind: str,
    scheme: str | None,
    how: dict[str, Any],
) -> None:
    source = source_of(build(kind, **KINDS[kind]))
    for layer in range(2 if scheme else 0):
        for name in LINEARS:
            source.pack(f"model.layers.{layer}.{name}", scheme, **how)
    expected = Decoder.from_checkpoint(source).logits(ids)
    decoder = Decoder.from_checkpoint(source, torch.float32, "cuda")
    # an input that lies between two codes goes either way: 1e-7 of the norms more or less moves
    # gemma2's scores by 0.011 of the largest, on a CPU alone
    limit = (2e-2 if how.get("activation") else 2e-5) * float(expected.abs().max())
    whole = decoder.logits(ids).cpu()
    assert_close(whole, expected, rtol=0, atol=limit)
    for reserved in (0, 300):
        cache = decoder.cache(ids.shape[0])
        cache.reserve(reserved)
        decoder.extend(ids[:, :9], cache)
        for place in range(9, ids.shape[1]):
            scores = decoder.extend(ids[:, place : place + 1], cache).cpu()
            assert_close(scores, expected[:, place], rtol=0, atol=limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codes", [None, "int8"])
@pytest.mark.parametrize("batch", [1, 3])
def test_prompts_whose_shape_comes_again(
    build: Callable[..., Any], source_of: Any, kind: str, codes: str | None, batch: int
) -> None:
    """To the bit as the first time, whatever was captured, run and allocated between."""
    source = source_of(build(kind, **KINDS[kind]))
    for name in LINEARS:
        source.pack(f"model.layers.0.{name}", "ternary-channel", activation="int8_token")
    decoder = Decoder.from_checkpoint(source, torch.float32, "cuda", kv_cache_dtype=codes)
    drawn = torch.Generator().manual_seed(2)
    prompts = [
        torch.randint(3, 96, (batch, count), generator=drawn) for count in (29, 40, 17, 32, 7)
    ]
    first, taken = dict[int, Tensor](), list[Tensor]()
    for turn in range(4):
        for number, ids in enumerate(prompts):
            scores = decoder.logits(ids).cpu()
            assert_close(scores, first.setdefault(number, scores), rtol=0, atol=0)
            taken.append(torch.full((2 ** (4 * turn + number),), 1e9, device="cuda"))
    graphs = decoder._prompts.graphs._graphs
    assert sorted(graphs) == [(batch, 7), (batch, 32), (batch, 48)]
    assert all(graphs.values())


def test_a_prompt_of_a_graph_goes_on(build: Callable[..., Any], source_of: Any) -> None:
    decoder = Decoder.from_checkpoint(source_of(build("llama")), torch.float32, "cuda")
    ids = torch.randint(3, 96, (1, 30), generator=torch.Generator().manual_seed(1))
    found = []
    for _ in range(3):
        cache = decoder.cache()
        token = int(decoder.extend(ids, cache).argmax())
        found.append([token, *chain(*decoder.follow([token], cache, 20))])
        assert cache.length == 50
    assert found[0] == found[1] == found[2]


def test_tokens_that_are_fed_back_on_the_gpu(build: Callable[..., Any], source_of: Any) -> None:
    """As those that the host picks one by one, whatever ran before."""
    source = source_of(build("llama"))
    source.pack("model.layers.0.mlp.down_proj", "ternary")
    decoder = Decoder.from_checkpoint(source, torch.float32, "cuda")
    prompt = torch.tensor([[5, 9, 33, 71, 8]])
    for count in (0, 1, 2, 20):
        cache = decoder.cache()
        first = int(decoder.extend(prompt, cache).argmax())
        found = list(chain(*decoder.follow([first], cache, count)))
        assert cache.length == prompt.shape[1] + count
        ids = [*prompt[0].tolist(), first]
        for token in found:
            assert token == int(decoder.logits(torch.tensor([ids]), last_only=True).argmax())
            ids.append(token)
        assert len(found) == count


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
        {"temperature": 1.5, "min_p": 0.05, "repetition_penalty": 1.4},
        {"repetition_penalty": 1.6},
    ],
)
def test_tokens_that_are_drawn_on_the_gpu(
    build: Callable[..., Any], source_of: Any, options: dict[str, Any]
) -> None:
    """As a CPU draws them with the same seed; and the same ones again."""
    source = source_of(build("llama"))
    settings = GenerationSettings(max_new_tokens=40, seed=3, ignore_stop=True, **options)
    decoders = [Decoder.from_checkpoint(source, torch.float32, each) for each in ("cpu", "cuda")]
    expected, *found = (
        list(stream(decoder, [5, 9, 33], settings)) for decoder in (*decoders, decoders[1])
    )
    assert len(expected) == 40
    assert found == [expected, expected]


def test_two_sequences_that_take_turns(build: Callable[..., Any], source_of: Any) -> None:
    decoder = Decoder.from_checkpoint(source_of(build("llama")), torch.float32, "cuda")

    def begin(prompt: list[int]) -> Any:
        cache = decoder.cache()
        first = int(decoder.extend(torch.tensor([prompt]), cache).argmax())
        return chain.from_iterable(decoder.follow([first], cache, 9))

    prompts = [[5, 9, 33], [71, 8, 4, 60]]
    alone = [list(begin(prompt)) for prompt in prompts]
    assert list(zip(*map(begin, prompts), strict=True)) == list(zip(*alone, strict=True))


def test_a_cache_that_grows_is_captured_anew(build: Callable[..., Any], source_of: Any) -> None:
    """Past the first 256 positions, and back in a second, shorter sequence."""
    source = source_of(build("llama"))
    decoder = Decoder.from_checkpoint(source, torch.float32, "cuda")
    ids = torch.randint(3, 96, (1, 262), generator=torch.Generator().manual_seed(1))
    expected = Decoder.from_checkpoint(source).logits(ids)
    limit = 2e-5 * float(expected.abs().max())
    cache, other = decoder.cache(), decoder.cache()
    decoder.extend(ids[:, :250], cache)
    decoder.extend(ids[:, :3], other)
    for place in range(250, 262):
        scores = decoder.extend(ids[:, place : place + 1], cache).cpu()
        assert_close(scores, expected[:, place], rtol=0, atol=limit)
        again = decoder.extend(ids[:, place - 247 : place - 246], other).cpu()
        assert_close(again, expected[:, place - 247], rtol=0, atol=limit)


def test_memory_that_is_freed_and_taken_anew(build: Callable[..., Any], source_of: Any) -> None:
    """Whatever else is allocated between two steps, and in the second cache as in the first."""
    source, batch = source_of(build("llama")), 64
    decoder = Decoder.from_checkpoint(source, torch.float32, "cuda")
    ids = torch.randint(3, 96, (batch, 40), generator=torch.Generator().manual_seed(1))
    expected = Decoder.from_checkpoint(source).logits(ids)
    limit = 2e-5 * float(expected.abs().max())
    for _ in range(2):
        cache, taken = decoder.cache(batch), list[Tensor]()
        cache.reserve(ids.shape[1])
        for place in range(ids.shape[1]):
            scores = decoder.extend(ids[:, place : place + 1], cache).cpu()
            assert_close(scores, expected[:, place], rtol=0, atol=limit)
            taken += [torch.full((2**size,), 1e9, device="cuda") for size in range(4, 20)]
