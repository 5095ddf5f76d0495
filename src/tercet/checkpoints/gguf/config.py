"""config.json of a model from the metadata of its GGUF file.

transformers' own conversion (AutoConfig with gguf_file=) parses the whole vocabulary first, 3.6 s
on 49,152 tokens, and leaves out what changes the result: scaled rotary positions.
"""

import json
from collections.abc import Mapping
from math import pi
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.gguf.architectures import GgufArchitecture
from tercet.checkpoints.gguf.header import Value, damage_error
from tercet.checkpoints.gguf.notes import noted_rotation
from tercet.errors import CheckpointError

_REQUIRED: dict[str, str] = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}

_TOKENS: dict[str, str] = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}

_NOT_CONFIG = ("_name_or_path", "transformers_version", "dtype")

_WINDOW, _PERIOD = "attention.sliding_window", "attention.sliding_window_pattern"
# of layers with a window, where the file does not say: the one that all of Gemma 3 have
_LOCAL_BASE = 10000.0
# transformers' names in layer_types
SLIDING, FULL = "sliding_attention", "full_attention"

_CONTEXT = "original_max_position_embeddings"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, _CONTEXT: 8192}


class GgufMetadata:
    """The fields of one file, under the prefix of its architecture."""

    def __init__(self, path: Path, fields: Mapping[str, Value]) -> None:
        self.path = path
        self.fields = fields
        self.kind = str(fields.get("general.architecture"))

    def get(self, key: str) -> Value | None:
        """The value of `ARCHITECTURE.key`, None where it is absent."""
        return self.fields.get(f"{self.kind}.{key}")

    def number(self, key: str) -> int | float:
        """As `get`; CheckpointError unless it is one number (arrays hold a number per layer)."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise damage_error(self.path, f"{self.kind}.{key} is {value!r}, one number is needed")
        return value

    @property
    def layers(self) -> int:
        """How many decoder layers there are."""
        return int(self.number("block_count"))

    @property
    def heads(self) -> int:
        """How many query heads a layer has."""
        return int(self.number("attention.head_count"))

    @property
    def key_heads(self) -> int:
        """How many key and value heads a layer has."""
        key = "attention.head_count_kv"
        return self.heads if self.get(key) is None else int(self.number(key))

    @property
    def experts(self) -> int | None:
        """How many experts a layer has, None where the file does not say."""
        return None if self.get("expert_count") is None else int(self.number("expert_count"))


def gguf_config(
    metadata: GgufMetadata,
    architecture: GgufArchitecture,
    *,
    vocabulary: int,
    tied: bool,
    rope_divisors: Tensor | None,
) -> dict[str, Any]:
    """The content of config.json.

    Args:
        metadata: the file's fields.
        architecture: how the file is laid out.
        vocabulary: rows of the embedding.
        tied: whether the head is the embedding.
        rope_divisors: [d/2] float32, what each rotary frequency is divided by, where the file says.
    """
    from transformers import AutoConfig

    values: dict[str, Any] = {name: metadata.number(key) for key, name in _REQUIRED.items()}
    for key, name in _TOKENS.items():
        values[name] = metadata.fields.get(key)
    if architecture.own_head_size:
        values["head_dim"] = _head_size(metadata)
    _check_rotated(metadata)
    values |= _attention(metadata, architecture)
    values |= _mixture(metadata, architecture)
    if architecture.unrotated is not None:
        values["no_rope_layers"] = [int(architecture.rotates(i)) for i in range(metadata.layers)]
    rope = _rope(metadata, rope_divisors)
    raw: Any = AutoConfig.for_model(
        architecture.model_type,
        architectures=[architecture.class_name],
        num_key_value_heads=metadata.key_heads,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        rope_parameters=_rope_by_layer_type(metadata, architecture, rope),
        **values,
    )
    config: dict[str, Any] = json.loads(raw.to_json_string())
    kept = {key: value for key, value in config.items() if key not in _NOT_CONFIG}
    return {**kept, "tie_word_embeddings": tied}


def _attention(metadata: GgufMetadata, architecture: GgufArchitecture) -> dict[str, Any]:
    """Caps, factors, windows and the scale of scores, where the architecture has its own."""
    # where the file names none, llama.cpp and transformers take the same for granted, but for
    # the scale of scores
    constants = architecture.constants
    there = {key: name for key, name in constants.items() if metadata.get(key) is not None}
    values: dict[str, Any] = {name: float(metadata.number(key)) for key, name in there.items()}
    if "attention.scale" in constants.keys() - there.keys():
        values[constants["attention.scale"]] = _head_size(metadata) ** -0.5
    sliding = architecture.sliding
    if architecture.windowed and metadata.get(_WINDOW):
        values["sliding_window"] = int(metadata.number(_WINDOW))
    if sliding is None:
        if architecture.model_type == "olmo2" and metadata.get(_WINDOW) is not None:
            raise CheckpointError(
                f"{metadata.path}: it has a sliding window, so it is an OLMo 3, which Tercet does "
                "not read from GGUF: pass the model's Hugging Face directory instead"
            )
        return values
    scale = architecture.score_scale(
        layers=metadata.layers,
        hidden=int(metadata.number("embedding_length")),
        heads=metadata.heads,
        head_dim=_head_size(metadata),
    )
    values["query_pre_attn_scalar"] = round(scale**-2)
    values["sliding_window"] = int(metadata.number(_WINDOW))
    period = metadata.get(_PERIOD)
    if period not in (None, sliding.period):
        raise CheckpointError(
            f"{metadata.path}: {metadata.kind}.{_PERIOD} is {period!r}; Tercet knows this "
            f"architecture with {sliding.period}: pass the model's Hugging Face directory instead"
        )
    values["layer_types"] = [
        SLIDING if (layer + 1) % sliding.period else FULL for layer in range(metadata.layers)
    ]
    return values


def _mixture(metadata: GgufMetadata, architecture: GgufArchitecture) -> dict[str, Any]:
    experts = architecture.experts
    if experts is None:
        return {}
    return {
        "num_experts": metadata.number("expert_count"),
        "num_experts_per_tok": metadata.number("expert_used_count"),
        "norm_topk_prob": experts.normalized,
        **{name: metadata.number(key) for key, name in experts.widths.items()},
    }


def _rope_by_layer_type(
    metadata: GgufMetadata, architecture: GgufArchitecture, rope: dict[str, Any]
) -> dict[str, Any]:
    if architecture.sliding is None or not architecture.sliding.own_base:
        return rope
    key = "rope.freq_base_swa"
    base = _LOCAL_BASE if metadata.get(key) is None else float(metadata.number(key))
    return {SLIDING: {"rope_type": "default", "rope_theta": base}, FULL: rope}


def _head_size(metadata: GgufMetadata) -> int:
    if metadata.get("attention.key_length") is not None:
        return int(metadata.number("attention.key_length"))
    return int(metadata.number("embedding_length")) // metadata.heads


def _check_rotated(metadata: GgufMetadata) -> None:
    size, key = _head_size(metadata), "rope.dimension_count"
    if metadata.get(key) is not None and metadata.number(key) != size:
        raise _unknown_rope(
            metadata.path, f"{metadata.number(key)} of {size} columns of each head are rotated"
        )


def _rope(metadata: GgufMetadata, divisors: Tensor | None) -> dict[str, Any]:
    base = "rope.freq_base"
    theta = 10000.0 if metadata.get(base) is None else float(metadata.number(base))
    kind = metadata.get("rope.scaling.type")
    if kind == "linear":
        return {
            "rope_type": "linear",
            "rope_theta": theta,
            "factor": float(metadata.number("rope.scaling.factor")),
        }
    if kind not in (None, "none"):
        raise _unknown_rope(metadata.path, f"its rotary positions are scaled by {kind!r}")
    if divisors is None:
        return {"rope_type": "default", "rope_theta": theta}
    # the constants are noted, where Tercet wrote the file; else they may be those of Llama 3.1
    noted = noted_rotation(metadata.path, metadata.fields)
    for constants in (noted, {"factor": float(divisors.max()), **_LLAMA3}):
        if _make(divisors, theta, constants):
            kept = {key: constants[key] for key in ("factor", *_LLAMA3)}
            return {"rope_type": "llama3", "rope_theta": theta, **kept}
    raise _unknown_rope(metadata.path, "its rope_freqs are not those of Llama 3.1 to 3.3")


def _make(divisors: Tensor, theta: float, constants: Mapping[str, Any]) -> bool:
    """Whether a file's divisors [d/2] are what these constants give."""
    if not all(isinstance(constants.get(key), int | float) for key in ("factor", *_LLAMA3)):
        return False
    return torch.allclose(divisors.double(), llama3_divisors(theta, 2 * len(divisors), constants))


def llama3_divisors(theta: float, head_size: int, constants: Mapping[str, float]) -> Tensor:
    """[head_size / 2] float64: what Llama 3.1's kind of rotation divides each frequency by.

    1 for wavelengths below context / high, `factor` above context / low, and in between
    1 / ((1 - s) / factor + s) with s = (context / wavelength - low) / (high - low). GGUF stores
    these numbers, config.json the constants.

    Args:
        theta: the base.
        head_size: d.
        constants: `factor`, `low_freq_factor`, `high_freq_factor` and
            `original_max_position_embeddings`, the context.
    """
    low, high = constants["low_freq_factor"], constants["high_freq_factor"]
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    wavelengths = 2 * pi * theta**exponents
    smooth = ((constants[_CONTEXT] / wavelengths - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - smooth) / constants["factor"] + smooth)


def _unknown_rope(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: {what}, which Tercet cannot write as a config.json: pass the model's Hugging "
        "Face directory instead"
    )
