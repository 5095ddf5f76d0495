"""linear_packed for many tokens on Hopper, x in bfloat16 or float16: kernel.cuh.

Codes become numbers of x's type in registers, and products are summed in float32. fp8 codes of x
become float16 ahead, exactly.

Where groups have scales, sums of each group would have to be scaled while tensor cores wait.
Ternary codes with float16 scales are multiplied by them in registers instead, exactly, and x is
float16 then: of bfloat16 times a power of two a row, which loses 2^-40 of its largest at most.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tercet.ops.linear_packed.arguments import FLOAT_ELEMENTS
from tercet.ops.linear_packed.hopper_prefill import launch as hopper_prefill
from tercet.ops.linear_packed.hopper_prefill.to_float16 import launch as to_float16
from tercet.packed_weight.call import PackedCall
from tercet.packed_weight.triton.quantize_rows import quantize_rows

BUILDS = (
    *(
        hopper_prefill.build_of(codes, x)
        for codes in (2, 4, *FLOAT_ELEMENTS)
        for x in (torch.bfloat16, torch.float16)
    ),
    hopper_prefill.build_of(2, torch.float16, scaled=True),
    *to_float16.BUILDS,
)


def build() -> None:
    """Builds the library of 2-bit codes and bfloat16; others follow when a call needs them.

    Raises:
        BuildError: where it cannot be built.
    """
    hopper_prefill.library_of(2, torch.bfloat16)


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in fragments."""
    return run(call, scaled=call.weight.sizes.element.name == "ternary")


def run(call: PackedCall, *, scaled: bool) -> Tensor:
    """As `forward`.

    scaled: whether codes are multiplied by their scales where those are float16 ones of groups: to
    16 bits alone, for tensor cores cut what they add to some 24 bits, which is rarely something of
    numbers as short as codes.
    """
    weight = call.weight
    scaled = scaled and weight.sizes.groups > 1 and weight.scale.dtype == torch.float16
    scaled = scaled and call.out_dtype != torch.float32
    if call.activation != "none":
        x, x_scale = call.x, call.x_scale
        if x_scale is None:
            x, x_scale, _ = quantize_rows(x, call.activation)
        call = replace(call, x=to_float16.of_fp8(x), x_scale=x_scale)
    return hopper_prefill.forward(call, scaled=scaled)
