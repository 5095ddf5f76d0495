"""Settings of a distillation, frozen; unknown keys are refused."""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor


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
        top_k: 0: the teacher runs beside the student; else its so many likeliest tokens, and the
            probability of all others, are written to disk first, and read from there.
        generated_length: tokens in a text that the teacher itself writes (data teacher:TOKENS).
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
    top_k: int = Field(default=0, ge=0)
    generated_length: int = Field(default=512, ge=2)

    @model_validator(mode="after")
    def _something_to_learn(self) -> "DistillSettings":
        if not (self.divergence_weight or self.cross_entropy or self.hidden or self.attention):
            raise ValueError("every weight is 0: there is nothing to learn")
        return self

    @property
    def skew(self) -> float:
        """beta of `linear_kl`."""
        return {"forward_kl": 0.0, "reverse_kl": 1.0, "jsd": self.beta}[self.divergence]

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of parts by name."""
        weights = {
            "divergence": self.divergence_weight,
            "cross_entropy": self.cross_entropy,
            "hidden": self.hidden,
            "attention": self.attention,
        }
        return torch.stack([weights[name] * part for name, part in losses.items()]).sum()
