"""Settings of a training run: frozen; unknown keys raise."""

from math import cos, pi
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field


class TrainingSettings(BaseModel):
    """Optimizer, batch and precision of a training run.

    Attributes:
        steps: number of optimizer steps.
        sequences: sequences per microbatch and device.
        accumulate: microbatches per optimizer step (gradient accumulation).
        length: sequence length in tokens.
        learning_rate: peak learning rate. The rate rises linearly over `warmup` steps, then follows
            half a cosine down to final_share * learning_rate.
        final_share: final learning rate as a fraction of the peak.
        warmup: number of warmup steps.
        step_rate_share: learning rate of learned quantization step sizes, as a fraction of the
            learning rate: one step size moves all weights of its block at once.
        embedding_rate_share: learning rate of embedding and output head, as such a fraction: most
            of their rows belong to rare tokens, which Adam moves as far as all others, at random.
        vector_rate_share: learning rate of norms and biases, as such a fraction.
        weight_decay: AdamW's weight decay of matrices.
        betas, epsilon: AdamW's betas and epsilon.
        clip: maximum gradient norm; larger gradients are scaled down to it. 0 for no limit.
        ramp: number of steps over which the weights move gradually from float to quantized; 0
            quantizes them from the first step.
        seed: RNG seed for the order of sequences and for stochastic rounding.
        precision: dtype of matrix products: "float32", or "bfloat16" with float32 master weights.
        checkpoint_activations: recompute layers in the backward pass instead of storing their
            activations.
        compile: run layers under torch.compile.
        keep_inputs: compiled layers store the codes of all their inputs for the backward pass; see
            `Student.compile`.
        keep_codes: with several devices, keep a layer's gathered codes (1 byte per weight) from
            forward to backward instead of gathering the codes again.
        save_every: steps between saved states, from which an interrupted run resumes.
        log_every: steps between lines of the journal.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    steps: int = Field(default=1000, ge=1)
    sequences: int = Field(default=4, ge=1)
    accumulate: int = Field(default=1, ge=1)
    length: int = Field(default=512, ge=2)
    learning_rate: float = Field(default=1e-4, gt=0)
    final_share: float = Field(default=0.1, ge=0, le=1)
    warmup: int = Field(default=20, ge=0)
    step_rate_share: float = Field(default=0.1, ge=0)
    embedding_rate_share: float = Field(default=1.0, ge=0)
    vector_rate_share: float = Field(default=1.0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = Field(default=1e-8, gt=0)
    clip: float = Field(default=1.0, ge=0)
    ramp: int = Field(default=0, ge=0)
    # random numbers of a step are seeded by it in the upper half of 64 bits
    seed: int = Field(default=0, ge=0, lt=2**31)
    precision: Literal["float32", "bfloat16"] = "float32"
    checkpoint_activations: bool = False
    compile: bool = False
    keep_inputs: bool = False
    keep_codes: bool = False
    save_every: int = Field(default=100, ge=1)
    log_every: int = Field(default=1, ge=1)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrix products."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def rate(self, step: int) -> float:
        """Return the learning rate of a step; the first step is 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        wave = 0.5 * (1 + cos(pi * min(1.0, done)))
        return self.learning_rate * (self.final_share + (1 - self.final_share) * wave)

    def share(self, step: int) -> float:
        """Return how far weights are quantized in a step: 0 at the first step, 1 from `ramp` on."""
        return 1.0 if step >= self.ramp else step / self.ramp
