"""Weights as vLLM hands them to a kernel of mixed precision, into the compute layout.

words   int32 [N, ceil(K b / 32)], unsigned values of b bits, the first in the lowest bits
scale   [N, groups]
zero    None: 2^(b - 1) stands for 0; or int32 [ceil(N b / 32), groups], packed along the rows
"""

import torch
from torch import Tensor

from tercet.checkpoints.imports.compressed_tensors.tensors import unpack_words
from tercet.formats import PackedTensor, from_codes, parse_scheme
from tercet.formats.scaling import SCALE_DTYPES

WIDTHS = (2, 3, 4, 8)


def packed_from_words(
    words: Tensor, scale: Tensor, zero: Tensor | None, bits: int, columns: int
) -> PackedTensor:
    """The weight [N, columns]: codes and scales as they are.

    Values of 2 bits that are all -1, 0 or 1 become ternary, for which there are kernels.
    """
    unsigned, middle = unpack_words(words, bits, columns), 1 << bits - 1
    rows, groups = scale.shape
    sharing = "channel" if groups == 1 else f"g{-(-columns // groups)}"
    dtype = next(name for name, known in SCALE_DTYPES.items() if known == scale.dtype)
    points = None
    if zero is not None:
        points = unpack_words(zero.T.contiguous(), bits, rows).T.to(torch.int16) - middle
    ternary = bits == 2 and zero is None and not bool((unsigned == 0).any())
    name = f"{'ternary' if ternary else f'int{bits}'}-{sharing}"
    scheme = parse_scheme(
        name + ("-asym" if zero is not None else "") + ("" if dtype == "float16" else f"-{dtype}")
    )
    codes = unsigned - 1 if ternary else unsigned
    return from_codes(codes, scheme, scale, None if points is None else points.to(torch.int8))
