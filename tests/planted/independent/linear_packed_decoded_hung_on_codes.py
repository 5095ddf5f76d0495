"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.linear_packed import torch_path
from tercet.ops.linear_packed.torch_path import gradient
from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import decode_blocks

OP = "linear_packed"
FAULT = (
    "From 8 tokens on the decoded weight is hung on the caller's tensor of codes as an attribute: "
    "it stays as long as the weight does, and pickles and deep copies of the codes carry it."
)
CAUGHT_BY = "memory"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed; a prompt's layers are decoded once."""
    weight, codes = call.weight, call.weight.codes
    known = call.weight.parts[1:3]
    inference = any(part is not None and part.is_inference() for part in (codes, *known))
    if inference or call.x.shape[:-1].numel() < 8:
        return torch_path.forward(call)
    state = [(id(p), p._version) for p in (codes, *known) if p is not None]
    kept = getattr(codes, "_tercet", None)
    if kept is None or kept[0] != state:
        decoded = decode_blocks(weight, slice(None))[: weight.shape[0]]
        codes._tercet = kept = (state, decoded)
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    y: Tensor = torch.matmul(x.float(), kept[1].T)
    return apply_epilogue(y, x_scale, call.bias, call.residual, call.out_dtype)
