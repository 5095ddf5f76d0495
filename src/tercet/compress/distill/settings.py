"""Settings of a distillation, frozen; unknown keys are refused."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class DistillSettings(BaseModel):
    """What a student is to take over from its teacher.

    loss = divergence_weight * divergence + cross_entropy * CE + hidden * E_hidden
           + attention * E_attention

    Attributes:
        divergence: of the students' next-token distributions from the teacher's: "forward_kl"
            KL(p || q), "reverse_kl" KL(q || p), or "jsd", the generalized Jensen-Shannon.
        beta: of "jsd".
        temperature: of both softmaxes.
        divergence_weight, cross_entropy, hidden, attention: weights of the parts; 0 leaves one out.
        attention_layer: whose attention relations are matched, counted from 0, negative from the
            end.
        relation_heads: how many relations each of queries, keys and values is cut into; 0: as many
            as the teacher has key-value heads.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    divergence: Literal["forward_kl", "reverse_kl", "jsd"] = "forward_kl"
    beta: float = Field(default=0.5, gt=0, lt=1)
    temperature: float = Field(default=1.0, gt=0)
    divergence_weight: float = Field(default=1.0, ge=0)
    cross_entropy: float = Field(default=0.0, ge=0)
    hidden: float = Field(default=0.0, ge=0)
    attention: float = Field(default=0.0, ge=0)
    attention_layer: int = -1
    relation_heads: int = Field(default=0, ge=0)

    @property
    def skew(self) -> float:
        """beta of `linear_kl`."""
        return {"forward_kl": 0.0, "reverse_kl": 1.0, "jsd": self.beta}[self.divergence]
