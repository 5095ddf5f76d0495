"""NextToken: a model that reads many texts at once, one token of each at a time."""

from typing import Any, Protocol, cast

import torch
from torch import Tensor

from tercet.checkpoints.sources.open import ModelSource
from tercet.compress.memory import free_bytes
from tercet.compress.qat.student import Student
from tercet.errors import CheckpointError, UnsupportedError
from tercet.models.decoder.decoder import Decoder
from tercet.models.decoder.kv_cache import KeyValueCache

# of what is free: keys, values and scores of all texts
_SHARE_OF_FREE = 0.5
_MOST_TEXTS, _FEW_TEXTS = 4096, 16
# scores, in the decoder's dtype and in float32, their probabilities, and what draws from them
_BYTES_OF_A_SCORE = 16


class NextToken(Protocol):
    """Scores of what follows each of a batch of texts."""

    @property
    def device(self) -> torch.device:
        """Of ids and scores."""
        ...

    @property
    def vocabulary(self) -> int:
        """Ids are below it."""
        ...

    def begin(self, batch: int, length: int) -> None:
        """Begins so many texts, of so many tokens at most."""
        ...

    def scores(self, ids: Tensor) -> Tensor:
        """Logits [batch, V] after ids [batch], the next token of each text."""
        ...


class DecoderNextToken:
    """By the lean decoder: on a GPU a token of all texts is one captured graph.

    Args:
        source: of an architecture that the decoder knows.
        dtype: of its weights and activations.
        device: where it is put.

    Raises:
        UnsupportedError: the decoder does not know the architecture.
        CheckpointError: the source stores its weights in another way than the decoder expects.
    """

    def __init__(self, source: ModelSource, dtype: torch.dtype, device: torch.device) -> None:
        self._decoder = Decoder.from_checkpoint(SourceWeights(source), dtype, device)
        self.device, self.vocabulary = device, self._decoder.config.vocabulary
        self._cache: KeyValueCache | None = None

    def begin(self, batch: int, length: int) -> None:
        """As NextToken's."""
        if self._cache is None or self._cache.batch != batch:
            self._cache = None  # its memory is free for the next one's
            self._cache = self._decoder.cache(batch)
        self._cache.truncate(0)
        self._cache.reserve(length)

    def scores(self, ids: Tensor) -> Tensor:
        """As NextToken's."""
        assert self._cache is not None
        return self._decoder.extend(ids[:, None], self._cache)

    def texts_at_once(self, length: int) -> int:
        """How many texts of that length fit what is free on a GPU; few on a CPU."""
        if self.device.type != "cuda":
            return _FEW_TEXTS
        config = self._decoder.config
        kept = config.layers * 2 * config.key_value_heads * config.head_dim * length
        each = kept * self._decoder.dtype.itemsize + self.vocabulary * _BYTES_OF_A_SCORE
        fit = int(_SHARE_OF_FREE * free_bytes(self.device)) // each
        return max(1, min(_MOST_TEXTS, fit))


class ModelNextToken:
    """By transformers' own model: for architectures that the decoder does not know.

    Args:
        teacher: in eval mode.
    """

    def __init__(self, teacher: Student) -> None:
        self._teacher, self._cache = teacher, None
        self.device, self.vocabulary = teacher.device, int(teacher.config.vocab_size)

    def begin(self, batch: int, length: int) -> None:
        """As NextToken's."""
        del batch, length
        self._cache = None

    def scores(self, ids: Tensor) -> Tensor:
        """As NextToken's."""
        model = cast(Any, self._teacher.model)
        found = model(input_ids=ids[:, None], past_key_values=self._cache, use_cache=True)
        self._cache = found.past_key_values
        return found.logits[:, -1]

    def texts_at_once(self, length: int) -> int:
        """Few: a step is bound by the host."""
        del length
        return _FEW_TEXTS


def next_token(source: ModelSource, teacher: Student) -> DecoderNextToken | ModelNextToken:
    """What writes the teacher's texts.

    Args:
        source: of the teacher.
        teacher: its weights in memory.
    """
    try:
        return DecoderNextToken(source, teacher.dtype, teacher.device)
    except (UnsupportedError, CheckpointError):
        return ModelNextToken(teacher)


class SourceWeights:
    """An uncompressed model as a WeightSource."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self.config: dict[str, Any] = source.config
        self.modules: dict[str, Any] = {}

    def names(self) -> list[str]:
        return self._source.names()

    def tensor(self, name: str) -> Tensor:
        return self._source.read(name)

    def read_packed(self, module: str) -> Any:
        raise CheckpointError(f"{module} is not packed: this is an uncompressed model")

    def input_scale(self, module: str) -> Tensor:
        raise CheckpointError(f"{module} is not packed: this is an uncompressed model")
