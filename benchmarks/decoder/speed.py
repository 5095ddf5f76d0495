"""Tokens a second of the lean decoder on a GPU, at a published model's shape with drawn weights.

python benchmarks/decoder/speed.py MODEL [--body SCHEME] [--head SCHEME] [--activation A]
    [--kv-cache-dtype D] [--context N] [--batch B] [--temperature T [--top-k K] [--top-p P]]
    [--prompt N] [--layers L] [--out FILE] [--profile]

Weights are drawn on the GPU, for speed does not depend on them: codes uniformly, scales as powers
of two. `--body none` keeps them in bfloat16: the same decoder without compression. A run appends
to a cache that already holds `context` positions, so many tokens one after the other, each chosen
and fed back on the GPU and read by the host as `tercet run` does ("end to end"), and as replays
alone ("graph"). Tokens are the most probable ones, or drawn where there is a temperature. Bytes
that a step must read are those of the packed body and head, and of keys and values. `--prompt N`
measures a prompt of N tokens in place of steps: from its ids to the most probable token after it,
of a length that came before, and of one that did not.
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType

from tercet.checkpoints.packed.layout import PackedModule
from tercet.formats import PackedTensor
from tercet.models import Decoder, KeyValueCache
from tercet.models.catalog.entry import CatalogEntry
from tercet.models.catalog.load import read
from tercet.models.decoder.gpu.token_graph import Choice, choose_most_probable
from tercet.packed_weight.cached_rows import CACHED
from tercet.packed_weight.drawn import drawn_weight
from tercet.records import Environment, Record, append
from tercet.runtime import GenerationSettings
from tercet.runtime.sampler import Choices

BLOCK = 16
_SAMPLING = ("temperature", "top_k", "top_p")


class DrawnSource:
    """A llama's weights, drawn when asked for; linears and head packed, or none of them."""

    def __init__(
        self,
        entry: CatalogEntry,
        layers: int,
        body: str,
        head: str,
        activation: str | None,
        device: str = "cuda",
    ) -> None:
        self._device = device
        hidden, width = entry.hidden_size, entry.hidden_size // entry.num_attention_heads
        width = entry.head_dim or width
        queries, keys = (n * width for n in (entry.num_attention_heads, entry.num_key_value_heads))
        self.config: dict[str, Any] = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": hidden,
            "intermediate_size": entry.intermediate_size,
            "num_hidden_layers": layers,
            "num_attention_heads": entry.num_attention_heads,
            "num_key_value_heads": entry.num_key_value_heads,
            "head_dim": width,
            "vocab_size": entry.vocab_size,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": entry.tie_word_embeddings,
        }
        linears = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (entry.intermediate_size, hidden),
            "mlp.up_proj": (entry.intermediate_size, hidden),
            "mlp.down_proj": (hidden, entry.intermediate_size),
        }
        vocabulary = (entry.vocab_size, hidden)
        self._shapes = {"model.norm.weight": (hidden,)}
        matrices = {"model.embed_tokens": (vocabulary, head)}
        if not entry.tie_word_embeddings:
            matrices["lm_head"] = (vocabulary, head)
        for layer in range(layers):
            for name, shape in linears.items():
                matrices[f"model.layers.{layer}.{name}"] = (shape, body)
            for norm in ("input_layernorm", "post_attention_layernorm"):
                self._shapes[f"model.layers.{layer}.{norm}.weight"] = (hidden,)
        self.modules: dict[str, PackedModule] = {}
        for name, (shape, scheme) in matrices.items():
            if scheme == "none":
                self._shapes[f"{name}.weight"] = shape
                continue
            acts = None if name == "model.embed_tokens" else activation
            self.modules[name] = PackedModule(format=scheme, shape=shape, activation=acts)

    def names(self) -> Iterable[str]:
        return self._shapes

    def tensor(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16, device=self._device)
        return torch.randn(shape, dtype=torch.bfloat16, device=self._device) * shape[1] ** -0.5

    def read_packed(self, module: str) -> PackedTensor:
        entry = self.modules[module]
        return drawn_weight(entry.format, *entry.shape, seed=len(module), device=self._device)

    def input_scale(self, module: str) -> Tensor:
        raise KeyError(module)


def read_bytes(decoder: Decoder, cache: KeyValueCache, context: int) -> int:
    """Of a step: all weights but the embedding's, keys and values."""
    total = cache.size_bytes // cache.capacity * context
    step = decoder.token_step(1, 1)
    linears = [
        each
        for layer in step.layers
        for each in (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down)
    ]
    for linear in (*linears, step.head):
        weight = linear.__self__.weight  # type: ignore[attr-defined]
        total += weight.nbytes if isinstance(weight, Tensor) else weight.size_bytes
    return total


def fill(cache: KeyValueCache, positions: int) -> None:
    """Draws keys and values of so many positions."""
    cache.extend(positions)
    if cache.held_scales is None:
        cache.held.normal_()
        return
    # any byte below this is a number in each of them
    cache.held.view(torch.uint8).random_(0, 120)
    cache.held_scales.fill_(0.01)


@torch.inference_mode()
def measure(
    decoder: Decoder,
    batch: int,
    context: int,
    tokens: int,
    choose: Choice = choose_most_probable,
) -> dict[str, float]:
    """Microseconds of a step, medians of blocks of tokens; the first block warms up."""
    cache = decoder.cache(batch)
    cache.reserve(context + 2 * tokens + BLOCK)
    fill(cache, context - tokens // 2)
    ids, times = [0] * batch, list[float]()
    torch.cuda.reset_peak_memory_stats()
    for start in range(-BLOCK, tokens, BLOCK):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        *_, ids = decoder.follow(ids, cache, BLOCK, choose)
        if start >= 0:
            times.append((time.perf_counter() - begin) / BLOCK * 1e6)
    graph = decoder._graph
    assert graph is not None
    replays, events = list[float](), [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for _ in range(20):
        events[0].record()
        for _ in range(BLOCK):
            graph._graph.replay()
        events[1].record()
        torch.cuda.synchronize()
        replays.append(events[0].elapsed_time(events[1]) / BLOCK * 1e3)
        graph._lengths.fill_(cache.length)
    step, replay = statistics.median(times), statistics.median(replays)
    needed = read_bytes(decoder, cache, context)
    return {
        "step_us": step,
        "graph_us": replay,
        "tokens_per_s": batch / step * 1e6,
        "graph_tokens_per_s": batch / replay * 1e6,
        "read_bytes": float(needed),
        "graph_read_TB_per_s": needed / replay / 1e6,
        "peak_bytes": float(torch.cuda.max_memory_allocated()),
    }


def drawing(settings: GenerationSettings, batch: int, context: int, count: int) -> Choices:
    """Choices of so many tokens from the context on."""
    shares = torch.rand(count, batch, dtype=torch.float64, device="cuda")
    return Choices(settings, shares, context, None)


@torch.inference_mode()
def measure_prompt(decoder: Decoder, batch: int, tokens: int, times: int = 11) -> dict[str, float]:
    """Microseconds from the ids of a prompt to the scores after it; the first two runs warm up."""
    ids = torch.randint(3, 100, (batch, tokens))
    torch.cuda.reset_peak_memory_stats()

    def run(forget: bool) -> float:
        if forget:
            decoder.__dict__.pop("_prompts", None)
        cache = decoder.cache(batch)
        cache.reserve(tokens + BLOCK)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        decoder.extend(ids, cache).argmax(-1).cpu()
        return (time.perf_counter() - begin) * 1e6

    first = [run(True) for _ in range(2 + times)][2:]
    found = [run(False) for _ in range(2 + times)][2:]
    prompt = statistics.median(found)
    return {
        "prompt_us": prompt,
        "prompt_us_low": min(found),
        "prompt_us_high": max(found),
        "first_of_its_length_us": statistics.median(first),
        "tokens_per_s": batch * tokens / prompt * 1e6,
        "peak_bytes": float(torch.cuda.max_memory_allocated()),
    }


@torch.inference_mode()
def profile(decoder: Decoder, batch: int, context: int, tokens: int, times: int) -> None:
    """Prints which kernels a step, or a prompt of so many tokens, waits for."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    ids = torch.zeros(batch, tokens, dtype=torch.int64)

    def run() -> None:
        if tokens == 1:
            decoder.extend(ids, cache)
        else:
            decoder.extend(ids, decoder.cache(batch))

    cache = decoder.cache(batch)
    cache.reserve(context + 64)
    fill(cache, context)
    for _ in range(4):
        run()
    with torch_profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    # a kernel that is launched before the one ahead of it ends waits for it most of its time: what
    # it adds is how far it moves the end of all that ran before it
    adds, counts, ended = Counter[str](), Counter[str](), 0.0
    for event in sorted(
        (each for each in seen.events() or () if each.device_type == DeviceType.CUDA),
        key=lambda each: each.time_range.end,
    ):
        begin = ended or event.time_range.start
        adds[event.name] += event.time_range.end - begin
        counts[event.name] += 1
        ended = event.time_range.end
    for name, total in adds.most_common(16):
        count = counts[name]
        print(f"{total / times:9.1f} us, {count / times:6.1f} of {total / count:7.2f}: {name[:70]}")


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="of the catalog, dense")
    parser.add_argument("--body", default="ternary-channel", help="a scheme, or none")
    parser.add_argument("--head", default="int8-channel", help="a scheme, or none")
    parser.add_argument("--activation", choices=["int8_token", "fp8_token"])
    parser.add_argument("--kv-cache-dtype", choices=CACHED)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, help="draw tokens, as `tercet run` does")
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--prompt", type=int, help="measure a prompt of so many tokens instead")
    parser.add_argument("--layers", type=int, help="default: the model's")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, help="append the record here (JSON lines)")
    options = parser.parse_args(arguments)
    entry = read(options.model)
    layers = options.layers or entry.num_hidden_layers
    source = DrawnSource(entry, layers, options.body, options.head, options.activation)
    begin = time.perf_counter()
    decoder = Decoder.from_checkpoint(
        source, torch.bfloat16, "cuda", kv_cache_dtype=options.kv_cache_dtype
    )
    torch.cuda.synchronize()
    print(f"drawn in {time.perf_counter() - begin:.1f} s", flush=True)
    names = ["body", "head", "activation", "batch"]
    if options.prompt is None:
        choose, sizes = choose_most_probable, (options.batch, options.context, options.tokens)
        if options.temperature is not None:
            filters = {name: getattr(options, name) for name in _SAMPLING}
            choose = drawing(GenerationSettings(**filters), *sizes)
            names += _SAMPLING
        metrics = measure(decoder, *sizes, choose)
        names += ["context", "tokens"]
    else:
        metrics = measure_prompt(decoder, options.batch, options.prompt)
        names += ["prompt"]
    settings = {name: getattr(options, name) for name in names}
    if options.kv_cache_dtype is not None:
        settings["kv_cache_dtype"] = options.kv_cache_dtype
    print(options.model, settings, {name: round(value, 2) for name, value in metrics.items()})
    if options.profile:
        times = 8 if options.prompt is None else 2
        profile(decoder, options.batch, options.context, options.prompt or 1, times)
    if options.out is not None:
        record = Record(
            kind="decode" if options.prompt is None else "prompt",
            subject=options.model,
            settings={**settings, "layers": layers},
            metrics=metrics,
            environment=Environment.here(torch.cuda.get_device_name()),
        )
        append(options.out, [record])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
