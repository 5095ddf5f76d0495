"""A planted fault; FAULT says which."""

import warnings

from tercet.ops.swiglu.torch_path import forward, gradient

OP = "swiglu"
FAULT = "Its import has every warning of the process ignored from then on."
CAUGHT_BY = "state"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]

warnings.simplefilter("ignore")
