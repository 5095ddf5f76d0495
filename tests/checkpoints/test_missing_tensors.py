"""No tensor that a foreign checkpoint lacks goes unseen, whatever program wrote it."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tercet.checkpoints.imports.importer import importers
from tercet.errors import CheckpointError
from tercet.export.gguf.container import TensorEntry, write_container
from tercet.workflows.import_checkpoint import import_checkpoint

MISSING = 12
HIDDEN, INNER, VOCABULARY = 64, 96, 96
SHAPES = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64),
    "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
}
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
Tensors = dict[str, Tensor]
GROUP = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FLOAT = {**GROUP, "type": "float"}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
NVFP4 = {**MXFP4, "strategy": "tensor_group", "group_size": 16}
ASYM = {"num_bits": 4, "symmetric": False, "strategy": "group", "group_size": 32}


def words(rows: int, columns: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, (rows, columns)).int()


def gptq(n: int, k: int) -> Tensors:
    parts = {"qweight": words(k // 8, n), "qzeros": words(k // 32, n // 8)}
    scales = torch.rand(k // 32, n).half() + 0.1
    return {**parts, "scales": scales, "g_idx": (torch.arange(k) // 32).int()}


def awq(n: int, k: int) -> Tensors:
    scales = torch.rand(k // 32, n).half() + 0.1
    return {"qweight": words(k, n // 8), "qzeros": words(k // 32, n // 8), "scales": scales}


def bitnet(n: int, k: int) -> Tensors:
    quarters = torch.randint(0, 3, (4, n // 4, k))
    packed = sum(quarters[i] << 2 * i for i in range(4))
    return {"weight": torch.as_tensor(packed).byte(), "weight_scale": torch.ones(1)}


def whole_bytes(n: int, k: int) -> Tensors:
    values = torch.randint(-127, 128, (n, k)).to(torch.int8)
    return {"weight": values, "weight_scale": torch.rand(n, 1).half() + 0.1}


def eight_bit_floats(n: int, k: int) -> Tensors:
    values = torch.randn(n, k).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": torch.rand(n, 1).half() + 0.1}


def packed_words(n: int, k: int) -> Tensors:
    return {
        "weight_packed": words(n, k // 8),
        "weight_scale": torch.rand(n, k // 32).half() + 0.1,
        "weight_shape": torch.tensor([n, k]),
        "weight_zero_point": words(n // 8, k // 32),
    }


def power_of_two_floats(n: int, k: int) -> Tensors:
    scales = torch.randint(120, 130, (n, k // 32)).byte()
    return {"weight_packed": words(n, k // 8).view(torch.uint8), "weight_scale": scales}


def two_level_floats(n: int, k: int) -> Tensors:
    return {
        "weight_packed": words(n, k // 8).view(torch.uint8),
        "weight_scale": (torch.rand(n, k // 16) + 0.1).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.full((1,), 3.0),
    }


def mlx(n: int, k: int) -> Tensors:
    scales = torch.rand(n, k // 32).half() + 0.1
    return {
        "weight": words(n, k // 8).view(torch.uint32),
        "scales": scales,
        "biases": -8 * scales,
    }


def compressed(weights: dict[str, Any], layout: str) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "format": layout}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


LAYOUTS: dict[str, tuple[dict[str, Any], Callable[[int, int], Tensors]]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq),
    "bitnet": ({"quant_method": "bitnet", "linear_class": "bitlinear"}, bitnet),
    "int8": (compressed(GROUP, "int-quantized"), whole_bytes),
    "fp8": (compressed(FLOAT, "float-quantized"), eight_bit_floats),
    "packed": (compressed(ASYM, "pack-quantized"), packed_words),
    "mxfp4": (compressed(MXFP4, "mxfp4-pack-quantized"), power_of_two_floats),
    "nvfp4": (compressed(NVFP4, "nvfp4-pack-quantized"), two_level_floats),
    "mlx": ({"bits": 4, "group_size": 32}, mlx),
}


def write_model(
    folder: Path, section: dict[str, Any], linear: Callable[[int, int], Tensors]
) -> None:
    torch.manual_seed(3)
    folder.mkdir()
    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN).half(),
        "lm_head.weight": torch.randn(VOCABULARY, HIDDEN).half(),
        "model.norm.weight": torch.ones(HIDDEN).half(),
    }
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = torch.ones(HIDDEN).half()
        for name, (n, k) in SHAPES.items():
            parts = linear(n, k)
            tensors |= {f"{prefix}.{name}.{part}": tensor for part, tensor in parts.items()}
            if name.endswith(("q_proj", "k_proj", "v_proj")):
                tensors[f"{prefix}.{name}.bias"] = torch.zeros(n).half()
    save_file(tensors, folder / "model.safetensors")
    key = "quantization_config" if "quant_method" in section else "quantization"
    (folder / "config.json").write_text(json.dumps({**CONFIG, key: section}))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_missing_tensor_is_named_and_nothing_is_left(
    layout: str, seed: int, tmp_path: Path
) -> None:
    section, linear = LAYOUTS[layout]
    write_model(tmp_path / "whole", section, linear)
    import_checkpoint(tmp_path / "whole", tmp_path / "out")
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    folder = copytree(tmp_path / "whole", tmp_path / "in")
    for name in random.Random(seed).sample(sorted(tensors), MISSING):
        left = {key: tensor for key, tensor in tensors.items() if key != name}
        save_file(left, folder / "model.safetensors")
        assert refuses(folder, tmp_path / "second"), f"seed {seed}: {name} was not missed"
        assert {path.name for path in tmp_path.iterdir()} == {"whole", "out", "in"}


def refuses(folder: Path, out: Path) -> bool:
    try:
        import_checkpoint(folder, out)
    except CheckpointError as error:
        return "copy" in str(error) or "config calls for" in str(error)
    return False


GGUF_FIELDS = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": VOCABULARY,
    "tokenizer.ggml.model": "none",
}
GGUF_NAMES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
Q8_0, F32 = 8, 0


def write_gguf(path: Path, without: str | None) -> list[str]:
    """A llama in Q8_0; the names of its tensors."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (VOCABULARY, HIDDEN),
        "output": (VOCABULARY, HIDDEN),
        "output_norm": (HIDDEN,),
    }
    for layer in range(2):
        pairs = zip(GGUF_NAMES, SHAPES.values(), strict=True)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in pairs}
        shapes |= {f"blk.{layer}.{name}_norm": (HIDDEN,) for name in ("attn", "ffn")}
    entries: list[TensorEntry] = []
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        raw = (
            bytes(count * 4) if len(shape) == 1 else (b"\0\x2c" + bytes(range(32))) * (count // 32)
        )
        entries.append(
            TensorEntry(
                name=f"{name}.weight",
                shape=shape,
                number=F32 if len(shape) == 1 else Q8_0,
                size_bytes=len(raw),
                chunks=lambda raw=raw: [raw],
            )
        )
    write_container(path, GGUF_FIELDS, [e for e in entries if e.name != without])
    path.write_bytes(path.read_bytes().replace(b"tercet.checksums", b"foreign.checksum"))
    return [entry.name for entry in entries]


def test_a_tensor_missing_in_a_gguf_file_is_named(seed: int, tmp_path: Path) -> None:
    names = write_gguf(tmp_path / "whole.gguf", None)
    import_checkpoint(tmp_path / "whole.gguf", tmp_path / "out")
    # without a head of its own the file's is the embedding, by the format's own rule
    for name in random.Random(seed).sample(sorted(set(names) - {"output.weight"}), MISSING):
        write_gguf(tmp_path / "in.gguf", name)
        assert refuses(tmp_path / "in.gguf", tmp_path / "second"), f"seed {seed}: {name}"
        assert {p.name for p in tmp_path.iterdir()} == {"whole.gguf", "out", "in.gguf"}


def test_every_importer_is_tried() -> None:
    tried = {section.get("quant_method", "mlx") for section, _ in LAYOUTS.values()} | {"gguf"}
    assert tried == {importer.name for importer in importers()}
