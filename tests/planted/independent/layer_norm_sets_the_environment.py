"""A planted fault; FAULT says which."""

import os

from tercet.ops.layer_norm.torch_path import forward, gradient

OP = "layer_norm"
FAULT = "Its import sets OMP_NUM_THREADS, which every process started later inherits."
CAUGHT_BY = "state"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]

os.environ["OMP_NUM_THREADS"] = "7"
os.environ["TERCET_FAULT_WORKSPACE"] = ":4096:8"
