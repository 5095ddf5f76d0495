"""Add product: a sum of matrix products, one chunk at a time, on the tensor cores."""

import torch
from torch import Tensor, addmm

from tercet.kernel.device.cublas_lt import tiled_product

# of what is added up on a CPU, whose sums of float32 may be taken one after the other
_CHUNK = 4096


def add_product(total: Tensor, left: Tensor, right: Tensor, *, fresh: bool, tile: int = 0) -> None:
    """total (+)= left @ right, summed in float32 and rounded once to total's dtype.

    Args:
        total: [M, N], of left's dtype or float32.
        left, right: [M, K] and [K, N], of one dtype.
        fresh: whether total's content, which may be anything, is replaced.
        tile: of the kernel on a GPU, as of `cublas_lt.tiled_product`; 0 leaves it to cuBLAS.
    """
    if tile and total.is_cuda and tiled_product(total, left, right, tile=tile, fresh=fresh):
        return
    beta = 0 if fresh else 1
    if not total.is_cuda:
        # a CPU's own products of float16 are summed in float16, which overflows on the way
        product = _multiply_chunks(left, right)
        total.copy_(product if fresh else product.add_(total))
    elif total.dtype == left.dtype:
        total.addmm_(left, right, beta=beta)
    else:
        addmm(total, left, right, out_dtype=total.dtype, beta=beta, out=total)


def _multiply_chunks(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in float32; sums of many are those of chunks, added in float64."""
    columns = left.shape[1]
    if columns <= _CHUNK:
        return left.float() @ right.float()
    chunks = zip(left.split(_CHUNK, 1), right.split(_CHUNK), strict=True)
    total = left.new_zeros((left.shape[0], right.shape[1]), dtype=torch.float64)
    for one, other in chunks:
        total.add_(one.float() @ other.float())
    return total.float()
