"""compressed-tensors, the format of vLLM and llm-compressor, as Tercet reads and writes it."""

from tercet.checkpoints.compressed_tensors.config import (
    METHOD,
    Activations,
    Group,
    Section,
    Weights,
    read_section,
)
from tercet.checkpoints.compressed_tensors.read import read_compressed_tensors
from tercet.checkpoints.compressed_tensors.tensors import BITS, Form, restore, store

__all__ = [
    "BITS",
    "METHOD",
    "Activations",
    "Form",
    "Group",
    "Section",
    "Weights",
    "read_compressed_tensors",
    "read_section",
    "restore",
    "store",
]
