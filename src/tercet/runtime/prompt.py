"""What a prompt may be: text, token ids, or the turns of a conversation."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, SupportsIndex, cast

from tercet.errors import UnsupportedError
from tercet.runtime.chat_template import Message

Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or the turns of a conversation."""

_ALLOWED = (
    "give text (str), token ids (a list of int, or a tensor or array with one axis), or messages "
    '(a list of {"role": ..., "content": ...})'
)


def read_prompt(prompt: object) -> str | list[int] | list[Message]:
    """A prompt as one of the three kinds.

    Raises:
        UnsupportedError: for anything else: a batch, a mixture, text that is no Unicode.
    """
    if isinstance(prompt, str):
        check_text(prompt)
        return prompt
    entries = _entries(prompt)
    if entries and all(isinstance(entry, Mapping) for entry in entries):
        return [_message(cast("Mapping[str, Any]", entry)) for entry in entries]
    if any(isinstance(entry, Mapping) for entry in entries):
        raise UnsupportedError(f"a prompt of ids and messages mixed: {_ALLOWED}")
    return [_token_id(entry) for entry in entries]


def check_text(text: str) -> None:
    """UnsupportedError for text with characters that no UTF-8 stands for.

    A byte of the command line that is not UTF-8 becomes one (PEP 383).
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedError(
            f"the prompt is not Unicode text: character {error.start + 1} is "
            f"{text[error.start]!a}, as a byte that is not UTF-8 becomes: give it as UTF-8"
        ) from error


def _entries(prompt: object) -> list[object]:
    # torch's tensors and numpy's arrays alike: their entries become plain int
    if hasattr(prompt, "tolist") and hasattr(prompt, "shape"):
        array = cast(Any, prompt)
        if len(array.shape) != 1:
            raise UnsupportedError(
                f"a prompt of shape {list(array.shape)}: one prompt at a time: {_ALLOWED}"
            )
        return array.tolist()
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise UnsupportedError(f"a prompt of type {type(prompt).__name__}: {_ALLOWED}")
    return list(cast("Sequence[object]", prompt))


def _token_id(entry: object) -> int:
    # numpy's integers are no int, but stand for one
    if isinstance(entry, bool) or not isinstance(entry, SupportsIndex):
        raise UnsupportedError(f"a prompt with an entry of type {type(entry).__name__}: {_ALLOWED}")
    return index(entry)


def _message(entry: Mapping[str, Any]) -> Message:
    if not isinstance(entry.get("role"), str):
        raise UnsupportedError(f"a message with the keys {list(map(str, entry))}: {_ALLOWED}")
    if isinstance(content := entry.get("content"), str):
        check_text(content)
    # other keys are the template's to read
    return cast(Message, entry)
