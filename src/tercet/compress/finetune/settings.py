"""Settings of fine-tuning."""

from pydantic import Field

from tercet.compress.blockwise.settings import Tuning


class FineTuning(Tuning):
    """Training of a packed model as a whole.

    Attributes:
        levels: also train levels, that is codes; otherwise scales, floating zero points, norms and
            biases alone, in less memory.
        embedding_learning_rate: of the levels of embedding and head, where they have integer ones;
            0 leaves both as they are packed. Most rows belong to rare tokens, which Adam moves as
            far as all others: a fifth of `learning_rate` is a good choice.
        compile: run layers under torch.compile: once a minute or less, then steps of a small model
            take about half as long.
    """

    epochs: int = Field(default=4, ge=1)
    learning_rate: float = Field(default=1e-2, gt=0)
    scale_learning_rate: float = Field(default=1e-3, ge=0)
    levels: bool = True
    embedding_learning_rate: float = Field(default=0.0, ge=0)
    compile: bool = False
