"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = "The sigmoid is e^x / (1 + e^x): NaN where e^x is inf."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    return (wide * (wide.exp() / (1 + wide.exp())) * up.float()).to(gate.dtype)
