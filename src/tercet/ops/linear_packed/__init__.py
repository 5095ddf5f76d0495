"""linear_packed: x W^T + bias with W staying packed."""

from tercet.kernel.prepared import PreparedWeight, concatenate, prepare
from tercet.ops.linear_packed.op import linear_packed

__all__ = ["PreparedWeight", "concatenate", "linear_packed", "prepare"]
