"""Is a packed checkpoint a language model, which predicts the next token?"""

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import UnsupportedError

# of classes of transformers
_OTHERS = (
    "ForMaskedLM",
    "ForPreTraining",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)


def check_next_token(checkpoint: PackedCheckpoint) -> None:
    """UnsupportedError for a model of another task, whose logits are of something else."""
    names: list[str] = checkpoint.config.get("architectures") or []
    if names and names[0].endswith(_OTHERS):
        raise UnsupportedError(
            f"{checkpoint.directory} is a {names[0]}, which predicts no next token: perplexity and "
            f"tasks are of language models; load it by its own class and measure what it is for"
        )
