"""softmax: along the last axis, rows of any length."""

from tercet.ops.softmax.op import softmax

__all__ = ["softmax"]
