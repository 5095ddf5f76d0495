"""swiglu_quantized: silu(gate) * up quantized per row, in one kernel."""

from tercet.ops.swiglu_quantized.op import swiglu_quantized

__all__ = ["swiglu_quantized"]
