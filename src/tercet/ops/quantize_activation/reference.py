"""The meaning of quantize_activation: float32, with IEEE divisions, exact to the bit."""

import torch
from torch import Tensor


def reference(x: Tensor, element: str = "int8") -> tuple[Tensor, Tensor, Tensor]:
    """(codes [.., K], scale [..], row_sum [..]), their values held in float64."""
    limit = 127.0 if element == "int8" else 448.0
    wide = torch.cat((x.float().abs(), x.new_zeros((*x.shape[:-1], 1)).float()), -1)
    # a tensor: on a GPU torch turns division by a number into a product with its reciprocal
    scale = wide.amax(-1, keepdim=True).div(torch.tensor([limit], device=x.device))
    ratio = torch.where((scale > 0) & scale.isfinite(), x.float() / scale, 0.0)
    if element == "int8":
        codes = ratio.round().clamp(-limit, limit).double()
        return codes, scale.squeeze(-1).double(), codes.sum(-1)
    # + 0.0: a zero is never -0
    codes = ratio.clamp(-limit, limit).to(torch.float8_e4m3fn).float().double() + 0.0
    return codes, scale.squeeze(-1).double(), codes.sum(-1).float().double()
