"""Mixtures of experts: taken apart, quantized matrix by matrix, and right again in transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

import tercet
from tercet.checkpoints.sources.open import open_source
from tercet.compress.algorithm import Statistics
from tercet.compress.calibration.stream import Stream
from tercet.compress.skeleton import Skeleton
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export import transformers_client
from tercet.models.split_experts import fused_experts, split
from tercet.workflows.export.run import export

EXPERTS = 4
TOKENS = torch.randint(0, 96, (4, 16), generator=torch.Generator().manual_seed(3))
CALIBRATION = {"sequences": 4, "length": 16}


def save_model(kind: str, folder: Path, **more: Any) -> Any:
    torch.manual_seed(7)
    config = AutoConfig.for_model(
        kind,
        vocab_size=96,
        hidden_size=64,
        intermediate_size=32,
        moe_intermediate_size=32,
        num_experts=EXPERTS,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=0.2,
        tie_word_embeddings=True,
        **more,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("mixture")
    return folder, save_model("qwen3_moe", folder)


def packed(source: Path, out: Path, *rules: dict[str, Any]) -> Path:
    plan = tercet.Plan.model_validate({"name": "t", "calibration": CALIBRATION, "rules": rules})
    return tercet.compress(source, plan, out, calibration=TOKENS).directory


@torch.inference_mode()
def logits(model: Any) -> Tensor:
    return model(input_ids=TOKENS[:2], use_cache=False).logits


@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen2_moe", "olmoe"])
def test_experts_taken_apart_compute_the_same(kind: str, tmp_path: Path) -> None:
    model = save_model(kind, tmp_path)
    expected, fused = logits(model), fused_experts(model)
    weights = {name: (m.gate_up_proj.data, m.down_proj.data) for name, m in fused.items()}
    assert len(weights) == 2
    split(model, weights)
    for name, (gate_up, down) in weights.items():
        for index, expert in enumerate(model.get_submodule(name)):
            gate, up = gate_up[index].chunk(2)
            loaded = {"gate_proj": gate, "up_proj": up, "down_proj": down[index]}
            state = {f"{part}.weight": tensor for part, tensor in loaded.items()}
            expert.load_state_dict(state, assign=True)
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("scheme", "algorithm", "options"),
    [("ternary-g32", "gptq", {}), ("nonary-g32", "rtn", {}), ("int4-g32", "awq", {"steps": 1})],
)
def test_packed_experts_mean_their_dequantized_weights(
    scheme: str, algorithm: str, options: dict[str, int], source: tuple[Path, Any], tmp_path: Path
) -> None:
    rule = {"match": "*.layers.*", "format": scheme, "algorithm": algorithm, "options": options}
    directory = packed(source[0], tmp_path / "packed", rule)
    checkpoint = tercet.open_packed(directory)
    assert len(checkpoint.modules) == 2 * (4 + 3 * EXPERTS)
    assert "model.layers.1.mlp.experts.3.down_proj" in checkpoint.modules
    transformers_client.write_twin(checkpoint, tmp_path / "twin")
    expected = logits(transformers_client.load(tmp_path / "twin"))
    model = transformers_client.load(directory)
    torch.testing.assert_close(logits(model), expected, atol=1e-4, rtol=1e-4)
    assert (expected - logits(source[1])).abs().max() > 1e-2
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(transformers_client.load(tmp_path / "again")), logits(model))


def test_a_projection_kept_beside_packed_ones(source: tuple[Path, Any], tmp_path: Path) -> None:
    rules = (
        {"match": "*.down_proj", "keep": True},
        {"match": "*.experts.*", "format": "int8-channel", "algorithm": "rtn"},
        {"match": "*", "keep": True},
    )
    directory = packed(source[0], tmp_path / "packed", *rules)
    name = "model.layers.0.mlp.experts.2.down_proj.weight"
    with safe_open(source[0] / "model.safetensors", "pt") as file:
        assert torch.equal(tercet.open_packed(directory).tensor(name), file.get_tensor(name))
    found = logits(transformers_client.load(directory))
    torch.testing.assert_close(found, logits(source[1]), atol=0.1, rtol=0.05)


def test_an_expert_is_fitted_to_the_tokens_it_sees(source: tuple[Path, Any]) -> None:
    skeleton, seen = Skeleton(open_source(str(source[0]))), dict[str, Tensor]()
    names = [f"model.layers.0.mlp.experts.{i}.gate_proj" for i in range(EXPERTS)]
    names += ["model.layers.0.self_attn.q_proj"]

    def keep(_: Any, arguments: tuple[Tensor, Tensor, Tensor]) -> None:
        hidden, chosen, _ = arguments
        for index in range(EXPERTS):
            seen[names[index]] = hidden[(chosen == index).any(1)]

    source[1].model.layers[0].mlp.experts.register_forward_pre_hook(keep)
    with torch.inference_mode():
        source[1](input_ids=TOKENS, use_cache=False)
    with skeleton.materialize(["model.embed_tokens", "model.layers.0"]):
        stream = Stream.start(skeleton, TOKENS)
        stream.teacher = stream.hidden.clone()
        targets = {name: skeleton.module(name) for name in names}
        groups: dict[tuple[str, ...], Statistics] = {}

        def look_on(members: tuple[str, ...], statistics: Statistics) -> dict[str, Any]:
            groups[members] = statistics
            return {}

        stream.advance_quantizing(skeleton.layers[0], 0, targets, look_on)
    for name, x in seen.items():
        assert 0 < len(x) < TOKENS.numel()
        gram = groups[(name,)].gram
        torch.testing.assert_close(gram, x.T @ x / len(x), atol=1e-4, rtol=1e-4)
        assert groups[(name,)].drift is None
    assert groups[(names[-1],)].drift is not None


def test_a_target_whose_client_would_fill_experts_at_random_refuses(
    source: tuple[Path, Any], tmp_path: Path
) -> None:
    rule = {"match": "*.layers.*", "format": "int4-g32", "algorithm": "rtn"}
    directory = packed(source[0], tmp_path / "packed", rule)
    with pytest.raises(UnsupportedError, match=r"experts\.0\.\w+ and 23 more.*at random"):
        export(directory, "compressed-tensors", tmp_path / "out")


def test_routers_are_never_packed(tmp_path: Path) -> None:
    save_model("qwen2_moe", tmp_path / "source", shared_expert_intermediate_size=32)
    rule = {"match": "*", "format": "int8-channel", "algorithm": "rtn"}
    checkpoint = tercet.open_packed(packed(tmp_path / "source", tmp_path / "packed", rule))
    assert "model.layers.0.mlp.shared_expert.up_proj" in checkpoint.modules
    for router in ("gate", "shared_expert_gate"):
        assert checkpoint.tensor(f"model.layers.0.mlp.{router}.weight").shape[1] == 64


def test_experts_of_some_layers_only_are_refused(source: tuple[Path, Any], tmp_path: Path) -> None:
    rules = (
        {"match": "*.layers.0.mlp.experts.*", "format": "int8-channel", "algorithm": "rtn"},
        {"match": "*", "keep": True},
    )
    directory = packed(source[0], tmp_path / "packed", *rules)
    with pytest.raises(UnsupportedError, match=r"layers\.0.*packed and model\.layers\.1"):
        transformers_client.load(directory)


def test_experts_that_compute_something_else_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("mixtral", tmp_path)
    monkeypatch.setattr(MixtralExperts, "forward", lambda self, hidden, experts, weights: hidden)
    with pytest.raises(UnsupportedError, match=r"MixtralExperts.*they compute what Qwen3's do"):
        Skeleton(open_source(str(tmp_path)))


def test_a_missing_matrix_is_named(source: tuple[Path, Any]) -> None:
    class Short(type(open_source(str(source[0])))):
        def names(self) -> list[str]:
            return [name for name in super().names() if "experts.1.up_proj" not in name]

    with pytest.raises(CheckpointError, match=r"experts\.1\.up_proj"):
        Skeleton(Short(source[0]))
