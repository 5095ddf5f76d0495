"""Weights that stay packed: their compute layouts, and what ops with packed weights stand on."""

from tercet.packed_weight.weight import PreparedWeight, concatenate, prepare, select_rows

__all__ = ["PreparedWeight", "concatenate", "prepare", "select_rows"]
