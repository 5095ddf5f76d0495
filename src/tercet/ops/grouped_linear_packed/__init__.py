"""grouped_linear_packed: each row of x with the packed weight of its own expert."""

from tercet.ops.grouped_linear_packed.op import grouped_linear_packed
from tercet.ops.grouped_linear_packed.routing import sort_by_expert
from tercet.packed_weight.expert_weights import ExpertWeights, stack
from tercet.packed_weight.weight import PreparedWeight, prepare

__all__ = [
    "ExpertWeights",
    "PreparedWeight",
    "grouped_linear_packed",
    "prepare",
    "sort_by_expert",
    "stack",
]
