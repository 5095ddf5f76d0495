"""linear_packed for many tokens on Hopper, codes of 3 and 4 bits times the scales of their groups
as float16, in registers: kernel.cuh, as hopper_prefill_float does with ternary ones.

A product of code and scale is rounded to the 11 bits of float16, an eighth of what the result's
rounding to bfloat16 is off by: TOLERANCE.
"""

import torch
from torch import Tensor

from tercet.kernel.contract import Tolerance
from tercet.ops.linear_packed.hopper_prefill import launch as hopper_prefill
from tercet.ops.linear_packed.hopper_prefill import launch_float
from tercet.packed_weight.call import SUMS, PackedCall

TOLERANCE = Tolerance(
    dtype=torch.bfloat16,
    relative=2**-8 + 2**-11 + SUMS,
    reason="each weight rounded to 11 bits, and the sum to 8 at the end",
)
BUILDS = (hopper_prefill.build_of(4, torch.float16, scaled=True),)


def build() -> None:
    """Builds the library of 4-bit codes.

    Raises:
        BuildError: where it cannot be built.
    """
    hopper_prefill.library_of(4, torch.float16, scaled=True)


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in fragments; with scales of another type than float16 as
    hopper_prefill_float."""
    return launch_float.run(call, scaled=True)
