"""swiglu: y = silu(gate) * up, on two tensors or on the two halves of one."""

from tercet.ops.swiglu.op import swiglu

__all__ = ["swiglu"]
