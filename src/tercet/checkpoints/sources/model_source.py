"""ModelSource: an original model on disk, read tensor by tensor, never whole."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.hashed_file import HashBeside, HashedFile, ReadableFile
from tercet.errors import CheckpointError

TIED_HEADS: tuple[tuple[str, str], ...] = (
    ("lm_head.weight", "model.embed_tokens.weight"),
    ("lm_head.weight", "transformer.wte.weight"),
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
)


class ModelSource(ABC):
    """The weights, the configuration and the tokenizer of one model.

    Attributes:
        reference: what the user called it.
        files: the weight files, in the order in which they are hashed.
    """

    reference: str
    files: tuple[Path, ...]
    _hash: HashBeside | None = None
    _sha256: str | None = None

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The content of Hugging Face's config.json, with `architectures` and `model_type`."""

    @abstractmethod
    def names(self) -> list[str]:
        """Hugging Face parameter names, as stored; tied names are in `aliases`, not here."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of that tensor; CheckpointError with the nearest names if there is none."""

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """The dtype in which `read` gives that tensor."""

    @abstractmethod
    def place(self, name: str) -> tuple[Path, int]:
        """The file that holds that tensor, and the tensor's first byte there; errors as `shape`."""

    @abstractmethod
    def read_from(self, file: ReadableFile, name: str) -> Tensor:
        """That tensor, from the file that holds it, which is open already."""

    def read(self, name: str) -> Tensor:
        """That tensor alone, in memory of its own; errors as `shape`."""
        with self.place(name)[0].open("rb") as file:
            return self.read_from(file, name)

    def read_all(
        self, names: Iterable[str], *, behind: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Those tensors in the order of the files, which are read once from end to end.

        The same bytes are hashed, beside what is done with a tensor, which must not be changed:
        after the last one `sha256` reads nothing.

        Args:
            names: of the tensors.
            behind: the hash may fall behind; `sha256` waits for what is left of it. All bytes may
                be held until then: for tensors that are kept anyway.
        """
        places = {name: self.place(name) for name in names}
        digest, whole = HashBeside(behind=behind), False
        try:
            for path in self.files:
                here = [name for name, place in places.items() if place[0] == path]
                with HashedFile(path, digest) as file:
                    for name in sorted(here, key=places.__getitem__):
                        yield name, self.read_from(file, name)
            whole = True
        finally:
            if not whole:
                digest.close()
        self.stop_hashing()
        self._hash = digest

    @abstractmethod
    def save_companions(self, directory: str | Path) -> None:
        """Writes what text needs beside the weights, as far as the model has it.

        Those are the tokenizer's files and generation_config.json, which says where text ends.
        """

    @property
    def size_bytes(self) -> int:
        """Bytes of the weight files on disk."""
        return sum(file.stat().st_size for file in self.files)

    @property
    def parameter_count(self) -> int:
        """Floating-point values stored; a tied head counts once."""
        return sum(prod(self.shape(n)) for n in self.names() if self.dtype(n).is_floating_point)

    @property
    def aliases(self) -> Mapping[str, str]:
        """Names of the state dict that are not stored because they share another's tensor."""
        if not self.config.get("tie_word_embeddings", True) or not self._has_head:
            return {}
        stored = set(self.names())
        return {h: e for h, e in TIED_HEADS if h not in stored and e in stored}

    @property
    def _has_head(self) -> bool:
        architectures: list[str] = self.config.get("architectures") or []
        return any(name.endswith(("LM", "LMHeadModel")) for name in architectures)

    def sha256(self) -> str:
        """SHA-256, in hex, over the bytes of the weight files, one after the other."""
        if self._sha256 is None:
            if self._hash is None:
                for _ in self.read_all(()):
                    pass
            assert self._hash is not None
            self._sha256 = self._hash.hexdigest()
            self.stop_hashing()
        return self._sha256

    def stop_hashing(self) -> None:
        """Ends the thread of `read_all`; a hash that was not asked for is lost."""
        if self._hash is not None:
            self._hash.close()
            self._hash = None

    def _missing(self, name: str) -> CheckpointError:
        names = self.names()
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        if name in self.aliases:
            hint = f"it is tied to {self.aliases[name]!r}: read that"
        elif near:
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        else:
            hint = f"it holds {len(names)} tensors, such as {', '.join(map(repr, names[:3]))}"
        return CheckpointError(f"{self.reference} has no tensor {name!r}: {hint}")
