"""LatentVector: a norm's weight or a bias, trained relative to its size, and stored as it was."""

import torch
from torch import Tensor


class LatentVector:
    """v = v0 + mean |v0| * d for a vector v0 [K], rounded to the dtype that it is stored in.

    Args:
        first: v0, float32.
        dtype: of the stored vector.

    Attributes:
        offset: d [K], a leaf that requires gradients.
    """

    def __init__(self, first: Tensor, dtype: torch.dtype) -> None:
        self._first, self._dtype = first, dtype
        self._size = first.abs().mean()
        self.offset = torch.zeros_like(first).requires_grad_()

    def relative(self) -> list[Tensor]:
        """d."""
        return [self.offset]

    def values(self) -> Tensor:
        """v [K], float32, with gradients."""
        real = self._first + self._size * self.offset
        return real.detach().to(self._dtype).float() + (real - real.detach())

    def stored(self) -> Tensor:
        """v in its stored dtype."""
        return self.values().detach().to(self._dtype)
