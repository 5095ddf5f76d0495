"""quantize_activation: each row of x as one-byte codes, a scale and the sum of its codes."""

from tercet.ops.quantize_activation.op import quantize_activation

__all__ = ["quantize_activation"]
