"""How GGUF lays out each architecture, and what llama.cpp takes for granted of it, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tercet.errors import CheckpointError, unknown_name

EXPERT = "{expert}"
"""Stands for the number of an expert in names of tensors."""

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


_OUTPUT_NORMS: dict[str, str] = {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}

_NORMS_AROUND: dict[str, str] = {
    **_OUTPUT_NORMS,
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
}

_NO_NORMS_BEFORE = {
    ours: theirs
    for ours, theirs in _LAYER.items()
    if ours not in ("attn_norm.weight", "ffn_norm.weight")
}

_EXPERTS: dict[str, str] = {
    **{ours: theirs for ours, theirs in _LAYER.items() if not theirs.startswith("mlp.")},
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_exps.weight": f"mlp.experts.{EXPERT}.gate_proj.weight",
    "ffn_up_exps.weight": f"mlp.experts.{EXPERT}.up_proj.weight",
    "ffn_down_exps.weight": f"mlp.experts.{EXPERT}.down_proj.weight",
}

_SHARED_EXPERT: dict[str, str] = {
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
}

_FUSED: dict[str, str] = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_qkv.weight": "self_attn.qkv_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_up.weight": "mlp.gate_up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


@dataclass(frozen=True, kw_only=True)
class SlidingWindow:
    """How llama.cpp's own code has an architecture's local layers.

    Attributes:
        period: each such layer, counted from 1, sees all positions, the others
            `attention.sliding_window`.
        own_base: whether those others rotate by `rope.freq_base_swa`, unscaled.
    """

    period: int
    own_base: bool = False


@dataclass(frozen=True, kw_only=True)
class Experts:
    """How llama.cpp's own code has an architecture's mixtures of experts: in every layer.

    Attributes:
        normalized: whether the weights of a token's experts are made to add up to 1.
        widths: GGUF's key of each width to config.json's.
    """

    normalized: bool
    widths: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GgufArchitecture:
    """How one `general.architecture` is laid out.

    Attributes:
        model_type: Hugging Face's name of the architecture.
        twins: model types that are written as this one: the same but for the window, which is none.
        class_name: its causal language model.
        layer: GGUF name after `blk.N.` to Hugging Face's after `model.layers.N.`; all present.
            Where the latter has EXPERT, the former is a stack of one matrix for each expert.
        experts: mixtures of experts; None without.
        own_head_size: whether config.json has `head_dim`.
        divided: whether transformers takes no hidden size but a multiple of the heads even so.
        rotated: whether rows of attn_q and attn_k are stored in pairs (2i, 2i + 1) rather than in
            halves (i, i + d/2), as llama's converter does for its rotary embedding.
        norm_offset: what GGUF's weights of norms have more than Hugging Face's.
        activation: of the gate, in llama.cpp's code.
        tokenizer_kind: the architecture in whose name transformers is given the tokenizer, where
            it refuses this one's; which tokenizer it is, other fields say.
        biases: whether queries, keys and values have biases.
        grouped: whether llama.cpp takes fewer heads of keys and values than of queries.
        head: whether llama.cpp takes an output projection with weights of its "own", one "tied" to
            the embedding, or "either".
        sliding: local layers, None without.
        windowed: whether every layer has the window that the file names; llama.cpp's own code has
            none.
        unrotated: each such layer, counted from 1, has no rotary positions in llama.cpp's own code;
            None where all have.
        constants: GGUF's key of each cap on scores, and of each factor, to config.json's.
        always_capped: whether llama.cpp caps scores and logits where the file does not say how.
        scaled_by_width: for so many layers llama.cpp scales scores by (hidden / heads) ** -0.5,
            for all other models by head_dim ** -0.5; None for an architecture without such a model.
    """

    model_type: str
    class_name: str
    layer: Mapping[str, str]
    twins: tuple[str, ...] = ()
    experts: Experts | None = None
    own_head_size: bool = False
    divided: bool = False
    rotated: bool = False
    norm_offset: float = 0.0
    activation: str = "silu"
    tokenizer_kind: str | None = None
    biases: bool = False
    grouped: bool = True
    head: Literal["own", "tied", "either"] = "either"
    sliding: SlidingWindow | None = None
    windowed: bool = False
    unrotated: int | None = None
    constants: Mapping[str, str] = field(default_factory=dict[str, str])
    always_capped: bool = False
    scaled_by_width: int | None = None

    def score_scale(self, *, layers: int, hidden: int, heads: int, head_dim: int) -> float:
        """What llama.cpp multiplies attention's scores by, unless the file says."""
        width = hidden / heads if layers == self.scaled_by_width else head_dim
        return width**-0.5

    def rotates(self, layer: int) -> bool:
        """Whether that layer, counted from 0, has rotary positions."""
        return self.unrotated is None or (layer + 1) % self.unrotated != 0

    def is_norm(self, name: str) -> bool:
        """Whether a tensor is a norm's weight, by Hugging Face's name."""
        return name.endswith("norm.weight")


ARCHITECTURES: dict[str, GgufArchitecture] = {
    "gemma2": GgufArchitecture(
        model_type="gemma2",
        class_name="Gemma2ForCausalLM",
        layer={**_LAYER, **_NORMS_AROUND},
        own_head_size=True,
        norm_offset=1.0,
        activation="gelu_pytorch_tanh",
        head="tied",
        sliding=SlidingWindow(period=2),
        constants={
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        always_capped=True,
        scaled_by_width=46,
    ),
    "gemma3": GgufArchitecture(
        model_type="gemma3_text",
        class_name="Gemma3ForCausalLM",
        layer={**_LAYER, **_NORMS_AROUND, **_QK_NORMS},
        own_head_size=True,
        norm_offset=1.0,
        activation="gelu_pytorch_tanh",
        sliding=SlidingWindow(period=6, own_base=True),
        constants={"final_logit_softcapping": "final_logit_softcapping"},
        scaled_by_width=62,
    ),
    "granite": GgufArchitecture(
        model_type="granite",
        class_name="GraniteForCausalLM",
        layer=_LAYER,
        rotated=True,
        tokenizer_kind="qwen2",
        constants={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    "llama": GgufArchitecture(
        model_type="llama",
        twins=("mistral",),
        class_name="LlamaForCausalLM",
        layer=_LAYER,
        own_head_size=True,
        divided=True,
        rotated=True,
    ),
    "olmo2": GgufArchitecture(
        model_type="olmo2",
        class_name="Olmo2ForCausalLM",
        head="own",
        tokenizer_kind="qwen2",
        layer={**_NO_NORMS_BEFORE, **_OUTPUT_NORMS, **_QK_NORMS},
    ),
    "olmoe": GgufArchitecture(
        model_type="olmoe",
        class_name="OlmoeForCausalLM",
        layer={**_EXPERTS, **_QK_NORMS},
        experts=Experts(normalized=False, widths={}),
        head="own",
        grouped=False,
        tokenizer_kind="qwen2",
    ),
    "phi3": GgufArchitecture(
        model_type="phi3",
        class_name="Phi3ForCausalLM",
        layer=_FUSED,
        windowed=True,
    ),
    "qwen2": GgufArchitecture(
        model_type="qwen2",
        class_name="Qwen2ForCausalLM",
        layer={**_LAYER, **_QKV_BIASES},
        biases=True,
    ),
    "qwen2moe": GgufArchitecture(
        model_type="qwen2_moe",
        class_name="Qwen2MoeForCausalLM",
        layer={**_EXPERTS, **_SHARED_EXPERT, **_QKV_BIASES},
        experts=Experts(
            normalized=False,
            widths={
                "expert_feed_forward_length": "moe_intermediate_size",
                "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
            },
        ),
        biases=True,
        head="own",
        tokenizer_kind="qwen2",
    ),
    "qwen3": GgufArchitecture(
        model_type="qwen3",
        class_name="Qwen3ForCausalLM",
        layer={**_LAYER, **_QK_NORMS},
        own_head_size=True,
    ),
    "qwen3moe": GgufArchitecture(
        model_type="qwen3_moe",
        class_name="Qwen3MoeForCausalLM",
        layer={**_EXPERTS, **_QK_NORMS},
        experts=Experts(
            normalized=True, widths={"expert_feed_forward_length": "moe_intermediate_size"}
        ),
        own_head_size=True,
        tokenizer_kind="qwen3",
    ),
    "smollm3": GgufArchitecture(
        model_type="smollm3",
        class_name="SmolLM3ForCausalLM",
        layer=_LAYER,
        rotated=True,
        tokenizer_kind="llama",
        unrotated=4,
    ),
}


def gguf_kind(model_type: str) -> str | None:
    """GGUF's name of one of Hugging Face's architectures; None where Tercet does not know it."""
    for kind, architecture in ARCHITECTURES.items():
        if model_type in (architecture.model_type, *architecture.twins):
            return kind
    return None


def gguf_architecture(name: str, reference: str) -> GgufArchitecture:
    """The layout of that architecture; CheckpointError for one that Tercet cannot read."""
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{reference}: {unknown_name('GGUF architecture', name, ARCHITECTURES)}: pass the "
            "model's Hugging Face directory instead"
        )
    return ARCHITECTURES[name]
