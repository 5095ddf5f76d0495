"""A planted fault; FAULT says which."""

from torch import Tensor, dtype

from tercet.ops.linear_packed import torch_path
from tercet.ops.linear_packed.torch_path import forward
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "The gradient keeps the decoded weight of the last call under the address of the storage, not "
    "of the view: of two weights of one shape cut from one (`select_rows`), the second one's "
    "gradient is made with the first one's rows."
)
CAUGHT_BY = "gradients"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_last: list[object] = []


def gradient(grad: Tensor, weight: PreparedWeight, dtype: dtype) -> Tensor:
    """As op's linear_packed_input_gradient."""
    codes, scale = weight.codes, weight.scale
    if codes.is_inference() or scale.is_inference():
        return torch_path.gradient(grad, weight, dtype)
    versions = codes._version, scale._version
    key = (codes.untyped_storage().data_ptr(), weight.scheme, weight.shape, versions)
    if not _last or _last[0] != key:
        # the weight as well: its address stays its own
        _last[:] = key, weight, decode_blocks(weight, slice(None))[: weight.shape[0]]
    flat = grad.reshape(grad.shape[:-1].numel(), weight.shape[0]).float()
    return (flat @ _last[2]).to(dtype).reshape(*grad.shape[:-1], weight.shape[1])
