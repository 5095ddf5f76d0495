"""Texts that a teacher writes, to train on without data."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from tercet.checkpoints.sources.open import ModelSource
from tercet.compress.distill.generate import generate
from tercet.compress.distill.next_token import next_token
from tercet.compress.qat.student import Student
from tercet.errors import CheckpointError
from tercet.runtime.tokenizer import load_tokenizer

# stands for a user's words; no template writes it itself
_WORDS = "\N{OBJECT REPLACEMENT CHARACTER}"


def write_texts(
    source: ModelSource,
    teacher: Student,
    tokenizer: Path,
    tokens: int,
    beginnings: Tensor,
    *,
    length: int,
    seed: int,
) -> Iterator[Tensor]:
    """Texts, int64 [length] each, until there are `tokens` tokens of them.

    Args:
        source: of the teacher.
        teacher: in eval mode.
        tokenizer: the directory of its tokenizer's files.
        tokens: how many, at least.
        beginnings: ids [n, P] of other text that some of the texts go on from.
        length: of a text.
        seed: equal seeds give equal texts on one device.
    """
    writer = next_token(source, teacher)
    batch = min(writer.texts_at_once(length), -(-tokens // length))
    opening = conversation_opening(tokenizer)
    return generate(
        writer,
        tokens,
        length=length,
        batch=batch,
        seed=seed,
        opening=opening,
        beginnings=beginnings,
    )


def conversation_opening(tokenizer: Path) -> list[int]:
    """The ids that the chat template puts before a user's words; none where there is no template.

    Args:
        tokenizer: the directory of the tokenizer's files.
    """
    if not (tokenizer / "tokenizer.json").is_file():
        return []
    found = load_tokenizer(tokenizer)
    if found.template is None:
        return []
    try:
        text = found.format_chat([{"role": "user", "content": _WORDS}])
    except CheckpointError:
        # a template that wants other messages than one of a user
        return []
    before, words, _ = text.partition(_WORDS)
    return found.encode_formatted(before) if words else []
