"""GGUF's names of tensors and Hugging Face's, by architecture; a new one is one entry here."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tercet.errors import CheckpointError, unknown_name

_MODEL: dict[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

ROPE_DIVISORS = "rope_freqs.weight"

_LAYER: dict[str, str] = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}

_QKV_BIASES: dict[str, str] = {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
}

_QK_NORMS: dict[str, str] = {
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
}


@dataclass(frozen=True, kw_only=True)
class GgufArchitecture:
    """How one `general.architecture` is laid out.

    Attributes:
        class_name: Hugging Face's causal language model; its model_type is GGUF's name.
        layer: GGUF name after `blk.N.` to Hugging Face's after `model.layers.N.`; all present.
        own_head_size: whether config.json has `head_dim`.
        rotated: whether rows of attn_q and attn_k are stored in pairs (2i, 2i + 1) rather than in
            halves (i, i + d/2), as llama's converter does for its rotary embedding.
    """

    class_name: str
    layer: Mapping[str, str]
    own_head_size: bool = False
    rotated: bool = False


ARCHITECTURES: dict[str, GgufArchitecture] = {
    "llama": GgufArchitecture(
        class_name="LlamaForCausalLM",
        layer=_LAYER,
        own_head_size=True,
        rotated=True,
    ),
    "qwen2": GgufArchitecture(class_name="Qwen2ForCausalLM", layer={**_LAYER, **_QKV_BIASES}),
    "qwen3": GgufArchitecture(
        class_name="Qwen3ForCausalLM", layer={**_LAYER, **_QK_NORMS}, own_head_size=True
    ),
}


def gguf_architecture(name: str, reference: str) -> GgufArchitecture:
    """The layout of that architecture; CheckpointError for one that Tercet cannot read."""
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{reference}: {unknown_name('GGUF architecture', name, ARCHITECTURES)}: pass the "
            "model's Hugging Face directory instead"
        )
    return ARCHITECTURES[name]


def hugging_face_name(stored: str, architecture: GgufArchitecture) -> str | None:
    """Hugging Face's name of a GGUF tensor, None if the architecture has no such tensor."""
    if found := re.fullmatch(r"blk\.(\d+)\.(.+)", stored):
        tail = architecture.layer.get(found[2])
        return f"model.layers.{found[1]}.{tail}" if tail is not None else None
    return _MODEL.get(stored)


def gguf_name(name: str, architecture: GgufArchitecture) -> str | None:
    """The GGUF name of Hugging Face's, None if the architecture has no such tensor."""
    if found := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name):
        tails = {theirs: ours for ours, theirs in architecture.layer.items()}
        tail = tails.get(found[2])
        return f"blk.{found[1]}.{tail}" if tail is not None else None
    return {theirs: ours for ours, theirs in _MODEL.items()}.get(name)


def first_missing(
    names: Collection[str], architecture: GgufArchitecture, layers: int
) -> str | None:
    """The first Hugging Face name that a model of that many layers lacks, or None."""
    # one by one: a damaged file may say that it has two thousand million layers
    return next((name for name in _required_names(architecture, layers) if name not in names), None)


def _required_names(architecture: GgufArchitecture, layers: int) -> Iterator[str]:
    yield from ("model.embed_tokens.weight", "model.norm.weight")
    for layer in range(layers):
        yield from (f"model.layers.{layer}.{tail}" for tail in architecture.layer.values())
