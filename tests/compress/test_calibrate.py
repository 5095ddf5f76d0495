"""Streaming calibration sees exactly what hooks on the whole model see."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.models.bert import BertConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config

from tercet.checkpoints.sources.open import open_source
from tercet.compress.algorithm import Statistics
from tercet.compress.calibration.accumulator import Accumulator
from tercet.compress.calibration.module_hooks import inputs_of
from tercet.compress.calibration.stream import Stream, batch_size
from tercet.compress.skeleton import Skeleton
from tercet.models.input_transform import InputTransform

SMALL: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "llama": LlamaConfig(**SMALL, num_key_value_heads=2),
    "mistral": MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=4),
    "qwen2": Qwen2Config(**SMALL, num_key_value_heads=2, tie_word_embeddings=False),
    "bert": BertConfig(**SMALL),
}
BATCH = batch_size(11)
SEQUENCES = 2 * BATCH + 3


def build(kind: str, folder: Path) -> tuple[PreTrainedModel, Skeleton]:
    torch.manual_seed(3)
    maker = AutoModel if kind == "bert" else AutoModelForCausalLM
    model = maker.from_config(CONFIGS[kind]).eval()
    model.save_pretrained(folder)
    return model, Skeleton(open_source(folder))


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(3, 60, (SEQUENCES, 11), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def hooked_inputs(model: nn.Module, tokens: Tensor, names: list[str]) -> dict[str, Tensor]:
    """The inputs [tokens, K] of the named linears, in one pass over all sequences."""
    seen: dict[str, Tensor] = {}
    for name in names:
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: seen.__setitem__(name, given[0].flatten(0, -2))
        )
    model(input_ids=tokens)
    return seen


def linears(layer: nn.Module, prefix: str) -> list[str]:
    return [f"{prefix}.{n}" for n, part in layer.named_modules() if isinstance(part, nn.Linear)]


def look_on(
    stream: Stream, layer: nn.Module, index: int, targets: dict[str, nn.Module]
) -> dict[tuple[str, ...], Statistics]:
    """What a quantizer is told of each group; it leaves the weights as they are."""
    found: dict[tuple[str, ...], Statistics] = {}

    def keep(members: tuple[str, ...], statistics: Statistics) -> dict[str, InputTransform]:
        found[members] = statistics
        return {}

    stream.advance_quantizing(layer, index, targets, keep)
    return found


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", CONFIGS)
def test_statistics_are_those_of_the_whole_model(
    kind: str, recompute: bool, tmp_path: Path, tokens: Tensor
) -> None:
    model, skeleton = build(kind, tmp_path)
    with skeleton.materialize(skeleton.outside()):
        stream = Stream.start(skeleton, tokens)
    stream.recompute = recompute
    assert stream.hidden.shape == (SEQUENCES, 11, 32)
    for index, prefix in enumerate(skeleton.layer_names()):
        layer = skeleton.layers[index]
        names = linears(layer, prefix)
        expected = hooked_inputs(model, tokens, names)
        with skeleton.materialize([prefix]):
            targets = {name: skeleton.module(name) for name in names}
            groups = look_on(stream, layer, index, targets)
        assert sorted(name for members in groups for name in members) == sorted(names)
        for members, statistics in groups.items():
            x = expected[members[0]]
            assert len(x) == SEQUENCES * 11
            torch.testing.assert_close(statistics.gram, x.T @ x / len(x), atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(statistics.absmax, x.abs().amax(0), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(statistics.absmean, x.abs().mean(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        (
            "llama",
            {
                ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                ("self_attn.o_proj",),
                ("mlp.gate_proj", "mlp.up_proj"),
                ("mlp.down_proj",),
            },
        ),
        (
            "bert",
            {
                ("attention.self.query", "attention.self.key", "attention.self.value"),
                ("attention.output.dense",),
                ("intermediate.dense",),
                ("output.dense",),
            },
        ),
    ],
)
def test_linears_of_one_input_share_statistics(
    kind: str, shared: set[tuple[str, ...]], tmp_path: Path, tokens: Tensor
) -> None:
    _, skeleton = build(kind, tmp_path)
    prefix = skeleton.layer_names()[0]
    with skeleton.materialize([*skeleton.outside(), prefix]):
        stream = Stream.start(skeleton, tokens)
        layer = skeleton.layers[0]
        targets = {name: skeleton.module(name) for name in linears(layer, prefix)}
        groups = look_on(stream, layer, 0, targets)
    assert {tuple(n.removeprefix(f"{prefix}.") for n in members) for members in groups} == shared


@pytest.mark.parametrize(("kind", "name"), [("qwen2", "lm_head"), ("bert", "pooler.dense")])
def test_linears_behind_the_layers(kind: str, name: str, tmp_path: Path, tokens: Tensor) -> None:
    model, skeleton = build(kind, tmp_path)
    with skeleton.materialize(skeleton.outside()):
        stream = Stream.start(skeleton, tokens)
    for index, prefix in enumerate(skeleton.layer_names()):
        with skeleton.materialize([prefix]):
            stream.advance(skeleton.layers[index], index)
    with skeleton.materialize(skeleton.outside()):
        collected = stream.collect_after(skeleton, tokens, {name: skeleton.module(name)})
    (group,) = collected.groups.values()
    x = hooked_inputs(model, tokens, [name])[name]
    assert group.tokens == len(x)
    torch.testing.assert_close(group.statistics().gram, x.T @ x / len(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_uncompressed_model_is_followed(
    kind: str, recompute: bool, tmp_path: Path, tokens: Tensor
) -> None:
    model, skeleton = build(kind, tmp_path)
    with skeleton.materialize(skeleton.outside()):
        stream = Stream.start(skeleton, tokens)
    stream.teacher = stream.hidden.clone()
    stream.hidden += 0.1 * torch.randn(
        stream.hidden.shape, generator=torch.Generator().manual_seed(1)
    )
    for index, prefix in enumerate(skeleton.layer_names()):
        layer = skeleton.layers[index]
        names = linears(layer, prefix)
        expected = hooked_inputs(model, tokens, names)
        with skeleton.materialize([prefix]):
            targets = {name: skeleton.module(name) for name in names}
            with inputs_of(targets) as own:
                stream.calls[index](layer, stream.hidden[:BATCH])
            first = {name: x.clone().flatten(0, -2) for name, x in own.items()}
            short = Stream(
                stream.hidden[:BATCH].clone(), stream.calls, stream.teacher[:BATCH].clone()
            )
            short.recompute = recompute
            for members, found in look_on(short, layer, index, targets).items():
                x = first[members[0]]
                t = expected[members[0]][: len(x)]
                rows = {name: targets[name].weight.shape[0] for name in members}
                if sum(rows.values()) < x.shape[1]:
                    assert found.drift is None
                    for name in members:
                        made = t @ targets[name].weight.T
                        expect = made.T @ x / len(x)
                        torch.testing.assert_close(
                            found.outputs[name], expect, atol=1e-4, rtol=1e-4
                        )
                else:
                    assert found.drift is not None
                    assert not found.outputs
                    expect = (t - x).T @ x / len(x)
                    torch.testing.assert_close(found.drift, expect, atol=1e-4, rtol=1e-4)
            stream.advance_teacher(layer, index)
            assert torch.equal(short.teacher, stream.teacher[:BATCH])
            stream.advance(layer, index)
            assert torch.equal(short.hidden, stream.hidden[:BATCH])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", CONFIGS)
def test_each_group_sees_what_the_quantized_ones_before_it_give(
    kind: str, recompute: bool, tmp_path: Path, tokens: Tensor
) -> None:
    model, skeleton = build(kind, tmp_path)
    with skeleton.materialize(skeleton.outside()):
        stream = Stream.start(skeleton, tokens)
    stream.recompute = recompute
    layer, prefix = skeleton.layers[0], skeleton.layer_names()[0]
    names = linears(layer, prefix)
    scale = torch.rand(32, generator=torch.Generator().manual_seed(2)) + 0.5
    found: dict[tuple[str, ...], Statistics] = {}

    def change(members: tuple[str, ...], statistics: Statistics) -> dict[str, InputTransform]:
        found[members] = statistics
        for name in members:
            skeleton.put(f"{name}.weight", skeleton.module(name).weight.detach() * 0.5)
        return {name: InputTransform(scale=scale) for name in members if name == names[0]}

    with skeleton.materialize([prefix]):
        targets = {name: skeleton.module(name) for name in names}
        stream.advance_quantizing(layer, 0, targets, change)
    changed = model.get_submodule(prefix)
    for name in names:
        linear = model.get_submodule(name)
        linear.weight.data *= 0.5
        if name == names[0]:
            linear.weight.data *= scale
    expected = hooked_inputs(model, tokens, names)
    seen: dict[str, Tensor] = {}
    changed.register_forward_hook(
        lambda _, __, out: seen.update(out=out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        model(input_ids=tokens)
    assert {name for members in found for name in members} == set(names)
    for members, statistics in found.items():
        x = expected[members[0]]
        torch.testing.assert_close(statistics.gram, x.T @ x / len(x), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(stream.hidden, seen["out"], atol=1e-5, rtol=1e-5)


def test_weights_are_dropped_after_use(tmp_path: Path, tokens: Tensor) -> None:
    _, skeleton = build("llama", tmp_path)
    with skeleton.materialize(["model.layers.0"]):
        real = {n for n, p in skeleton.model.named_parameters() if p.device.type != "meta"}
        assert real == {n for n in real if n.startswith("model.layers.0.")}
        assert len(real) == 9
    assert all(p.device.type == "meta" for p in skeleton.model.parameters())


def test_an_accumulator_by_hand() -> None:
    sums = Accumulator.empty(("a",), 2)
    sums.add(torch.tensor([[[1.0, -2.0]]]))
    sums.add(torch.tensor([[3.0, 0.0], [-5.0, 1.0]]))
    found = sums.statistics()
    torch.testing.assert_close(found.gram, torch.tensor([[35.0, -7.0], [-7.0, 5.0]]) / 3)
    assert found.absmax.tolist() == [5, 2]
    torch.testing.assert_close(found.absmean, torch.tensor([3.0, 1.0]))
