"""What products of a gradient read: codes turned, codes decoded."""

from typing import cast

import torch
from torch import Tensor

from tercet.kernel.register import define
from tercet.kernel.select import choose_gradient
from tercet.ops.linear_qat.arguments import check_codes


def transposed(codes: Tensor) -> Tensor:
    """codes [N, K] int8 as [K, N], contiguous."""
    return cast(Tensor, _transposed(codes))


def decoded(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """codes [M, K] int8 * scale [M] float32, in dtype."""
    return cast(Tensor, _decoded(codes, scale, dtype))


def _run_transposed(codes: Tensor) -> Tensor:
    check_codes(codes)
    if codes.device.type != "cuda":
        return codes.t().contiguous()
    from tercet.kernel.device.codes_matrix import transpose
    from tercet.ops.linear_qat import cuda, op

    # what turns the weight's codes in the gradient
    mine = choose_gradient(op.OP, "cuda", torch.float32) is cuda.gradient
    return cuda.turned(codes) if mine else transpose(codes)


def _fake_transposed(codes: Tensor) -> Tensor:
    check_codes(codes)
    return codes.new_empty((codes.shape[1], codes.shape[0]))


def _run_decoded(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    if codes.device.type != "cuda":
        return (codes.float() * scale[:, None]).to(dtype)
    from tercet.kernel.device import codes_matrix

    return codes_matrix.decoded(codes, scale.contiguous(), dtype)


def _fake_decoded(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    del scale
    return codes.new_empty(codes.shape, dtype=dtype)


_transposed = define(
    "linear_qat_transposed", "(Tensor codes) -> Tensor", run=_run_transposed, fake=_fake_transposed
)
_decoded = define(
    "linear_qat_decoded",
    "(Tensor codes, Tensor scale, ScalarType dtype) -> Tensor",
    run=_run_decoded,
    fake=_fake_decoded,
)
