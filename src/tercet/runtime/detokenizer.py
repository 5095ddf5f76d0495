"""Token ids to text as they come, whole characters only."""

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
        self._given = 0
        self._waiting = 0

    def push(self, token: int) -> str:
        """The text that this id completes; "" while a character is unfinished."""
        self._pending.append(token)
        text = self._text()
        whole = text.rstrip(_UNFINISHED)
        piece = whole[self._given :]
        self._waiting = 0 if piece else self._waiting + 1
        # bytes that wait longer than the longest character is will never become one
        if whole != text and self._waiting < _LONGEST_CHARACTER:
            self._given = max(self._given, len(whole))
            return piece
        piece = text[self._given :]
        self._context, self._pending = self._pending, []
        self._given = self._waiting = 0
        return piece

    def flush(self) -> str:
        """The rest at the end of a stream; bytes of an unfinished character are dropped."""
        piece = self._text().rstrip(_UNFINISHED)[self._given :]
        self._context, self._pending, self._given = [], [], 0
        return piece

    def _text(self) -> str:
        before = self._decode(self._context)
        return self._decode(self._context + self._pending)[len(before) :]
