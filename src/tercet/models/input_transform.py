"""What happens to the input of a packed linear before the product.

x -> x * input_scale -> blockwise Hadamard -> fake quantization per token, to int8 or fp8 e4m3; each
step where the checkpoint asks for it. Rotations and scales move outliers out of the weights' way
(QuaRot, arXiv:2404.00456; AWQ, arXiv:2306.00978; SmoothQuant, arXiv:2211.10438).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import torch
from torch import Tensor

from tercet.errors import UnsupportedError

_PRODUCTS = {"int8_token": "int8", "fp8_token": "fp8_e4m3"}
ACTIVATIONS = tuple(_PRODUCTS)
_INNER = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class InputTransform:
    """The steps of one module, applied by calling it.

    Attributes:
        scale: [K] to multiply with, or None.
        hadamard: size of the Hadamard blocks along K, a power of two that divides K, or None.
        activation: one of ACTIVATIONS, or None.
    """

    scale: Tensor | None = None
    hadamard: int | None = None
    activation: str | None = None

    def __post_init__(self) -> None:
        size = self.hadamard
        if size is not None and (size < 1 or size & (size - 1)):
            raise UnsupportedError(f"hadamard size {size}: must be a power of two")
        if self.activation not in (None, *ACTIVATIONS):
            raise UnsupportedError(
                f"activation {self.activation!r}: one of {', '.join(ACTIVATIONS)}, or None"
            )

    @property
    def identity(self) -> bool:
        """Whether nothing happens to the input."""
        return self.scale is None and self.hadamard is None and self.activation is None

    def same(self, other: "InputTransform") -> bool:
        """Whether both do the same to every input, so that it need be done once only."""
        if (self.hadamard, self.activation) != (other.hadamard, other.activation):
            return False
        if self.scale is None or other.scale is None:
            return self.scale is other.scale
        return torch.equal(self.scale, other.scale)

    @property
    def product(self) -> str:
        """The activation of `linear_packed` that does what `activation` says, on exact codes."""
        return "none" if self.activation is None else _PRODUCTS[self.activation]

    def scale_and_rotate(self, x: Tensor) -> Tensor:
        """x [.., K] after all steps but the last: what a product that quantizes by itself takes."""
        if self.scale is not None:
            x = x * self.scale.to(x.dtype)
        if self.hadamard is not None:
            x = hadamard_transform(x, self.hadamard)
        return x

    def __call__(self, x: Tensor) -> Tensor:
        """x [.., K] to its transform, of the same shape and dtype."""
        x = self.scale_and_rotate(x)
        if self.activation is None:
            return x
        return fake_quantize_int8(x) if self.activation == "int8_token" else fake_quantize_fp8(x)


def hadamard_transform(x: Tensor, size: int) -> Tensor:
    """x [.., K] times the normalized (Sylvester) Hadamard matrix in each block of `size` columns.

    H(a b) = H(a) (x) H(b), so a block seen as a matrix [a, b] becomes H(a) block H(b): two small
    products where a butterfly of additions takes log2(size) passes over memory: 3 times faster
    for one token of 576 or 1536 columns on a CPU. Orthonormal and its own inverse.

    Raises:
        UnsupportedError: `size` is no power of two or does not divide K.
    """
    if size < 1 or size & (size - 1) or x.shape[-1] % size:
        raise UnsupportedError(
            f"a Hadamard transform of size {size} over {x.shape[-1]} columns: the size must be a "
            f"power of two that divides the columns"
        )
    inner = min(size, _INNER)
    # torch's compiler traces no cache, and folds the constant itself
    signs = _make_signs if torch.compiler.is_compiling() else _signs
    blocks = x.reshape(-1, size // inner, inner) @ signs(inner, x.dtype, x.device)
    if size > inner:
        blocks = signs(size // inner, x.dtype, x.device) @ blocks
    return blocks.mul(1.0 / sqrt(size)).view(x.shape)


@lru_cache(maxsize=32)
def _signs(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """_make_signs, kept."""
    # outside of inference mode, so that a cached matrix may later take part in training
    with torch.inference_mode(False):
        return _make_signs(size, dtype, device)


def _make_signs(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The Hadamard matrix of +1 and -1, [size, size]; exact in every floating dtype."""
    matrix = torch.ones(1, 1, dtype=dtype, device=device)
    while matrix.shape[0] < size:
        upper = torch.cat((matrix, matrix), 1)
        matrix = torch.cat((upper, torch.cat((matrix, -matrix), 1)))
    return matrix


def fake_quantize_int8(x: Tensor) -> Tensor:
    """x [.., K] rounded to 255 levels per token: step = max |x| / 127, symmetric.

    The gradient passes straight through the rounding (arXiv:1308.3432).
    """
    return _fake_quantize(x, 127.0, torch.round)


def fake_quantize_fp8(x: Tensor) -> Tensor:
    """x [.., K] rounded to fp8 e4m3 per token: step = max |x| / 448, the largest number there.

    The gradient passes straight through the rounding, as with int8.
    """
    return _fake_quantize(x, 448.0, _e4m3)


def _e4m3(ratio: Tensor) -> Tensor:
    # a quotient may come out an ulp above 448, and a cast of more than 448 is NaN or saturates
    return ratio.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()


def _fake_quantize(x: Tensor, limit: float, round_: Callable[[Tensor], Tensor]) -> Tensor:
    step = x.detach().float().abs().amax(-1, keepdim=True) / limit
    step = step.clamp_min(torch.finfo(torch.float32).tiny)
    rounded = round_(x.detach().float() / step).mul_(step).to(x.dtype)
    return rounded + (x - x.detach()) if x.requires_grad else rounded
