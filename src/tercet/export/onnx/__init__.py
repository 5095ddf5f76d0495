"""A decoder with a key-value cache for ONNX Runtime: weights stay packed (MatMulNBits)."""

from tercet.export.onnx.target import TARGET

__all__ = ["TARGET"]
