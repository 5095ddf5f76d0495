"""How a kernel is described, built, chosen and launched; knows no particular op."""

from tercet.kernel.contract import (
    Axis,
    Case,
    Cost,
    Implementation,
    Op,
    TensorSpec,
    Tolerance,
)
from tercet.kernel.requirement import Context, Requirement
from tercet.kernel.select import choose, explain

__all__ = [
    "Axis",
    "Case",
    "Context",
    "Cost",
    "Implementation",
    "Op",
    "Requirement",
    "TensorSpec",
    "Tolerance",
    "choose",
    "explain",
]
