"""compressed-tensors, the format of vLLM and llm-compressor, as Tercet reads and writes it."""

from tercet.checkpoints.imports.compressed_tensors.config import (
    METHOD,
    Activations,
    Group,
    Section,
    Weights,
    read_section,
)
from tercet.checkpoints.imports.compressed_tensors.read import IMPORTER
from tercet.checkpoints.imports.compressed_tensors.tensors import (
    BITS,
    FP4_FORMS,
    FP4_STRATEGIES,
    Form,
    restore,
    store,
)

__all__ = [
    "BITS",
    "FP4_FORMS",
    "FP4_STRATEGIES",
    "IMPORTER",
    "METHOD",
    "Activations",
    "Form",
    "Group",
    "Section",
    "Weights",
    "read_section",
    "restore",
    "store",
]
