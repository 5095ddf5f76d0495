"""TrainingText: the token ids of a fine-tuning, of a calibration text or of much more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from tercet.compress import text
from tercet.compress.blockwise.tune import split_sequences
from tercet.compress.plan import Calibration
from tercet.compress.training.corpus import Corpus, Writer
from tercet.compress.training.token_file import keep_tokens
from tercet.errors import PlanError


class TrainingText(Protocol):
    """Token ids that are read once it is known that they are needed."""

    def describe(self) -> dict[str, Any]:
        """What they are, for the manifest; an interrupted run goes on with the same alone."""
        ...

    def read(self, state: Path) -> Tensor:
        """Ids [sequences, length]; `state` is the run's own directory."""
        ...


class CalibrationText:
    """A short text, read at once.

    Args:
        calibration: a file, token ids [sequences, length], or None for the shipped text.
        sequences: how many.
        length: of a sequence.
        tokenizer: the directory of the tokenizer's files.
        vocabulary: ids are below it.
        held_out: share of the sequences that is not trained on.

    Raises:
        PlanError: it cannot be read, is too short, or holds other ids.
    """

    def __init__(
        self,
        calibration: str | Path | Tensor | None,
        sequences: int,
        length: int,
        tokenizer: Path,
        vocabulary: int,
        held_out: float,
    ) -> None:
        if isinstance(calibration, str | Path):
            text.check_file(Path(calibration))
        wanted = Calibration(sequences=sequences, length=length)
        held = [] if sequences < 2 else [int(at) for at in split_sequences(sequences, held_out)[0]]
        self._tokens = text.read_calibration(calibration, tokenizer, wanted, apart=held)
        _check(self._tokens, vocabulary)

    def describe(self) -> dict[str, Any]:
        """As TrainingText's."""
        return text.describe(self._tokens).model_dump()

    def read(self, state: Path) -> Tensor:
        """As TrainingText's."""
        del state
        return self._tokens


class CorpusText:
    """Much text, as `Corpus` takes it; its tokens are kept beside the run.

    Args:
        data: what to read, in order.
        sequences: how many at most; None for all.
        length: of a sequence.
        tokenizer: the directory of the tokenizer's files.
        vocabulary: ids are below it.
        end: the token after each document; None for none.
        write: texts by the teacher.

    Raises:
        PlanError: nothing is there to read, or not of a known kind.
    """

    def __init__(
        self,
        data: Sequence[str | Path],
        sequences: int | None,
        length: int,
        tokenizer: Path,
        vocabulary: int,
        end: int | None,
        write: Writer,
    ) -> None:
        self._data = [str(reference) for reference in data]
        self._sequences, self._length, self._vocabulary = sequences, length, vocabulary
        self._corpus = Corpus(self._data, tokenizer / "tokenizer.json", end, write)

    def describe(self) -> dict[str, Any]:
        """As TrainingText's."""
        return {"data": self._data, "sequences": self._sequences, "length": self._length}

    def read(self, state: Path) -> Tensor:
        """As TrainingText's."""
        most = None if self._sequences is None else self._sequences * self._length
        chunks = self._corpus.chunks(most)
        found = keep_tokens(state / "tokens", chunks, ", ".join(self._data))
        count = len(found) // self._length
        tokens = found.read(0, count * self._length).view(count, self._length)
        _check(tokens, self._vocabulary)
        return tokens


def _check(tokens: Tensor, vocabulary: int) -> None:
    count = len(tokens)
    if tokens.ndim == 2 and count < 2:
        raise PlanError(
            f"{count} sequence{'s' * (count != 1)}: some are trained on and others measured on: "
            f"give more with --sequences, --calibration or --data"
        )
    text.check_tokens(tokens, vocabulary)
