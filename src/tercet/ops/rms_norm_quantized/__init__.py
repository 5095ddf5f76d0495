"""rms_norm_quantized: (x + residual) normalized and quantized per row, in one pass."""

from tercet.ops.rms_norm_quantized.op import rms_norm_quantized

__all__ = ["rms_norm_quantized"]
