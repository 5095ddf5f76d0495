"""Hadamard rotation: spread outliers over many columns before quantizing.

With the normalized Hadamard matrix R of a power-of-two size (Sylvester's, R = R^T = R^-1) applied
to each block of columns,

    y = x W^T = (x R) (W R)^T

so a layer whose weight is rotated gives the same output on rotated inputs, while W R and x R have
no outlier columns: QuIP# (Tseng et al., arXiv:2402.04396), QuaRot (Ashkboos et al.,
arXiv:2404.00456). The Gram matrix of rotated inputs is R H R.
"""

from math import sqrt

import torch
from pydantic import Field
from torch import Tensor

from tercet.compress.algorithm import Algorithm, Quantized, Statistics
from tercet.compress.ptq import gptq
from tercet.errors import UnsupportedError
from tercet.formats import Scheme
from tercet.packed_weight.hadamard import hadamard_sums


def block_size(columns: int, largest: int = 1024) -> int:
    """The largest power of two, at most `largest`, that divides `columns`; 1 where none does."""
    size = columns & -columns
    if size == 0:
        return 1
    return min(size, 1 << (largest.bit_length() - 1))


def rotate(weight: Tensor, size: int) -> Tensor:
    """W R: each run of `size` columns times the normalized Hadamard matrix; its own inverse.

    Args:
        weight: W [N, K] (or inputs [M, K]).
        size: a power of two that divides K.

    Returns:
        [N, K], float32 (float64 for a float64 weight).

    Raises:
        UnsupportedError: a size that is no power of two, or does not divide K.
    """
    columns = weight.shape[1]
    if size < 1 or size & (size - 1) or columns % size:
        raise UnsupportedError(
            f"Hadamard block of {size} on {columns} columns: it must be a power of two that "
            f"divides them, the largest is {block_size(columns, max(columns, 1))}"
        )
    work = weight if weight.dtype == torch.float64 else weight.float()
    return hadamard_sums(work, size) / sqrt(size)


def rotate_gram(gram: Tensor, size: int) -> Tensor:
    """R H R: the Gram matrix [K, K] of the rotated inputs x R, of H = E[x x^T]."""
    rotated = rotate(rotate(gram, size).T, size)
    return (rotated + rotated.T) / 2


class Options(gptq.Options):
    """Options of GPTQ in the rotated basis.

    Attributes:
        largest: the largest block of columns that is rotated together.
    """

    largest: int = Field(default=1024, ge=2)


def _quantize_group(
    weights: dict[str, Tensor], statistics: Statistics, scheme: Scheme, options: Options
) -> dict[str, Quantized]:
    size = block_size(statistics.gram.shape[0], options.largest)
    if size == 1:
        columns = statistics.gram.shape[0]
        raise UnsupportedError(
            f"{next(iter(weights))}: a Hadamard rotation needs an even number of columns, "
            f"got {columns}: use gptq for this layer"
        )
    gram = rotate_gram(statistics.gram, size)
    rotated = {name: rotate(weight, size) for name, weight in weights.items()}
    packed = gptq.quantize_group(rotated, gram, scheme, options)
    return {name: Quantized(packed=found, hadamard=size) for name, found in packed.items()}


ALGORITHM = Algorithm(
    name="hadamard",
    options=Options,
    needs_inputs=True,
    quantize=_quantize_group,
    transforms_inputs=True,
)
