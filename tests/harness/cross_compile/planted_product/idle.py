"""An implementation that says it is Triton and launches nothing."""

from torch import Tensor


def forward(a: Tensor, b: Tensor) -> Tensor:
    """As planted_product.kernels."""
    return a.float() @ b.float()
