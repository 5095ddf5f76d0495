import hashlib
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import quantize
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tercet.checkpoints.gguf.architectures import ARCHITECTURES
from tercet.checkpoints.gguf.config import GgufMetadata, gguf_config, llama3_divisors
from tercet.checkpoints.gguf.header import read_gguf_header
from tercet.checkpoints.gguf.names import hugging_face_names
from tercet.checkpoints.sources.fetch import FETCHABLE, is_fetched
from tercet.checkpoints.sources.gguf_file import halves_from_pairs
from tercet.checkpoints.sources.open import open_source
from tercet.errors import CheckpointError

HEADS, KEY_HEADS, LAYERS, WIDTH, VOCABULARY = 4, 2, 2, 64, 96

# transformers takes qwen3's own size for granted, whatever the file says
HEAD_SIZE = {"qwen3": 128, "qwen3moe": 16, "gemma2": 32, "gemma3": 256}
OWN_HEAD_SIZE = ("llama", *HEAD_SIZE)
WINDOWED = {"attention.sliding_window": 8}
EXPERTS = 3
# what config.json and the file have beside the sizes, by GGUF's name of the architecture
OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma2": (
        {"sliding_window": 8, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 20.0},
        {**WINDOWED, "attn_logit_softcapping": 20.0},
    ),
    "gemma3": ({"sliding_window": 8}, {**WINDOWED, "rope.freq_base_swa": 700.0}),
    "smollm3": ({"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, {}),
    "phi3": ({"pad_token_id": 0, "sliding_window": 8}, WINDOWED),
    "granite": (
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.125,
            "residual_multiplier": 0.25,
            "logits_scaling": 8.0,
        },
        {
            "embedding_scale": 12.0,
            "attention.scale": 0.125,
            "residual_scale": 0.25,
            "logit_scale": 8.0,
        },
    ),
    "olmoe": (
        {"num_experts": EXPERTS, "num_experts_per_tok": 2, "pad_token_id": 0},
        {"expert_count": EXPERTS, "expert_used_count": 2},
    ),
    "qwen2moe": (
        {
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
        },
        {
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_feed_forward_length": 24,
            "expert_shared_feed_forward_length": 40,
        },
    ),
    "qwen3moe": (
        {"num_experts": EXPERTS, "num_experts_per_tok": 1, "moe_intermediate_size": 24},
        {"expert_count": EXPERTS, "expert_used_count": 1, "expert_feed_forward_length": 24},
    ),
}

Fields = dict[str, Any]


def tiny_model(kind: str, tied: bool) -> Any:
    torch.manual_seed(1)
    own, _ = OWN.get(kind, ({}, {}))
    config = AutoConfig.for_model(
        ARCHITECTURES[kind].model_type,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        vocab_size=VOCABULARY,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        **({"head_dim": HEAD_SIZE.get(kind, 16)} if kind in OWN_HEAD_SIZE else {}),
        **own,
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def state_of(kind: str, tied: bool) -> dict[str, Tensor]:
    """The tensors of the tiny model, experts one by one as files have them."""
    state: dict[str, Tensor] = tiny_model(kind, tied).state_dict()
    for name in [name for name in state if ".mlp.experts." in name]:
        prefix, fused = name.rpartition(".")[0], state.pop(name)
        for expert, matrix in enumerate(fused):
            parts = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",)
            for part, values in zip(parts, matrix.chunk(len(parts)), strict=True):
                state[f"{prefix}.{expert}.{part}.weight"] = values
    return state


def pairs_from_halves(weight: Tensor, heads: int) -> Tensor:
    """What llama.cpp's converter does to queries and keys, stated row by row."""
    size = weight.shape[0] // heads
    rows = [
        head * size + half * (size // 2) + i
        for head in range(heads)
        for i in range(size // 2)
        for half in (0, 1)
    ]
    return weight[rows]


def gguf_tensors(kind: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state dict under GGUF's names, rotated as the converter does."""
    stored = ["token_embd.weight", "output_norm.weight", "output.weight"]
    for layer in range(LAYERS):
        stored += [f"blk.{layer}.{tail}" for tail in ARCHITECTURES[kind].layer]
    tensors = {}
    for name in stored:
        theirs = hugging_face_names(name, ARCHITECTURES[kind], EXPERTS)
        assert theirs
        if theirs[0] not in state:
            continue
        matrices = [state[one] for one in theirs]
        tensor = torch.stack(matrices) if len(theirs) > 1 else matrices[0]
        if "_inp_shexp" in name:
            tensor = tensor[0]
        if ARCHITECTURES[kind].rotated and name.endswith(("attn_q.weight", "attn_k.weight")):
            tensor = pairs_from_halves(tensor, HEADS if "attn_q" in name else KEY_HEADS)
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        tensors[name] = tensor
    return tensors


def fields(kind: str, **more: Any) -> Fields:
    return {
        "block_count": LAYERS,
        "context_length": 256,
        "embedding_length": WIDTH,
        "feed_forward_length": 96,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KEY_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 5000.0,
        "attention.key_length": HEAD_SIZE.get(kind, 16),
        "rope.dimension_count": HEAD_SIZE.get(kind, 16),
        "vocab_size": VOCABULARY,
        **OWN.get(kind, ({}, {}))[1],
        **more,
    }


def in_blocks(data: Any, kind: GGMLQuantizationType) -> Any:
    """Data [N, K] in blocks of that type; zeros where the gguf package only reads it."""
    if kind is not GGMLQuantizationType.NVFP4:
        return quantize(data, kind)
    weights, size = GGML_QUANT_SIZES[kind]
    return np.zeros((len(data), data.shape[1] // weights * size), dtype=np.uint8)


def write_gguf(
    path: Path,
    kind: str,
    tensors: dict[str, Tensor],
    metadata: Fields,
    prepare: Callable[[GGUFWriter], None] = lambda writer: None,
    quantized: GGMLQuantizationType | None = None,
) -> Path:
    writer = GGUFWriter(path, kind)
    prepare(writer)
    for key, value in metadata.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        adder: Any = add.get(type(value), writer.add_array)
        adder(f"{kind}.{key}", value)
    for name, tensor in tensors.items():
        data = tensor.detach().float().numpy()
        if quantized is not None and tensor.ndim == 2:
            writer.add_tensor(name, in_blocks(data, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_gguf(path: Path, kind: str = "llama", tied: bool = True, **more: Any) -> Path:
    state = state_of(kind, tied)
    if tied:
        del state["lm_head.weight"]
    return write_gguf(path, kind, gguf_tensors(kind, state), fields(kind, **more))


@pytest.mark.parametrize(
    ("kind", "tied"),
    [
        *(("llama", True), ("qwen2", False), ("qwen3", True)),
        *(("gemma2", True), ("gemma3", False), ("olmo2", False), ("smollm3", True)),
        *(("granite", True), ("phi3", False)),
        *(("olmoe", False), ("qwen2moe", False), ("qwen3moe", True)),
    ],
)
def test_reads_what_was_converted(tmp_path: Path, kind: str, tied: bool) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", kind, tied)
    state = state_of(kind, tied)
    source = open_source(path)
    assert set(source.names()) | set(source.aliases) == set(state)
    assert bool(source.aliases) is tied
    for name in source.names():
        stored = state[name]
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            stored = (stored + 1) - 1  # the bits that 1 + w has of w
        assert torch.equal(source.read(name), stored), name
        assert source.shape(name) == tuple(state[name].shape)
        assert source.dtype(name) == torch.float32
    read = dict(source.read_all(source.names()))
    assert set(read) == set(source.names())
    assert all(torch.equal(read[name], source.read(name)) for name in read)
    assert source.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.size_bytes == path.stat().st_size


def test_settings_of_gemma_and_olmo(tmp_path: Path) -> None:
    config = open_source(tiny_gguf(tmp_path / "a.gguf", "gemma2")).config
    kinds = ["sliding_attention", "full_attention"]
    assert (config["model_type"], config["architectures"]) == ("gemma2", ["Gemma2ForCausalLM"])
    assert (config["sliding_window"], config["layer_types"]) == (8, kinds)
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (20.0, 30.0)
    assert (config["query_pre_attn_scalar"], config["head_dim"]) == (32, 32)
    assert config["hidden_activation"] == "gelu_pytorch_tanh"
    config = open_source(tiny_gguf(tmp_path / "b.gguf", "gemma3")).config
    assert config["model_type"] == "gemma3_text"
    assert config["layer_types"] == ["sliding_attention"] * LAYERS
    assert config["rope_parameters"] == {
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }
    config = open_source(tiny_gguf(tmp_path / "c.gguf", "olmo2")).config
    assert (config["model_type"], config["rms_norm_eps"]) == ("olmo2", pytest.approx(1e-5))
    scale = ARCHITECTURES["gemma2"].score_scale(layers=46, hidden=4608, heads=32, head_dim=128)
    assert scale == 144**-0.5


@pytest.mark.parametrize("kind", ["granite", "phi3", "olmoe", "qwen2moe", "qwen3moe"])
def test_settings_beside_the_sizes(kind: str, tmp_path: Path) -> None:
    config = open_source(tiny_gguf(tmp_path / "a.gguf", kind)).config
    known = ARCHITECTURES[kind]
    assert (config["model_type"], config["architectures"]) == (known.model_type, [known.class_name])
    named, _ = OWN[kind]
    found = AutoConfig.for_model(**config)
    for key, value in named.items():
        if key != "pad_token_id":
            assert getattr(found, key) == value, key
    if known.experts is not None:
        assert found.norm_topk_prob is (kind == "qwen3moe")


def test_a_scale_of_scores_that_granite_does_not_name(tmp_path: Path) -> None:
    named = {key: value for key, value in fields("granite").items() if key != "attention.scale"}
    tensors = gguf_tensors("granite", state_of("granite", False))
    config = open_source(write_gguf(tmp_path / "a.gguf", "granite", tensors, named)).config
    assert config["attention_multiplier"] == 16**-0.5


def test_stacks_of_experts(tmp_path: Path) -> None:
    wrong = tiny_gguf(tmp_path / "a.gguf", "qwen3moe", expert_count=4)
    assert re.search(
        r"'blk\.0\.ffn_gate_exps\.weight' has shape \[3, 24, 64\], and there are 4", refusal(wrong)
    )
    tensors = gguf_tensors("qwen3moe", state_of("qwen3moe", False))
    del tensors["blk.1.ffn_up_exps.weight"]
    write_gguf(tmp_path / "b.gguf", "qwen3moe", tensors, fields("qwen3moe"))
    assert "'model.layers.1.mlp.experts.0.up_proj.weight'" in refusal(tmp_path / "b.gguf")


def test_a_rotation_of_a_part_of_each_head_is_refused(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", "phi3", **{"rope.dimension_count": 12})
    with pytest.raises(CheckpointError, match="12 of 16 columns of each head are rotated"):
        _ = open_source(path).config


def test_layers_of_smollm3_that_do_not_rotate(tmp_path: Path) -> None:
    sizes = {f"smollm3.{key}": value for key, value in fields("smollm3", block_count=9).items()}
    metadata = GgufMetadata(tmp_path, {"general.architecture": "smollm3", **sizes})
    config = gguf_config(
        metadata, ARCHITECTURES["smollm3"], vocabulary=96, tied=True, rope_divisors=None
    )
    assert (config["model_type"], config["architectures"]) == ("smollm3", ["SmolLM3ForCausalLM"])
    assert config["no_rope_layers"] == [1, 1, 1, 0, 1, 1, 1, 0, 1]
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 5000.0}


def test_windows_that_an_architecture_has_not(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="so it is an OLMo 3"):
        _ = open_source(tiny_gguf(tmp_path / "a.gguf", "olmo2", **WINDOWED)).config
    pattern = {"attention.sliding_window_pattern": 4}
    with pytest.raises(
        CheckpointError, match=r"sliding_window_pattern is 4; Tercet knows .* with 6"
    ):
        _ = open_source(tiny_gguf(tmp_path / "b.gguf", "gemma3", **pattern)).config


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_agrees_with_transformers(tmp_path: Path, kind: str) -> None:
    tensors = gguf_tensors(kind, tiny_model(kind, False).state_dict())
    write_gguf(
        tmp_path / "a.gguf",
        kind,
        tensors,
        fields(kind),
        prepare=add_token_ids,
        quantized=GGMLQuantizationType.Q4_1,
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="a.gguf")
    source = open_source(tmp_path / "a.gguf")
    assert set(source.names()) == set(theirs.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(source.read(name), tensor.float()), name
    assert_config_agrees(source.config, theirs.config.to_dict())
    assert source.config["tie_word_embeddings"] is False


def add_token_ids(writer: GGUFWriter) -> None:
    writer.add_bos_token_id(3)
    writer.add_eos_token_id(4)
    writer.add_pad_token_id(5)


def assert_config_agrees(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["architectures"] == [ARCHITECTURES[ours["model_type"]].class_name]
    assert "quantization_config" not in ours
    for key, value in ours.items():
        if key != "architectures":
            assert value == theirs[key], key


def test_config_rebuilds_the_same_model(tmp_path: Path) -> None:
    source = open_source(tiny_gguf(tmp_path / "a.gguf"))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**source.config))
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == {
        name: source.shape(name) for name in source.names()
    }


def test_header_agrees_with_gguf_reader(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", "qwen2")
    reader, header = GGUFReader(path), read_gguf_header(path)
    assert list(header.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        ours = header.tensors[tensor.name]
        assert ours.shape == tuple(tensor.shape.tolist()[::-1])
        assert (ours.begin, ours.size_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert ours.kind.number == tensor.tensor_type
    for key, value in header.fields.items():
        assert value == reader.fields[key].contents()


def test_every_kind_of_metadata_is_read(tmp_path: Path) -> None:
    def prepare(writer: GGUFWriter) -> None:
        writer.add_int8("a.i8", -3)
        writer.add_uint16("a.u16", 60_000)
        writer.add_int64("a.i64", -(2**40))
        writer.add_uint64("a.u64", 2**60)
        writer.add_float64("a.f64", 0.1)
        writer.add_bool("a.yes", True)
        writer.add_array("a.numbers", [3, 1, 2])
        writer.add_array("a.words", ["x", "yy"])
        writer.add_string("a.text", "naïve")

    path = write_gguf(tmp_path / "a.gguf", "llama", {"w": torch.ones(2)}, {}, prepare)
    found = read_gguf_header(path).fields
    assert {key: value for key, value in found.items() if key.startswith("a.")} == {
        "a.i8": -3,
        "a.u16": 60_000,
        "a.i64": -(2**40),
        "a.u64": 2**60,
        "a.f64": 0.1,
        "a.yes": True,
        "a.numbers": (3, 1, 2),
        "a.words": (),
        "a.text": "naïve",
    }


def test_rows_in_pairs_become_halves() -> None:
    rows = torch.arange(12.0)[:, None]
    assert halves_from_pairs(rows, 2).flatten().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert torch.equal(halves_from_pairs(pairs_from_halves(rows, 3), 3), rows)


def test_missing_key_heads_mean_as_many_as_heads(tmp_path: Path) -> None:
    model = fields("llama")
    del model["attention.head_count_kv"]
    state = tiny_model("llama", True).state_dict()
    path = write_gguf(tmp_path / "a.gguf", "llama", gguf_tensors("llama", state), model)
    assert open_source(path).config["num_key_value_heads"] == HEADS


def llama31(path: Path, divisors: Tensor) -> Path:
    tensors = gguf_tensors("llama", tiny_model("llama", False).state_dict())
    return write_gguf(path, "llama", {**tensors, "rope_freqs.weight": divisors}, fields("llama"))


def test_scaled_rotary_positions_of_llama_3_are_recognized(tmp_path: Path) -> None:
    theirs = AutoConfig.for_model(
        "llama",
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        head_dim=WIDTH // HEADS,
        max_position_embeddings=131_072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, torch.device("cpu"))
    plain = 5000.0 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    divisors = (plain / frequencies.double()).float()
    assert len(divisors.unique()) > 2
    made = llama3_divisors(5000.0, 16, theirs.rope_parameters)
    torch.testing.assert_close(made.float(), divisors)
    more = fields("llama", context_length=131_072)
    tensors = gguf_tensors("llama", tiny_model("llama", False).state_dict())
    path = write_gguf(
        tmp_path / "a.gguf", "llama", {**tensors, "rope_freqs.weight": divisors}, more
    )
    source = open_source(path)
    assert "rope_freqs.weight" not in source.names()
    assert source.config["rope_parameters"] == theirs.rope_parameters


def test_other_scalings_of_rotary_positions(tmp_path: Path) -> None:
    source = open_source(llama31(tmp_path / "a.gguf", torch.linspace(1, 9, 8)))
    with pytest.raises(CheckpointError, match=r"rope_freqs are not those of Llama 3\.1"):
        _ = source.config
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    with pytest.raises(CheckpointError, match="rotary positions are scaled by 'yarn'"):
        _ = open_source(tiny_gguf(tmp_path / "b.gguf", **yarn)).config
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    rope = open_source(tiny_gguf(tmp_path / "c.gguf", **linear)).config["rope_parameters"]
    assert rope == {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}


@pytest.mark.parametrize("kind", ["llama", "gemma3", "olmo2", "smollm3"])
def test_tokenizer_goes_through_transformers(kind: str, tmp_path: Path) -> None:
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = ["<|end|>", *letters, "ab", "abc"]

    def prepare(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
        writer.add_token_types([3] + [1] * (len(tokens) - 1))
        writer.add_token_merges(["a b", "ab c"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
        writer.add_chat_template("{{ messages[0]['content'] }}!")

    state = tiny_model(kind, False).state_dict()
    tensors = gguf_tensors(kind, state)
    path = write_gguf(tmp_path / "a.gguf", kind, tensors, fields(kind), prepare)
    source = open_source(path)
    assert (source.config["bos_token_id"], source.config["eos_token_id"]) == (0, 0)
    source.save_companions(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("abcab")["input_ids"] == [tokens.index("abc"), tokens.index("ab")]
    # a line, not one a token with its indent
    assert (tmp_path / "out" / "tokenizer.json").read_bytes().count(b"\n") == 0
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "hi!"


def test_no_tokenizer_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    open_source(tiny_gguf(tmp_path / "a.gguf")).save_companions(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as found:
        open_source(path)
    return str(found.value)


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    tensors = gguf_tensors("llama", tiny_model("llama", False).state_dict())
    path = tmp_path / "a.gguf"
    write_gguf(path, "qwen2vl", tensors, fields("qwen2vl"))
    assert "unknown GGUF architecture 'qwen2vl': did you mean 'qwen2'" in refusal(path)
    write_gguf(path, "llama", {**tensors, "blk.0.ffn_gate_exps.weight": torch.ones(2)}, {})
    assert "tensor 'blk.0.ffn_gate_exps.weight' is none that Tercet knows" in refusal(path)
    del tensors["blk.1.ffn_up.weight"]
    write_gguf(path, "llama", tensors, fields("llama"))
    assert re.search(
        r"tensor 'model\.layers\.1\.mlp\.up_proj\.weight' .* is missing", refusal(path)
    )
    integers = {**tensors, "blk.1.ffn_up.weight": torch.ones(2)}
    writer_kind = GGMLQuantizationType.NVFP4
    write_gguf(path, "llama", integers, fields("llama"), quantized=writer_kind)
    assert "is in NVFP4; Tercet reads Q4_0, Q4_1" in refusal(path)


def test_a_part_of_a_split_file_is_refused(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "a.gguf",
        "llama",
        {"w": torch.ones(2)},
        {},
        lambda writer: writer.add_uint16("split.count", 3),
    )
    assert "one part of several: merge them" in refusal(path)


def test_a_number_per_layer_is_refused(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", **{"attention.head_count_kv": [2, 1]})
    with pytest.raises(CheckpointError, match=r"head_count_kv is \(2, 1\), one number is needed"):
        open_source(path).read("model.layers.0.self_attn.k_proj.weight")


def test_damage_is_found_at_open(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf")
    raw = path.read_bytes()

    def damaged(content: bytes) -> str:
        path.write_bytes(content)
        return refusal(path)

    assert "it has 0 bytes, not even a header" in damaged(b"")
    assert "does not begin with 'GGUF'" in damaged(b"GGML" + raw[4:])
    assert "its numbers are big-endian" in damaged(raw[:4] + struct.pack(">I", 3) + raw[8:])
    assert "its version is 9" in damaged(raw[:4] + struct.pack("<I", 9) + raw[8:])
    assert "a.gguf is no sound GGUF file: truncated: its header goes on past" in damaged(raw[:300])
    assert re.search(
        r"truncated: tensor '.*' ends at byte [\d,]+, the file at [\d,]+; download",
        damaged(raw[:-64]),
    )
    at = raw.index(b"blk.0.ffn_up.weight")
    assert "'blk.0.ffn_uq.weight' is none" in damaged(raw[:at] + b"blk.0.ffn_uq" + raw[at + 12 :])
    twice = raw[:at] + b"blk.1" + raw[at + 5 :]
    assert "'blk.1.ffn_up.weight' is listed twice" in damaged(twice)
    kind = at + len("blk.0.ffn_up.weight") + 4 + 16
    assert "has the unknown type 200" in damaged(raw[:kind] + b"\xc8" + raw[kind + 1 :])


def test_a_damaged_array_length_ends_quickly(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "a.gguf",
        "llama",
        {"w": torch.ones(2)},
        {},
        lambda writer: writer.add_array("a.numbers", [1, 2, 3]),
    )
    raw = path.read_bytes()
    length = raw.index(b"a.numbers") + len("a.numbers") + 8
    path.write_bytes(raw[:length] + struct.pack("<Q", 2**62) + raw[length + 8 :])
    assert "truncated: its header goes on" in refusal(path)


def test_a_file_that_shrinks_after_opening_is_told(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf")
    source = open_source(path)
    os.truncate(path, path.stat().st_size // 2)
    last = max(source.names(), key=lambda name: source.find_tensor(name).begin)
    with pytest.raises(CheckpointError, match="became shorter while it was read"):
        source.read(last)


# over name and float32 bytes of each tensor, sorted by name, of what transformers 5.23 gives by
# AutoModelForCausalLM.from_pretrained(gguf_file=..., dtype=float32); loading it here takes 20 s
SMOLLM2_AS_TRANSFORMERS_READS_IT = (
    "785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154"
)


@pytest.mark.skipif(
    not is_fetched("smollm2-135m"), reason="needs the real model: `tercet fetch smollm2-135m`"
)
def test_the_real_smollm2_reads_as_transformers_reads_it() -> None:
    source = open_source("smollm2-135m")
    assert len(source.names()) == 272
    assert source.parameter_count == 134_515_008
    assert source.sha256() == FETCHABLE["smollm2-135m"].members[0].sha256
    digest = hashlib.sha256()
    for name in sorted(source.names()):
        digest.update(name.encode())
        digest.update(source.read(name).float().numpy().tobytes())
    assert digest.hexdigest() == SMOLLM2_AS_TRANSFORMERS_READS_IT
    wanted = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_parameters": {"rope_theta": 100_000.0, "rope_type": "default"},
    }
    assert {key: source.config[key] for key in wanted} == wanted
