"""Settings: how quantized weights are trained; `Blockwise` is a section of a plan."""

from pydantic import BaseModel, ConfigDict, Field


class Tuning(BaseModel):
    """Training of quantized weights by `tune`.

    Attributes:
        epochs: passes over the calibration sequences.
        batch: sequences of one optimizer step.
        learning_rate: of the latent weights, in levels a step; it falls to 0 along a cosine.
        scale_learning_rate: of scales, norms and biases, relative to what they begin with, and of
            floating zero points, in levels, a step.
        held_out: share of the sequences, and 512 at most, that are not trained on: by these the
            best measurement is chosen, and the algorithms' own result is kept where none is better.
        measurements: how many times an epoch the loss over them is measured.
        norms: also train norms and biases.
        seed: of the order of the sequences.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(default=5, ge=1)
    batch: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=2e-2, gt=0)
    scale_learning_rate: float = Field(default=3e-3, ge=0)
    held_out: float = Field(default=0.0625, gt=0, lt=1)
    measurements: int = Field(default=1, ge=1)
    norms: bool = True
    seed: int = 0

    @property
    def all_measurements(self) -> int:
        """Those of all epochs."""
        return self.epochs * self.measurements


class Blockwise(Tuning):
    """Training of each layer's quantized weights, after the algorithms of the rules."""
