"""Settings of fine-tuning."""

from pydantic import Field

from tercet.compress.blockwise.settings import Tuning


class FineTuning(Tuning):
    """Training of a packed model as a whole.

    Attributes:
        levels: also train levels, that is codes; otherwise scales, floating zero points, norms and
            biases alone, in less memory.
    """

    epochs: int = Field(default=4, ge=1)
    learning_rate: float = Field(default=1e-2, gt=0)
    scale_learning_rate: float = Field(default=1e-3, ge=0)
    levels: bool = True
