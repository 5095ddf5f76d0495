"""grouped_linear_packed in CUDA C++ for Hopper, x in bfloat16: experts_launch.cuh.

Codes become numbers of x's type in registers, and products are summed in float32.
"""

import torch

from tercet.ops.grouped_linear_packed import cuda

SOURCES = ("experts_bfloat16.cu",)
forward = cuda.forward


def build() -> None:
    """Builds the library. BuildError where it cannot be built."""
    cuda.library(torch.bfloat16)
