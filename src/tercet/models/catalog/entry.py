"""CatalogEntry: a published model's configuration, under the names of its config.json."""

from pydantic import BaseModel, ConfigDict, PositiveInt

from tercet.kernel.model_shape import ModelShape


class LatentAttention(BaseModel):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    q_lora_rank: PositiveInt
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt


class Experts(BaseModel):
    """A mixture of experts; each of moe_intermediate_size."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    moe_intermediate_size: PositiveInt
    n_shared_experts: int = 0
    first_k_dense_replace: int = 0


class CatalogEntry(BaseModel):
    """One model.

    Attributes:
        source: the Hugging Face repository of its config.json.
        parameters: the total that its authors publish.
        head_dim: of plain attention; None for latent attention, which has its own.
        qk_norm: whether queries and keys are normalized per head.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    parameters: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt | None = None
    vocab_size: PositiveInt
    tie_word_embeddings: bool
    qk_norm: bool = False
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None

    def shape(self, name: str, tensor_parallel: int, tokens: int) -> ModelShape:
        """The sizes as ops read them."""
        latent, experts = self.latent_attention, self.experts
        if latent is None:
            head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        else:
            head_dim = latent.qk_nope_head_dim + latent.qk_rope_head_dim
        return ModelShape(
            name=name,
            hidden=self.hidden_size,
            intermediate=self.intermediate_size,
            layers=self.num_hidden_layers,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_dim=head_dim,
            vocabulary=self.vocab_size,
            experts=experts.num_experts if experts else 0,
            experts_per_token=experts.num_experts_per_tok if experts else 0,
            expert_intermediate=experts.moe_intermediate_size if experts else 0,
            shared_experts=experts.n_shared_experts if experts else 0,
            dense_layers=experts.first_k_dense_replace if experts else 0,
            query_rank=latent.q_lora_rank if latent else 0,
            kv_rank=latent.kv_lora_rank if latent else 0,
            rope_dim=latent.qk_rope_head_dim if latent else 0,
            value_dim=latent.v_head_dim if latent else 0,
            tied=self.tie_word_embeddings,
            query_key_norm=self.qk_norm,
            tokens=tokens,
            tensor_parallel=tensor_parallel,
        )
