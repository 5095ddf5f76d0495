"""config.json as GGUF metadata, for the architectures that Tercet writes."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from tercet.checkpoints.gguf.names import ARCHITECTURES, GgufArchitecture
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import UnsupportedError, unknown_name
from tercet.export.gguf.container import Field
from tercet.models.architectures import find_architecture
from tercet.models.decoder.config import DecoderConfig, read_config
from tercet.models.decoder.rope import frequencies

# llama.cpp's LLAMA_FTYPE_GUESSED: the types are those of the tensors
_FTYPE_GUESSED = 1024
_ROPES = ("default", "linear", "llama3")


def architecture_of(checkpoint: PackedCheckpoint) -> tuple[str, GgufArchitecture, DecoderConfig]:
    """GGUF's name of the architecture, its tensors, its sizes.

    Raises:
        UnsupportedError: Tercet does not write it as GGUF, or it does what llama.cpp's does not.
    """
    config = checkpoint.config
    name = str(config.get("model_type"))
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"{unknown_name('GGUF architecture', name, ARCHITECTURES)}: export to huggingface, "
            f"which takes every architecture"
        )
    sizes = read_config(find_architecture(config), config)
    _refuse_variants(name, sizes, config)
    return name, ARCHITECTURES[name], sizes


def _refuse_variants(name: str, sizes: DecoderConfig, config: Mapping[str, object]) -> None:
    found = {
        f"hidden_act {sizes.activation!r} (silu is known)": sizes.activation != "silu",
        "biases on the attention's output projection": sizes.output_bias,
        "biases in the feed-forward network": sizes.mlp_bias,
        "biases on queries, keys and values": sizes.qkv_bias and name != "qwen2",
        "rotation of only a part of each head": 2 * len(frequencies(config, sizes.head_dim))
        != sizes.head_dim,
        "sliding window": any(window is not None for window in sizes.windows),
        f"rotary positions of type {_rope(config).get('rope_type')!r} "
        f"({', '.join(_ROPES)} are known)": _rope(config).get("rope_type") not in _ROPES,
    }
    wrong = [what for what, there in found.items() if there]
    if wrong:
        raise UnsupportedError(
            f"the GGUF architecture {name!r} has no {'; no '.join(wrong)}: export to huggingface"
        )


def _rope(config: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {"rope_theta": config.get("rope_theta", 10000.0)}
    for key in ("rope_scaling", "rope_parameters"):
        section = config.get(key)
        if isinstance(section, Mapping):
            found.update(cast(Mapping[str, object], section))
    found.setdefault("rope_type", found.get("type", "default"))
    return found


def model_fields(name: str, sizes: DecoderConfig, checkpoint: PackedCheckpoint) -> dict[str, Field]:
    """The fields that describe the model itself."""
    config = checkpoint.config
    rope = _rope(config)
    model = {
        "context_length": sizes.positions,
        "embedding_length": sizes.hidden,
        "block_count": sizes.layers,
        "feed_forward_length": sizes.intermediate,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.key_value_heads,
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "attention.layer_norm_rms_epsilon": sizes.norm_epsilon,
        "rope.dimension_count": sizes.head_dim,
        "rope.freq_base": _float(rope["rope_theta"]),
        "vocab_size": sizes.vocabulary,
    }
    if rope["rope_type"] == "linear":
        model |= {"rope.scaling.type": "linear", "rope.scaling.factor": _float(rope["factor"])}
    return {
        "general.architecture": name,
        "general.type": "model",
        "general.name": checkpoint.directory.absolute().name,
        "general.file_type": _FTYPE_GUESSED,
        "general.quantization_version": 2,
        **{f"{name}.{key}": value for key, value in model.items()},
    }


def _float(value: object) -> float:
    return float(cast(float, value))


def rope_divisors(sizes: DecoderConfig, config: Mapping[str, object]) -> Tensor | None:
    """[D/2] float32, what each rotary frequency is divided by (Llama 3.1); None without that."""
    rope = _rope(config)
    if rope["rope_type"] != "llama3":
        return None
    pairs = torch.arange(0, sizes.head_dim, 2, dtype=torch.float64) / sizes.head_dim
    plain = 1.0 / _float(rope["rope_theta"]) ** pairs
    return (plain / frequencies(config, sizes.head_dim).double()).float()
