"""The model's tokenizer, read from its files without transformers.

transformers' own class imports half of the library: about 1 s and 20 MB more than this.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer as Backend

from tercet.checkpoints.tokenizer_file import read_json, read_special_tokens, read_tokenizer
from tercet.errors import CheckpointError
from tercet.runtime.chat_template import AS_PLAIN_TEXT, Message, render
from tercet.runtime.detokenizer import Detokenizer

_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


class Tokenizer:
    """Converts text to token ids and back.

    Attributes:
        template: the chat template, or None.
        special: bos_token, eos_token and the like, as far as the model names them.
    """

    def __init__(self, backend: Backend, template: str | None, special: dict[str, str]) -> None:
        self._backend = backend
        self.template = template
        self.special = special

    @property
    def stop_id(self) -> int | None:
        """The id of eos_token."""
        token = self.special.get("eos_token")
        return None if token is None else self._backend.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        """Convert text to token ids, with the model's special tokens (such as a BOS token)."""
        return self._backend.encode(text).ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Convert a conversation to token ids; CheckpointError without a chat template."""
        return self.encode_formatted(self.format_chat(messages))

    def encode_formatted(self, text: str) -> list[int]:
        """Convert text that names its special tokens itself, as a chat template's, to token ids."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def format_chat(self, messages: Sequence[Message]) -> str:
        """Write a conversation as the chat template does; CheckpointError without one."""
        if self.template is None:
            raise CheckpointError(
                f"the checkpoint has no chat template (chat_template.jinja, or chat_template in "
                f"tokenizer_config.json): {AS_PLAIN_TEXT}"
            )
        return render(self.template, messages, self.special)

    def token(self, token_id: int) -> str | None:
        """The token of an id, as the vocabulary writes it; None for no such id."""
        return self._backend.id_to_token(token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text, leaving out special tokens."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def detokenizer(self) -> Detokenizer:
        """Return a new streaming detokenizer."""
        return Detokenizer(self.decode, self._is_skipped, self._is_byte)

    def _is_skipped(self, token_id: int) -> bool:
        return token_id in self._special_ids or self.token(token_id) is None

    def _is_byte(self, token_id: int) -> bool:
        token = self.token(token_id)
        return (
            self._falls_back_to_bytes and token is not None and _BYTE.fullmatch(token) is not None
        )

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self._backend.get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    @cached_property
    def _falls_back_to_bytes(self) -> bool:
        # a ByteFallback step may stand anywhere in a sequence of decoders: ask for its effect
        decoder = self._backend.decoder
        return decoder is not None and decoder.decode(["<0x41>"]) == "A"


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load the tokenizer of a model directory.

    Raises:
        CheckpointError: there is no tokenizer.json, or a file of the tokenizer cannot be read.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"{directory}: no tokenizer.json, so text cannot be read; copy the tokenizer files of "
            f"the source model here, or pass token ids"
        )
    config = read_json(directory / "tokenizer_config.json")
    named = read_special_tokens(directory).named
    return Tokenizer(read_tokenizer(path), _template(directory, config), named)


def _template(directory: Path, config: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found: object = config.get("chat_template")
    if isinstance(found, list):
        entries = cast(list[dict[str, str]], found)
        found = {entry["name"]: entry["template"] for entry in entries}.get("default")
    return found if isinstance(found, str) else None
