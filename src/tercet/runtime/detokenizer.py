"""Streaming detokenizer: turns token ids into text one by one, whole characters only."""

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 4


class Detokenizer:
    """Turns a stream of ids into a stream of text.

    The decoder is asked for the text of a few ids before the new ones and with them; the difference
    is what the new ones add, spaces between words included.

    Args:
        decode: ids to text, U+FFFD for bytes that make no character yet.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._pending: list[int] = []
        self._emitted = 0
        self._waiting = 0

    def push(self, token: int) -> str:
        """Add a token id and return the text that it completes; "" within a character."""
        self._pending.append(token)
        text = self._text()
        whole = text.rstrip(_UNFINISHED)
        chunk = whole[self._emitted :]
        self._waiting = 0 if chunk else self._waiting + 1
        # bytes that wait longer than the longest character is will never become one
        if whole != text and self._waiting < _LONGEST_CHARACTER:
            self._emitted = max(self._emitted, len(whole))
            return chunk
        chunk = text[self._emitted :]
        self._context, self._pending = self._pending, []
        self._emitted = self._waiting = 0
        return chunk

    def flush(self) -> str:
        """End the stream and return the rest of the text, without an unfinished character."""
        chunk = self._text().rstrip(_UNFINISHED)[self._emitted :]
        self._context, self._pending, self._emitted = [], [], 0
        return chunk

    def _text(self) -> str:
        before = self._decode(self._context)
        return self._decode(self._context + self._pending)[len(before) :]
