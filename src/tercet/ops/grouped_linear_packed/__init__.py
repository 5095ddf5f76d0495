"""grouped_linear_packed: each row of x with the packed weight of its own expert."""

from tercet.kernel.prepared import PreparedWeight, prepare
from tercet.kernel.stacked import StackedWeight, stack
from tercet.ops.grouped_linear_packed.op import grouped_linear_packed
from tercet.ops.grouped_linear_packed.routing import sort_by_expert

__all__ = [
    "PreparedWeight",
    "StackedWeight",
    "grouped_linear_packed",
    "prepare",
    "sort_by_expert",
    "stack",
]
