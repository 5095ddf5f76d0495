"""grouped_linear_packed in CUDA C++ for Hopper, x in bfloat16: experts_launch.cuh.

Codes become numbers of x's type in registers, and products are summed in float32.
"""

import torch

from tercet.ops.grouped_linear_packed import cuda

SOURCES = ("experts_bfloat16.cu", "experts_wide_bfloat16.cu")
forward = cuda.forward


def build() -> None:
    """Builds the libraries. BuildError where they cannot be built."""
    cuda.build_for(torch.bfloat16)
