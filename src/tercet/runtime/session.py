"""A packed checkpoint, loaded and ready to generate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from tercet.checkpoints.packed import open_packed
from tercet.errors import UnsupportedError
from tercet.models import Decoder
from tercet.runtime.chat_template import Message
from tercet.runtime.generate import stream
from tercet.runtime.settings import GenerationSettings
from tercet.runtime.tokenizer import Tokenizer, load_tokenizer, read_json

Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or the turns of a conversation."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What came out, and how fast.

    Attributes:
        text: the text.
        ids: its tokens, the stop token left out.
        prompt_tokens: tokens of the prompt.
        reason: "stop" at an end-of-text token, "length" at max_new_tokens or a full context.
        prefill_s: time to the first token, prompt included.
        decode_s: time of all tokens after the first.
    """

    text: str
    ids: tuple[int, ...]
    prompt_tokens: int
    reason: str
    prefill_s: float
    decode_s: float

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second after the first."""
        return (len(self.ids) - 1) / self.decode_s if self.decode_s else 0.0


class TextStream:
    """Pieces of text as they come; once exhausted, `result` holds the whole Generation."""

    def __init__(self, session: "Generator", ids: list[int], settings: GenerationSettings) -> None:
        self._session = session
        self._ids = ids
        self._settings = settings
        self._result: Generation | None = None

    def __iter__(self) -> Iterator[str]:
        session, found, pieces = self._session, list[int](), list[str]()
        detokenizer = session.tokenizer.detokenizer()
        start = first = last = perf_counter()
        for token in stream(session.model, self._ids, self._settings, session.stop):
            last = perf_counter()
            first = first if found else last
            found.append(token)
            if piece := detokenizer.push(token):
                pieces.append(piece)
                yield piece
        if piece := detokenizer.flush():
            pieces.append(piece)
            yield piece
        full = len(self._ids) + len(found) >= session.model.config.positions
        self._result = Generation(
            text="".join(pieces),
            ids=tuple(found),
            prompt_tokens=len(self._ids),
            reason="length" if full or len(found) == self._settings.max_new_tokens else "stop",
            prefill_s=(first if found else perf_counter()) - start,
            decode_s=last - first,
        )

    @property
    def result(self) -> Generation:
        """The whole; UnsupportedError before the stream has been read to its end."""
        if self._result is None:
            raise UnsupportedError("the stream is not finished: read it to its end first")
        return self._result


class Generator:
    """A language model and its tokenizer.

    Attributes:
        model: the decoder.
        directory: where the tokenizer's files lie; read when first needed.
    """

    def __init__(self, model: Decoder, directory: Path) -> None:
        self.model = model
        self.directory = directory

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; CheckpointError where its files are missing."""
        return load_tokenizer(self.directory)

    @cached_property
    def stop(self) -> frozenset[int]:
        """End-of-text ids: of generation_config.json, else config.json, and the tokenizer's."""
        found: object = None
        for name in ("generation_config.json", "config.json"):
            if found is None:
                found = read_json(self.directory / name).get("eos_token_id")
        ids = cast(list[object], found) if isinstance(found, list) else [found]
        return frozenset(i for i in [*ids, self.tokenizer.stop_id] if isinstance(i, int))

    def encode(self, prompt: Prompt, chat: bool | None = None) -> list[int]:
        """ids of a prompt.

        Args:
            prompt: text, ids or messages.
            chat: whether text is a user's message to be put in the chat template; None for yes
                where the model has one.
        """
        if isinstance(prompt, str):
            if chat is False or (chat is None and self.tokenizer.template is None):
                return self.tokenizer.encode(prompt)
            return self.tokenizer.encode_chat([Message(role="user", content=prompt)])
        ids = [entry for entry in prompt if isinstance(entry, int)]
        messages = [entry for entry in prompt if not isinstance(entry, int)]
        if ids and messages:
            raise UnsupportedError("a prompt of ids and messages mixed: give one kind")
        return self.tokenizer.encode_chat(messages) if messages else ids

    def stream(self, prompt: Prompt, *, chat: bool | None = None, **settings: Any) -> TextStream:
        """The continuation piece by piece; `settings` are those of GenerationSettings."""
        return TextStream(self, self.encode(prompt, chat), GenerationSettings(**settings))

    def generate(self, prompt: Prompt, *, chat: bool | None = None, **settings: Any) -> Generation:
        """The whole continuation; `settings` are those of GenerationSettings."""
        pieces = self.stream(prompt, chat=chat, **settings)
        for _ in pieces:
            pass
        return pieces.result

    def logits(self, ids: Tensor | Sequence[int]) -> Tensor:
        """Scores [B, T, V] after each position of ids [B, T] or [T]."""
        given = torch.as_tensor(ids)
        return self.model.logits(given.unsqueeze(0) if given.ndim == 1 else given)


def load(directory: str | Path, dtype: torch.dtype = torch.float32) -> Generator:
    """Opens a packed checkpoint and loads its model; weights stay packed.

    Raises:
        CheckpointError: it is missing or damaged.
        UnsupportedError: the lean decoder does not know its architecture.
    """
    checkpoint = open_packed(directory)
    return Generator(Decoder.from_checkpoint(checkpoint, dtype), checkpoint.directory)
