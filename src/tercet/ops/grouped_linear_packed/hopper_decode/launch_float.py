"""grouped_linear_packed in CUDA C++ for Hopper, x in bfloat16: launch.cuh.

Codes become numbers of x's type in registers, and products are summed in float32.
"""

import torch

from tercet.ops.grouped_linear_packed.hopper_decode import launch as cuda

BUILDS = cuda.builds_of(torch.bfloat16)
forward = cuda.forward


def build() -> None:
    """Builds the libraries. BuildError where they cannot be built."""
    cuda.build_for(torch.bfloat16)
