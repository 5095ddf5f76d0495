"""A GGUF file as a model source: Hugging Face's names, shapes and order of rows."""

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.gguf_blocks import PLAIN_DTYPES, QUANTIZED_KINDS, read_blocks
from tercet.checkpoints.gguf_config import GgufMetadata, gguf_config
from tercet.checkpoints.gguf_header import GgufHeader, GgufTensor, damaged, read_gguf_header
from tercet.checkpoints.gguf_names import (
    ROPE_DIVISORS,
    GgufArchitecture,
    first_missing,
    gguf_architecture,
    hugging_face_name,
)
from tercet.checkpoints.model_source import ModelSource
from tercet.errors import CheckpointError


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
        self._tensors = _named(self._header, self._architecture, self.reference)
        missing = first_missing(self._tensors, self._architecture, self._metadata.layers)
        if missing is not None:
            raise damaged(path, f"tensor {missing!r} (Hugging Face's name) is missing")

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
        return self._stored(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return PLAIN_DTYPES.get(self._stored(name).kind, torch.float32)

    def read(self, name: str) -> Tensor:
        values = read_blocks(self.path, self._stored(name))
        if self._architecture.rotated and name.endswith("self_attn.q_proj.weight"):
            return halves_from_pairs(values, self._metadata.heads)
        if self._architecture.rotated and name.endswith("self_attn.k_proj.weight"):
            return halves_from_pairs(values, self._metadata.key_heads)
        return values

    def save_tokenizer(self, directory: str | Path) -> None:
        if "tokenizer.ggml.model" not in self._header.fields:
            return
        from transformers import AutoTokenizer

        loader: Any = AutoTokenizer
        tokenizer = loader.from_pretrained(self.path.parent, gguf_file=self.path.name)
        tokenizer.save_pretrained(directory)

    def _stored(self, name: str) -> GgufTensor:
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


def _named(
    header: GgufHeader, architecture: GgufArchitecture, reference: str
) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for stored, tensor in header.tensors.items():
        if stored == ROPE_DIVISORS:
            continue
        name = hugging_face_name(stored, architecture)
        if name is None:
            raise CheckpointError(
                f"{reference}: tensor {stored!r} is none that Tercet knows in this architecture: "
                "pass the model's Hugging Face directory instead"
            )
        if tensor.kind not in PLAIN_DTYPES and tensor.kind not in QUANTIZED_KINDS:
            known = ", ".join(kind.name for kind in (*QUANTIZED_KINDS, *PLAIN_DTYPES))
            raise CheckpointError(
                f"{reference}: tensor {stored!r} is in {tensor.kind.name}; Tercet reads {known}"
            )
        tensors[name] = tensor
    return tensors
