"""The `gguf` target."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from tercet.checkpoints.atomic import write_atomic
from tercet.checkpoints.gguf.architectures import GgufArchitecture
from tercet.checkpoints.gguf.codes import CODE_BLOCKS
from tercet.checkpoints.gguf.names import gguf_name
from tercet.checkpoints.gguf.notes import FORMATS
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.sources.gguf_file import GgufFile
from tercet.errors import CheckpointError, UnsupportedError, unknown_name
from tercet.export.gguf.client import (
    greedy_tokens,
    next_logits,
    other_tokens,
    own_values,
    time_continuation,
)
from tercet.export.gguf.container import write_container
from tercet.export.gguf.fit import holding
from tercet.export.gguf.metadata import architecture_of, model_fields, rope_divisors
from tercet.export.gguf.tensors import Entries
from tercet.export.gguf.vocabulary import vocabulary_fields
from tercet.export.target import Holding, Timing, refuse
from tercet.export.unpacked import compare_decoders, compare_tensors


@dataclass(frozen=True, kw_only=True)
class GgufTarget:
    """llama.cpp's file.

    Attributes:
        kind: the type that every matrix of the layers must take; None for the densest that holds
            it. Embedding and head take the densest always.
    """

    kind: str | None = None
    name: str = "gguf"
    client: str = "xllamacpp"
    extra: str = "gguf"

    def variant(self, kind: str) -> "GgufTarget":
        """The same with one type for all layers, "TQ2_0" say; UnsupportedError on another word."""
        if kind not in CODE_BLOCKS:
            raise UnsupportedError(unknown_name("GGUF type", kind, CODE_BLOCKS))
        return replace(self, kind=kind)

    def holdings(self, checkpoint: PackedCheckpoint) -> tuple[Holding, ...]:
        """How each module is held; UnsupportedError for a model that llama.cpp cannot run."""
        _, _, sizes = architecture_of(checkpoint)
        vocabulary_fields(checkpoint, sizes.vocabulary)
        return self._held(checkpoint)

    def write(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """Writes the file; see Target."""
        # a tokenizer takes seconds to read: what is wrong with it is found where it is written
        found = self._held(checkpoint)
        refuse(self, found)
        kinds = {entry.module: entry.kind for entry in found if entry.kind is not None}
        formats = {name: entry.format for name, entry in checkpoint.modules.items()}
        _write(checkpoint, out, kinds, {FORMATS: json.dumps(formats)})

    def write_twin(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """Writes the same model in float32; see Target."""
        _write(checkpoint, out, None, {})

    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        """Packed modules by the gguf package; Q2_0, which it does not know, by llama.cpp itself."""
        return own_values(self, out)

    def differences(self, checkpoint: PackedCheckpoint, out: Path) -> Iterator[str]:
        """Unpacked tensors and settings, as Tercet reads them; tokens, as llama.cpp makes them."""
        source = GgufFile(out)
        _, architecture, sizes = architecture_of(checkpoint)
        offset = architecture.norm_offset
        tied = {"lm_head.weight"} if sizes.tied else set[str]()
        names = [name for name in checkpoint.names() if not name.endswith("inv_freq")]
        yield from compare_tensors(
            checkpoint,
            [name for name in names if name not in tied],
            {name: partial(source.read, name) for name in source.names()},
            # 1 + w in float32 may have fewer bits of w than w has
            lambda name, w: (w + offset) - offset if offset and architecture.is_norm(name) else w,
        )
        yield from compare_decoders(checkpoint.config, source.config)
        tokenizer = checkpoint.directory / "tokenizer.json"
        if tokenizer.is_file():
            yield from other_tokens(self, out, tokenizer)

    def logits(self, out: Path, tokens: list[int]) -> Tensor:
        """Scores by llama.cpp; see Target."""
        return next_logits(self, out, tokens)

    def greedy(self, out: Path, tokens: list[int], count: int) -> list[int]:
        """Tokens by llama.cpp; see Target."""
        return greedy_tokens(self, out, tokens, count)

    def time(self, out: Path, tokens: list[int], count: int) -> Timing:
        """By llama.cpp; see Timed."""
        return time_continuation(self, out, tokens, count)

    def _held(self, checkpoint: PackedCheckpoint) -> tuple[Holding, ...]:
        _, architecture, _ = architecture_of(checkpoint)
        found = {
            module: holding(checkpoint, module, self.kind if ".layers." in module else None)
            for module in checkpoint.modules
        }
        return tuple(_alike(checkpoint, architecture, found).values())


def _alike(
    checkpoint: PackedCheckpoint, architecture: GgufArchitecture, found: Mapping[str, Holding]
) -> dict[str, Holding]:
    """The same with one type for all matrices that the file has in one tensor."""
    types = list(CODE_BLOCKS)
    widest: dict[str | None, str] = {}
    names = {module: gguf_name(f"{module}.weight", architecture) for module in found}
    for module, entry in found.items():
        if entry.kind is not None:
            before = widest.setdefault(names[module], entry.kind)
            widest[names[module]] = max(before, entry.kind, key=types.index)
    return {
        module: entry
        if entry.kind is None or entry.kind == widest[names[module]]
        else holding(checkpoint, module, widest[names[module]])
        for module, entry in found.items()
    }


def _write(
    checkpoint: PackedCheckpoint,
    out: Path,
    kinds: Mapping[str, str] | None,
    notes: Mapping[str, str],
) -> None:
    if out.exists():
        raise CheckpointError(f"{out} exists already: choose another name or remove it")
    name, architecture, sizes = architecture_of(checkpoint)
    fields = {
        **model_fields(name, sizes, checkpoint),
        **vocabulary_fields(checkpoint, sizes.vocabulary),
        **notes,
    }
    entries = Entries(checkpoint, architecture, sizes, kinds)
    tensors = entries.all(rope_divisors(sizes, checkpoint.config))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, lambda path: write_container(path, fields, tensors))
