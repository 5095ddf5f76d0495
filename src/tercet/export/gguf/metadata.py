"""config.json as GGUF metadata, for the architectures that Tercet writes."""

import json
import re
from collections.abc import Mapping
from math import isclose
from typing import cast

import torch
from torch import Tensor

from tercet.checkpoints.gguf.architectures import ARCHITECTURES, GgufArchitecture, gguf_kind
from tercet.checkpoints.gguf.notes import ROTATION
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import UnsupportedError, unknown_name
from tercet.export.gguf.container import Field
from tercet.models.architectures import find_architecture
from tercet.models.decoder.config import DecoderConfig, read_config
from tercet.models.decoder.rope import read_rotations
from tercet.models.rope_rule import rope_parameters

# llama.cpp's LLAMA_FTYPE_GUESSED: the types are those of the tensors
_FTYPE_GUESSED = 1024
_ROPES = ("default", "linear", "llama3")


def architecture_of(checkpoint: PackedCheckpoint) -> tuple[str, GgufArchitecture, DecoderConfig]:
    """GGUF's name of the architecture, its tensors, its sizes.

    Raises:
        UnsupportedError: Tercet does not write it as GGUF, or it does what llama.cpp's does not.
    """
    config = checkpoint.config
    model_type = str(config.get("model_type"))
    name = gguf_kind(model_type)
    if name is None:
        known = [t for one in ARCHITECTURES.values() for t in (one.model_type, *one.twins)]
        raise UnsupportedError(
            f"{unknown_name('GGUF architecture', model_type, known)}: export to "
            f"huggingface, which takes every architecture"
        )
    sizes = read_config(find_architecture(config), config)
    _refuse_variants(name, sizes, config)
    return name, ARCHITECTURES[name], sizes


def _refuse_variants(name: str, sizes: DecoderConfig, config: Mapping[str, object]) -> None:
    architecture = ARCHITECTURES[name]
    rope = _rope(sizes, config)
    rotations = read_rotations(find_architecture(config), config, sizes.layers, sizes.head_dim)
    turned = rotations.kinds
    rotated = [bool(turned[kind].any()) for kind in rotations.of_layer]
    scale = architecture.score_scale(
        layers=sizes.layers, hidden=sizes.hidden, heads=sizes.heads, head_dim=sizes.head_dim
    )
    found = {
        f"hidden_act {sizes.activation!r} ({architecture.activation} is known)": sizes.activation
        != architecture.activation,
        "biases on the attention's output projection": sizes.output_bias,
        "biases in the feed-forward network": sizes.mlp_bias,
        "biases on queries, keys and values": sizes.qkv_bias and not architecture.biases,
        "fewer heads of keys than of queries": sizes.heads != sizes.key_value_heads
        and not architecture.grouped,
        "output projection of its own": not sizes.tied and architecture.head == "tied",
        "output projection tied to the embedding": sizes.tied and architecture.head == "own",
        "hidden size other than a multiple of its heads": (
            architecture.divided and sizes.hidden % sizes.heads != 0
        ),
        "rotation of only a part of each head": any(2 * len(k) != sizes.head_dim for k in turned),
        _rotation_reason(architecture): rotated
        != [architecture.rotates(layer) for layer in range(sizes.layers)],
        _window_reason(architecture): sizes.windows != _expected_windows(architecture, sizes),
        f"scores scaled by {sizes.attention_factor:.6g} ({scale:.6g} is known, of this size)": (
            "attention.scale" not in architecture.constants
            and not isclose(sizes.attention_factor, scale, rel_tol=1e-6)
        ),
        "scores without caps": architecture.always_capped
        and None in (sizes.score_cap, sizes.logits_cap),
        f"rotary positions of type {rope.get('rope_type')!r} "
        f"({', '.join(_ROPES)} are known)": rope.get("rope_type") not in _ROPES,
    }
    if architecture.experts is not None and sizes.mixture is not None:
        usual = "" if architecture.experts.normalized else "not "
        found |= {
            "layer without experts": not all(sizes.mixture.layers),
            f"mixture of experts but one whose weights are {usual}made to add up to 1": (
                sizes.mixture.normalized != architecture.experts.normalized
            ),
        }
    wrong = [what for what, there in found.items() if there]
    if wrong:
        raise UnsupportedError(
            f"the GGUF architecture {name!r} has no {'; no '.join(wrong)}: export to huggingface"
        )


def _rotation_reason(architecture: GgufArchitecture) -> str:
    if architecture.unrotated is None:
        return "layer without rotary positions"
    return f"rotary positions but in all layers other than each {architecture.unrotated}th"


def _window_reason(architecture: GgufArchitecture) -> str:
    if architecture.sliding is None:
        return "sliding window"
    return f"sliding window but one in all layers other than each {architecture.sliding.period}th"


def _expected_windows(
    architecture: GgufArchitecture, sizes: DecoderConfig
) -> tuple[int | None, ...]:
    """Those that llama.cpp takes for granted, of the size that the model has."""
    if architecture.sliding is None:
        return (None,) * sizes.layers
    # of a model that has none where llama.cpp has one, 0 is the window of no layer
    window, period = sizes.windows[0] or 0, architecture.sliding.period
    return tuple(window if (index + 1) % period else None for index in range(sizes.layers))


def _rope(sizes: DecoderConfig, config: Mapping[str, object]) -> dict[str, object]:
    """How the layers rotate that see all positions, or all layers where none does."""
    far = next((index for index, window in enumerate(sizes.windows) if window is None), 0)
    return _read_rope(config, far)


def _read_rope(config: Mapping[str, object], layer: int) -> dict[str, object]:
    architecture = find_architecture(config)
    return rope_parameters(architecture.rope({**architecture.defaults, **config}, layer))


def _model_name(architecture: str, checkpoint: PackedCheckpoint) -> str:
    """The directory's name, so written that llama.cpp does not take another model for a Phi-3.

    It looks up Phi-3's special tokens wherever the name has "phi3" or "phi-3" in it, and fails to
    load the vocabulary where they are not there.
    """
    name = checkpoint.directory.absolute().name
    if architecture == "phi3":
        tokens = checkpoint.directory / "tokenizer.json"
        text = tokens.read_text(encoding="utf-8") if tokens.is_file() else ""
        if all(f'"{token}"' in text for token in _PHI3_TOKENS):
            return name
    return re.sub("phi-?(?=3)", "phi_", name, flags=re.IGNORECASE)


_PHI3_TOKENS = ("<unk>", "<s>", "<|endoftext|>", "</s>")


def model_fields(name: str, sizes: DecoderConfig, checkpoint: PackedCheckpoint) -> dict[str, Field]:
    """The fields that describe the model itself."""
    config = checkpoint.config
    rope = _rope(sizes, config)
    model: dict[str, Field] = {
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
    model |= _attention_fields(ARCHITECTURES[name], sizes, config)
    model |= _expert_fields(ARCHITECTURES[name], sizes, config)
    notes = {ROTATION: json.dumps(rope)} if rope["rope_type"] == "llama3" else {}
    return {
        "general.architecture": name,
        "general.type": "model",
        "general.name": _model_name(name, checkpoint),
        "general.file_type": _FTYPE_GUESSED,
        "general.quantization_version": 2,
        **{f"{name}.{key}": value for key, value in model.items()},
        **notes,
    }


def _attention_fields(
    architecture: GgufArchitecture, sizes: DecoderConfig, config: Mapping[str, object]
) -> dict[str, Field]:
    """Caps, factors, windows and rotations that only some architectures have."""
    given = {**find_architecture(config).defaults, **config}
    found = {key: given.get(name) for key, name in architecture.constants.items()}
    fields: dict[str, Field] = {k: _float(one) for k, one in found.items() if one is not None}
    if architecture.sliding is not None:
        fields["attention.sliding_window"] = sizes.windows[0] or 0
        if architecture.sliding.own_base:
            fields["rope.freq_base_swa"] = _float(_read_rope(config, 0)["rope_theta"])
    return fields


def _expert_fields(
    architecture: GgufArchitecture, sizes: DecoderConfig, config: Mapping[str, object]
) -> dict[str, Field]:
    if architecture.experts is None or sizes.mixture is None:
        return {}
    given = {**find_architecture(config).defaults, **config}
    widths = architecture.experts.widths.items()
    return {
        "expert_count": sizes.mixture.experts,
        "expert_used_count": sizes.mixture.per_token,
        **{key: cast(int, given[name]) for key, name in widths},
    }


def _float(value: object) -> float:
    return float(cast(float, value))


def rope_divisors(sizes: DecoderConfig, config: Mapping[str, object]) -> Tensor | None:
    """[D/2] float32, what each rotary frequency is divided by (Llama 3.1); None without that."""
    rope = _rope(sizes, config)
    if rope["rope_type"] != "llama3":
        return None
    pairs = torch.arange(0, sizes.head_dim, 2, dtype=torch.float64) / sizes.head_dim
    plain = 1.0 / _float(rope["rope_theta"]) ** pairs
    # only architectures whose layers all rotate alike have this kind
    kinds = read_rotations(find_architecture(config), config, sizes.layers, sizes.head_dim).kinds
    return (plain / kinds[0].double()).float()
