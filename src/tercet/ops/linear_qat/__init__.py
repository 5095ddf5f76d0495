"""linear_qat: y = x W^T in training, its products on 8-bit codes."""

from tercet.ops.linear_qat.op import linear_qat, transposed

__all__ = ["linear_qat", "transposed"]
