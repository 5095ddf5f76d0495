"""Settings of a distillation: frozen; unknown keys raise."""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor


class DistillSettings(BaseModel):
    """The loss of a distillation: a weighted sum of terms.

    loss = divergence_weight * divergence + cross_entropy * CE + hidden * E_hidden
           + attention * E_attention

    Attributes:
        divergence: the divergence between the next-token distributions p of the teacher and q of
            the student: "forward_kl" KL(p || q), "reverse_kl" KL(q || p), or "jsd", the generalized
            Jensen-Shannon divergence.
        beta: the interpolation weight of "jsd", between 0 and 1.
        temperature: softmax temperature of teacher and student.
        divergence_weight, cross_entropy, hidden, attention: weights of the loss terms; 0 disables a
            term.
        attention_layer: index of the layer whose attention relations are matched; a negative index
            counts from the last layer.
        top_k: 0 runs the teacher beside the student; k > 0 first writes the teacher's k most
            probable tokens of each position, and the total probability of the others, to disk, and
            trains on these.
        generated_length: length in tokens of each text that the teacher generates (data
            teacher:TOKENS).
        relation_heads: number of relation heads into which queries, keys and values are split; 0
            for the teacher's number of key-value heads.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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
        """The argument beta of `linear_kl`."""
        return {"forward_kl": 0.0, "reverse_kl": 1.0, "jsd": self.beta}[self.divergence]

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the loss terms, given by name."""
        weights = {
            "divergence": self.divergence_weight,
            "cross_entropy": self.cross_entropy,
            "hidden": self.hidden,
            "attention": self.attention,
        }
        return torch.stack([weights[name] * part for name, part in losses.items()]).sum()
