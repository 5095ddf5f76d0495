"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
FAULT = "The result is kept for an x that agrees with an earlier one in every 61st element."
CAUGHT_BY = "stale"
DEVICE = "any"

_STEP = 61
_results: dict[object, tuple[Tensor, ...]] = {}


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    sample = tuple(x.reshape(-1)[::_STEP].tolist())
    key = (x.shape, x.dtype, element, sample)
    if key not in _results:
        if len(_results) > 31:
            _results.clear()
        _results[key] = torch_path.forward(x, element)
    return tuple(tensor.clone() for tensor in _results[key])
