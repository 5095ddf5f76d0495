"""ModelShape: the sizes of a language model that decide which calls its ops get."""

from dataclasses import dataclass

from tercet.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder's sizes on one of `tensor_parallel` GPUs, and how many tokens a call carries.

    Attributes:
        name: as the catalog names it.
        hidden: width of the residual stream.
        intermediate: width of a dense layer's gate and up projections (whole model).
        layers: number of layers.
        heads, kv_heads, head_dim: attention (whole model); head_dim is a query's or key's.
        vocabulary: rows of the embedding and of the head (whole model).
        experts, experts_per_token, expert_intermediate: mixture of experts; 0 for a dense model.
        shared_experts: experts that every token goes through, each of expert_intermediate.
        dense_layers: of a mixture of experts, the first layers that have a dense MLP instead.
        query_rank, kv_rank: multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): widths
            that queries, and keys with values, are squeezed to; 0 for plain attention.
        rope_dim: how much of a head is rotated; 0 for all of it.
        value_dim: width of a value head; 0 for head_dim.
        tied: whether the head is the embedding.
        query_key_norm: whether queries and keys are normalized per head.
        tokens: tokens in one call: 16384 for a training or prefill step.
        tensor_parallel: over how many GPUs heads, widths and vocabulary are split.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    tied: bool = False
    query_key_norm: bool = False
    tokens: int = 16384
    tensor_parallel: int = 1

    def share(self, size: int) -> int:
        """One GPU's part of a size that tensor parallelism splits, rounded up."""
        return -(-size // self.tensor_parallel)

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1 or self.tokens < 1:
            raise UnsupportedError(
                f"{self.name}: tensor_parallel {self.tensor_parallel}, tokens {self.tokens}: "
                "both must be at least 1"
            )
