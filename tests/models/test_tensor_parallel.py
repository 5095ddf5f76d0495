"""Decoders cut over 2, 3 and 4 processes give one process's logits and tokens."""

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.olmoe import OlmoeConfig
from transformers.models.qwen2_moe import Qwen2MoeConfig
from transformers.models.qwen3_moe import Qwen3MoeConfig

from tercet.models import Decoder
from tercet.models.decoder.gpu import prompt_graph, token_graph
from tercet.models.decoder.tensor_parallel.group import RankGroup, open_rank_group
from tercet.runtime.generate import stream
from tercet.runtime.sampler import Choices
from tercet.runtime.settings import GenerationSettings

# Python 3.12 on forking; the children use one thread each
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
RANKS, TOKENS = 4, 8
PROMPT = [5, 60, 33, 7, 81, 12, 9]
IDS = torch.randint(3, 96, (2, 19), generator=torch.Generator().manual_seed(3))
SIX_HEADS = {
    "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32,
    "intermediate_size": 384,
}  # fmt: skip
EIGHT_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 512}
GEMMA = {
    "head_dim": 16, "sliding_window": 6, "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 5.0,
}  # fmt: skip
EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "vocab_size": 96,
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.15, "max_position_embeddings": 128,
}  # fmt: skip
MIXTURES = {
    "qwen3_moe": lambda: Qwen3MoeConfig(**EXPERTS, head_dim=16, norm_topk_prob=True),
    "olmoe": lambda: OlmoeConfig(
        **{name: size for name, size in EXPERTS.items() if name != "moe_intermediate_size"}
    ),
    "qwen2_moe": lambda: Qwen2MoeConfig(
        **EXPERTS, shared_expert_intermediate_size=32, mlp_only_layers=[1]
    ),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    kind: str
    world_size: int = 2
    scheme: str | None = None
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)
    how: dict[str, Any] = field(default_factory=dict)
    cache: str | None = None

    @property
    def rounds(self) -> bool:
        """Whether ranks round what one process would not: their results are not the same."""
        return self.dtype != torch.float32 or "activation" in self.how


CASES = {
    "llama": Case(kind="llama"),
    "llama, bfloat16": Case(kind="llama", dtype=torch.bfloat16),
    "llama, ternary": Case(kind="llama", scheme="ternary-g64"),
    "llama, ternary, bfloat16": Case(kind="llama", scheme="ternary-g64", dtype=torch.bfloat16),
    "llama, int4 over 3": Case(
        kind="llama", scheme="int4-g64", world_size=3, options=SIX_HEADS, cache="int8"
    ),
    "llama, ternary over 3": Case(
        kind="llama", scheme="ternary-g64", world_size=3, options=SIX_HEADS
    ),
    "llama, more ranks than key-value heads": Case(
        kind="llama", scheme="ternary-g64", world_size=4, options=EIGHT_HEADS
    ),
    "llama, every bias": Case(
        kind="llama", scheme="int4-g32-asym", options={"attention_bias": True, "mlp_bias": True}
    ),
    "llama, rotated and scaled": Case(
        kind="llama", scheme="int4-g32", how={"hadamard": 16, "input_scale": True}
    ),
    "llama, inputs of 8 bits": Case(
        kind="llama", scheme="ternary-g64", how={"activation": "int8_token"}
    ),
    "qwen2, ternary": Case(kind="qwen2", scheme="ternary-g64"),
    "qwen3, nonary": Case(kind="qwen3", scheme="nonary-channel", options={"head_dim": 16}),
    "gemma2": Case(kind="gemma2", options=GEMMA),
    "gemma2, int4": Case(kind="gemma2", scheme="int4-g64", options=GEMMA),
    "granite, nvfp4": Case(kind="granite", scheme="nvfp4", options={"residual_multiplier": 0.4}),
    "phi3, blocks": Case(kind="phi3", scheme="int4-b16x16"),
    "phi3, 8-bit scales": Case(kind="phi3", scheme="int3-g16-e4m3-twolevel"),
    "olmo2, ternary": Case(kind="olmo2", scheme="ternary-g64"),
    "olmo2, one head a rank": Case(kind="olmo2", scheme="int4-g64", world_size=4),
    "olmoe, int4": Case(kind="olmoe", scheme="int4-g32"),
    "qwen3_moe, int4": Case(kind="qwen3_moe", scheme="int4-g32"),
    "qwen2_moe, ternary": Case(kind="qwen2_moe", scheme="ternary-g32"),
}


class Rerun:
    """Runs anew what a graph would replay."""

    def __init__(self, run: Callable[[], Tensor], device: torch.device) -> None:
        self._run = run

    def replay(self) -> None:
        self.result = self._run()


def make_source(case: Case, build: Callable[..., Any], source_of: Callable[..., Any]) -> Any:
    if case.kind in MIXTURES:
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(MIXTURES[case.kind]()).eval()
    else:
        model = build(case.kind, **case.options)
    source = source_of(model)
    for name in [name for name in source.plain if name.endswith("experts.gate_up_proj")]:
        prefix, both = name.removesuffix(".gate_up_proj"), source.plain.pop(name)
        down = source.plain.pop(f"{prefix}.down_proj")
        for index, parts in enumerate(zip(*both.chunk(2, 1), down, strict=True)):
            for part, weight in zip(("gate", "up", "down"), parts, strict=True):
                source.plain[f"{prefix}.{index}.{part}_proj.weight"] = weight
    ends = ("_proj.weight", "experts.weight")
    for name in [name for name in source.plain if name.endswith(ends) and case.scheme]:
        how = dict(case.how)
        if "input_scale" in how:
            columns = source.plain[name].shape[1]
            how["input_scale"] = torch.rand(columns, generator=torch.manual_seed(columns)) + 0.5
        source.pack(name.removesuffix(".weight"), case.scheme, **how)
    return source


@torch.inference_mode()
def run(case: Case, source: Any, group: RankGroup | None) -> dict[str, Any]:
    """Everything that a decoder gives, by all of its paths."""
    decoder = Decoder.from_checkpoint(source, case.dtype, kv_cache_dtype=case.cache, group=group)
    found: dict[str, Any] = {"prompt": decoder.logits(IDS)}
    cache = decoder.cache(2)
    found["tokens"] = torch.stack([decoder.extend(IDS[:, at : at + 1], cache) for at in range(4)])
    greedy = GenerationSettings(max_new_tokens=TOKENS, ignore_stop=True)
    found["greedy"] = list(stream(decoder, PROMPT, greedy))
    # each rank draws for itself: seeds are of their own
    drawn = GenerationSettings(max_new_tokens=TOKENS, temperature=1.5, ignore_stop=True)
    found["drawn"] = list(stream(decoder, PROMPT, drawn))
    # the GPU's passes, on a CPU
    cache = decoder.cache(2)
    for _ in range(2):
        cache = decoder.cache(2)
        hidden = decoder._prompts.run(IDS, cache)
    found["captured"] = [graph is not None for graph in decoder._prompts.graphs._graphs.values()]
    found["prompt of a GPU"] = decoder._scores(hidden).view(found["prompt"].shape)
    graph = decoder._graph_of(cache)
    for at in range(2):
        cache.advance(1)
        scores = graph.run(torch.full((2,), 40 + at), cache.length).clone()
    found["step of a GPU"] = scores
    found["choices of a GPU"] = follow(decoder, drawn)
    return found


def follow(decoder: Decoder, settings: GenerationSettings) -> list[int]:
    """What `Decoder.follow` does, without a GPU."""
    cache, shares = decoder.cache(), torch.rand(TOKENS, 1, dtype=torch.float64)
    decoder.extend(torch.tensor([PROMPT[:-1]]), cache)
    choose, fed, chosen = Choices(settings, shares, cache.length + 1, None), PROMPT[-1:], []
    for _ in range(TOKENS):
        cache.reserve(cache.length + 1)
        graph = decoder._graph_of(cache, choose, torch.tensor(fed))
        cache.advance(1)
        graph.run(torch.tensor(fed), cache.length)
        fed = graph.top.tolist()
        chosen += fed
    return chosen


def pretend() -> Iterator[Any]:
    """Has captured passes run on a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (token_graph, prompt_graph):
            patch.setattr(module, "Captured", Rerun)
        patch.setattr(token_graph, "warm_up", lambda run, _: run())
        yield patch


def work(rank: int, sources: dict[str, Any], folder: Path) -> None:
    """One of the processes: its part of every case."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    groups = {count: dist.new_group(list(range(count))) for count in (2, 3, 4)}
    found, device = dict[str, Any](), torch.device("cpu")
    for patch in pretend():
        # a rank that is short of memory captures nothing: then the others must not, either
        patch.setattr(prompt_graph, "_free_bytes", lambda _: 0 if rank == 1 else 2**40)
        for name, source in sources.items():
            size = CASES[name].world_size
            if rank < size:
                found[name] = run(CASES[name], source, open_rank_group(groups[size], device))
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


Outcomes = Callable[[str], tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any] | None]]


@pytest.fixture(scope="module")
def outcomes(
    build: Callable[..., Any], source_of: Callable[..., Any], tmp_path_factory: Any
) -> Outcomes:
    """Of a case: what one process gives, what each rank does, and one process without rounding."""
    sources = {name: make_source(case, build, source_of) for name, case in CASES.items()}
    folder = tmp_path_factory.mktemp("ranks")
    # beside the processes nothing runs here that they would inherit half-done
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(n, sources, folder)) for n in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    ranks = [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]

    def outcome(name: str) -> Any:
        case, wide = CASES[name], None
        for patch in pretend():
            patch.setattr(prompt_graph, "_free_bytes", lambda _: 2**40)
            one = run(case, sources[name], None)
            if case.rounds:
                exact = replace(case, dtype=torch.float32, how={})
                wide = run(exact, make_source(exact, build, source_of), None)
        return one, [found[name] for found in ranks[: case.world_size]], wide

    return outcome


@pytest.mark.parametrize("name", CASES)
def test_ranks_give_what_one_process_does(name: str, outcomes: Outcomes) -> None:
    one, ranks, wide = outcomes(name)
    for key, expected in one.items():
        first = ranks[0][key]
        for other in ranks[1:]:
            # not near: the same
            assert (
                other[key] == first if isinstance(first, list) else torch.equal(other[key], first)
            )
        if key == "greedy" and wide is None:
            assert first == expected
        if key == "captured":
            assert (expected, first) == ([True], [False])
            continue
        if isinstance(first, list):
            assert len(first) == TOKENS
            continue
        if wide is None:
            limit = 2e-5 * float(expected.abs().max())
            torch.testing.assert_close(first, expected, rtol=0, atol=limit)
            continue
        # parts are rounded before they are added: no more is lost than a process alone loses
        lost = float((expected.float() - wide[key]).abs().max())
        assert float((first.float() - wide[key]).abs().max()) < 1.5 * lost


def test_one_process_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda _: 1)
    assert open_rank_group(dist.GroupMember.NON_GROUP_MEMBER, torch.device("cpu")) is None
