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
        heads, kv_heads, head_dim: attention (whole model).
        vocabulary: rows of the embedding and of the head (whole model).
        experts, experts_per_token, expert_intermediate: mixture of experts; 0 for a dense model.
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
