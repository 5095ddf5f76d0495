"""Recipe: a plan for the uncompressed model, then trainings of all layers together."""

from pydantic import BaseModel, ConfigDict, Field

from tercet.compress.finetune.settings import FineTuning
from tercet.compress.plan import Plan


class Pass(BaseModel):
    """One training of all layers together, for the teacher's predictions.

    Attributes:
        settings: of the training.
        length: of a sequence, in tokens.
        teacher_tokens: how much text the teacher writes for it, in tokens, beside what is given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: FineTuning
    length: int = Field(ge=8)
    teacher_tokens: int = Field(default=0, ge=0)


class Recipe(BaseModel):
    """How a published model was made.

    Attributes:
        about: one line: of what, and what it gives.
        data: one line: the text that it was made with.
        plan: formats, and how each layer is trained for its output.
        passes: the trainings, one after the other.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str
    data: str
    plan: Plan
    passes: tuple[Pass, ...] = Field(min_length=1)
