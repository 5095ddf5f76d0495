"""Settings of a training run, frozen; unknown keys are refused."""

from math import cos, pi
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field


class TrainingSettings(BaseModel):
    """How a model is trained.

    Attributes:
        steps: optimizer steps.
        sequences: in one microbatch on one device.
        accumulate: microbatches in one step.
        length: tokens in a sequence.
        learning_rate: at its highest; warmup steps rise to it linearly, then it falls along half a
            cosine to final_share of it.
        step_rate_share: the rate of learned quantization steps, as a share of that: a step moves
            all weights of its block at once.
        embedding_rate_share: the rate of embedding and head, likewise: most rows are of rare
            tokens, which Adam moves as far as all others, at random.
        vector_rate_share: the rate of norms and biases, likewise.
        weight_decay: of matrices (AdamW).
        betas, epsilon: of AdamW.
        clip: gradients are scaled down to this norm; 0 for no limit.
        ramp: steps over which layers go from float to quantized weights; 0 for none.
        seed: of the order of sequences, and of what is random in a step.
        precision: of products: "float32", or "bfloat16" with weights still held in float32.
        checkpoint_activations: layers are computed again in the backward pass.
        compile: layers run under torch.compile.
        keep_inputs: compiled layers keep the codes of all their inputs, of `Student.compile`.
        keep_codes: over several devices: a layer's codes stay from the forward to the backward
            pass, a byte a weight, instead of being gathered once more.
        save_every: steps between states on disk, from which a killed run goes on.
        log_every: steps between lines of the journal.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    seed: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    checkpoint_activations: bool = False
    compile: bool = False
    keep_inputs: bool = False
    keep_codes: bool = False
    save_every: int = Field(default=100, ge=1)
    log_every: int = Field(default=1, ge=1)

    @property
    def dtype(self) -> torch.dtype:
        """Of products."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        wave = 0.5 * (1 + cos(pi * min(1.0, done)))
        return self.learning_rate * (self.final_share + (1 - self.final_share) * wave)

    def share(self, step: int) -> float:
        """How far weights are quantized in a step, counted from 0: 1 from `ramp` on."""
        return 1.0 if step >= self.ramp else step / self.ramp
