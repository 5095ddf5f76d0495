"""Streaming detokenizer: turns token ids into text one by one, whole characters only."""

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"
# a character has at most four bytes, so an unfinished one has at most three tokens
_UNFINISHED_TOKENS = 3
# an unfinished character and a few tokens before it
_KEPT = 6


def _never(_token: int) -> bool:
    return False


class Detokenizer:
    """Turns a stream of ids into a stream of text: the pieces make up the text of all ids.

    A window of the latest ids is decoded whole, and what it says beyond the text that was returned
    before is new. The window never becomes empty: most decoders strip the space in front of the
    first token that they are given.

    Args:
        decode: ids to text, U+FFFD for bytes that make no character yet.
        is_skipped: whether `decode` leaves this id out, as it does special tokens.
        is_byte: whether the id is a byte of a ByteFallback decoder. That decoder replaces every
            byte of a run that is not UTF-8 as a whole, so a run waits for its end.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        is_skipped: Callable[[int], bool] = _never,
        is_byte: Callable[[int], bool] = _never,
    ) -> None:
        self._decode = decode
        self._is_skipped = is_skipped
        self._is_byte = is_byte
        self._window: list[int] = []
        self._emitted = 0  # characters of the window's text that were returned

    def push(self, token: int) -> str:
        """Add a token id and return the text that it completes; "" within a character."""
        if self._is_skipped(token):
            return ""
        self._window.append(token)
        if self._is_byte(token):
            return ""
        text = self._decode(self._window)
        # several bytes that begin a character are one U+FFFD
        chunk = self._take(text.removesuffix(_UNFINISHED))
        if len(self._window) > 2 * _KEPT:
            self._shorten(len(text) - self._emitted)
        return chunk

    def flush(self) -> str:
        """End the stream and return the rest of the text, without an unfinished character."""
        chunk = self._take(self._rest())
        self._window, self._emitted = [], 0
        return chunk

    def _take(self, text: str) -> str:
        """The part of the window's text that was not returned before; marks it as returned."""
        chunk = text[self._emitted :]
        self._emitted = max(self._emitted, len(text))
        return chunk

    def _shorten(self, waiting: int) -> None:
        """Drop the oldest ids; the last `waiting` characters of the text were not returned yet."""
        self._window = self._window[-_KEPT:]
        self._emitted = len(self._decode(self._window)) - waiting

    def _rest(self) -> str:
        """The window's text without an unfinished character at its end."""
        text = self._decode(self._window)
        if not (self._window and self._is_byte(self._window[-1])):
            return text.removesuffix(_UNFINISHED)
        # one unfinished character makes U+FFFD of the whole run: leave its bytes out
        for count in range(_UNFINISHED_TOKENS + 1):
            kept = self._window[: len(self._window) - count]
            if not (shorter := self._decode(kept)).endswith(_UNFINISHED):
                return shorter
            if not self._is_byte(self._window[-1 - count]):
                break
        return text.rstrip(_UNFINISHED)
