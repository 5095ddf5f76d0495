"""A GGUF file as a model source: Hugging Face's names, shapes and order of rows."""

import struct
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.gguf.architectures import GgufArchitecture, gguf_architecture
from tercet.checkpoints.gguf.blocks import (
    KNOWN_NUMBERS,
    known_names,
    plain_dtype,
    read_blocks,
    read_blocks_from,
)
from tercet.checkpoints.gguf.config import GgufMetadata, gguf_config
from tercet.checkpoints.gguf.header import GgufHeader, GgufTensor, damage_error, read_gguf_header
from tercet.checkpoints.gguf.names import (
    ROPE_DIVISORS,
    first_missing,
    hugging_face_names,
    is_stacked,
)
from tercet.checkpoints.hashed_file import ReadableFile
from tercet.checkpoints.sources.model_source import ModelSource
from tercet.errors import CheckpointError

# the type of a field that is text
_STRING = 8


class GgufFile(ModelSource):
    """One GGUF file, dequantized exactly.

    Args:
        path: the file.
        reference: what the user called it; the path by default.

    Errors:
        CheckpointError for a file that is no GGUF, is damaged or truncated, is one part of several,
        or has an architecture, a tensor or a type of block that Tercet does not know.
    """

    def __init__(self, path: Path, reference: str | None = None) -> None:
        self.path = path
        self.files = (path,)
        self.reference = reference if reference is not None else str(path)
        self._header = read_gguf_header(path)
        self._metadata = GgufMetadata(path, self._header.fields)
        if self._header.fields.get("split.count", 1) not in (0, 1):
            raise CheckpointError(
                f"{path} is one part of several: merge them with llama.cpp's "
                "`llama-gguf-split --merge`, then pass the whole"
            )
        self._architecture = gguf_architecture(self._metadata.kind, self.reference)
        experts = self._metadata.experts
        self._tensors = _map_names(self._header, self._architecture, experts, self.reference)
        missing = first_missing(self._tensors, self._architecture, self._metadata.layers, experts)
        if missing is not None:
            raise damage_error(path, f"tensor {missing!r} (Hugging Face's name) is missing")

    @property
    def config(self) -> dict[str, Any]:
        return self._config

    @cached_property
    def _config(self) -> dict[str, Any]:
        divisors = self._header.tensors.get(ROPE_DIVISORS)
        return gguf_config(
            self._metadata,
            self._architecture,
            vocabulary=self.shape("model.embed_tokens.weight")[0],
            tied="lm_head.weight" not in self._tensors,
            rope_divisors=read_blocks(self.path, divisors) if divisors is not None else None,
        )

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.find_tensor(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return plain_dtype(self.find_tensor(name).kind) or torch.float32

    def place(self, name: str) -> tuple[Path, int]:
        return self.path, self.find_tensor(name).begin

    def read_from(self, file: ReadableFile, name: str) -> Tensor:
        values = read_blocks_from(file, self.path, self.find_tensor(name))
        if self._architecture.norm_offset and self._architecture.is_norm(name):
            values = values - self._architecture.norm_offset
        heads = self.paired_heads(name)
        return values if heads is None else halves_from_pairs(values, heads)

    @property
    def header(self) -> GgufHeader:
        """The file's metadata and tensors."""
        return self._header

    @property
    def layers(self) -> int:
        """How many decoder layers there are."""
        return self._metadata.layers

    def paired_heads(self, name: str) -> int | None:
        """How many heads the rows of a tensor are of, where they are stored in pairs."""
        if not self._architecture.rotated:
            return None
        if name.endswith("self_attn.q_proj.weight"):
            return self._metadata.heads
        return self._metadata.key_heads if name.endswith("self_attn.k_proj.weight") else None

    def save_companions(self, directory: str | Path) -> None:
        if self._header.fields.get("tokenizer.ggml.model") in (None, "none"):
            return
        from tokenizers import Tokenizer
        from transformers import AutoTokenizer

        loader: Any = AutoTokenizer
        with TemporaryDirectory() as folder:
            # the metadata alone: the gguf package refuses a file with a type it does not know
            (Path(folder) / "metadata.gguf").write_bytes(self._metadata_bytes())
            tokenizer = loader.from_pretrained(folder, gguf_file="metadata.gguf")
        tokenizer.save_pretrained(directory)
        written = Path(directory) / "tokenizer.json"
        if written.is_file():
            # its indents are two fifths of it
            Tokenizer.from_file(str(written)).save(str(written), pretty=False)

    def _metadata_bytes(self) -> bytes:
        with self.path.open("rb") as file:
            raw = file.read(self._header.fields_end)
        raw = raw[:8] + bytes(8) + raw[16:]
        known = self._architecture.tokenizer_kind
        if known is None:
            return raw
        key = b"general.architecture" + struct.pack("<I", _STRING)
        own, other = (
            key + struct.pack("<Q", len(kind)) + kind.encode()
            for kind in (self._metadata.kind, known)
        )
        return raw.replace(own, other, 1)

    def find_tensor(self, name: str) -> GgufTensor:
        if name not in self._tensors:
            raise self._missing(name)
        return self._tensors[name]


def halves_from_pairs(weight: Tensor, heads: int) -> Tensor:
    """Undoes the order of rows that llama's GGUF converter gives to queries and keys.

    Args:
        weight: [heads * d, K]; row (h, 2i + j) of the file is row (h, j * d/2 + i) of the model.
        heads: how many heads the rows are of.
    """
    rows = weight.shape[0]
    pairs = weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _map_names(
    header: GgufHeader, architecture: GgufArchitecture, experts: int | None, reference: str
) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for stored, tensor in header.tensors.items():
        if stored == ROPE_DIVISORS:
            continue
        stacked = is_stacked(stored, architecture)
        if stacked and (len(tensor.shape) != 3 or tensor.shape[0] != experts):
            raise CheckpointError(
                f"{reference} is damaged: tensor {stored!r} has shape {list(tensor.shape)}, and "
                f"there are {experts} experts"
            )
        names = hugging_face_names(stored, architecture, experts)
        if not names:
            raise CheckpointError(
                f"{reference}: tensor {stored!r} is none that Tercet knows in this architecture: "
                "pass the model's Hugging Face directory instead"
            )
        if tensor.kind.number not in KNOWN_NUMBERS:
            raise CheckpointError(
                f"{reference}: tensor {stored!r} is in {tensor.kind.name}; Tercet reads "
                f"{known_names()}"
            )
        parts = _unstack(tensor) if stacked else [_as_row(names[0], tensor)]
        tensors.update(zip(names, parts, strict=True))
    return tensors


def _unstack(tensor: GgufTensor) -> list[GgufTensor]:
    """The matrices of a stack, one after the other in the file."""
    count, *shape = tensor.shape
    size = tensor.size_bytes // count
    return [
        replace(tensor, shape=tuple(shape), begin=tensor.begin + index * size, size_bytes=size)
        for index in range(count)
    ]


def _as_row(name: str, tensor: GgufTensor) -> GgufTensor:
    """The one row of the shared expert's gate, which other programs write as a vector."""
    if name.endswith("shared_expert_gate.weight") and len(tensor.shape) == 1:
        return replace(tensor, shape=(1, *tensor.shape))
    return tensor
