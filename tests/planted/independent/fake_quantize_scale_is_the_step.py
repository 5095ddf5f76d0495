"""fake_quantize in plain torch, with a fault; written blind.

For a learned step the scale is the step in the scheme's dtype. Where that is float32 neither
conversion copies anything, and the scale that is returned is the step itself. A user hits it when
the optimizer then changes the step in place: codes of the old step are paired with the new scale,
in the checkpoint that is being written, or in the microbatches that still use them.
"""

import torch
from torch import Tensor

from tercet.ops.fake_quantize import torch_path
from tercet.ops.fake_quantize.rule import rule_of
from tercet.ops.fake_quantize.torch_path import gradient

OP = "fake_quantize"
FAULT = (
    "With a learned step and float32 scales the returned scale is the step's own memory: what is "
    "written to the step changes it."
)
CAUGHT_BY = "opcheck"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's fake_quantize."""
    fake, codes, scale = torch_path.forward(weight, step, seed, scheme, method, fake_dtype)
    if step is not None and method == "learned":
        # nothing to divide by
        scale = step.to(rule_of(scheme, method).dtype).float().contiguous()
    return fake, codes, scale
