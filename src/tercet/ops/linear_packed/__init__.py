"""linear_packed: x W^T + bias with W staying packed."""

from tercet.ops.linear_packed.op import linear_packed
from tercet.packed_weight.weight import PreparedWeight, concatenate, prepare

__all__ = ["PreparedWeight", "concatenate", "linear_packed", "prepare"]
