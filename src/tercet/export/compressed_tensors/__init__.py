"""compressed-tensors: what vLLM loads without a plugin, and transformers with the library."""

from tercet.export.compressed_tensors.target import CompressedTensors

TARGET = CompressedTensors()

__all__ = ["TARGET", "CompressedTensors"]
