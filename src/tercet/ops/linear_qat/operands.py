"""What a product of a gradient reads: decoded codes."""

from typing import cast

import torch
from torch import Tensor

from tercet.kernel.register import define


def decoded(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """codes [M, K] int8 * scale [M] float32, in dtype."""
    return cast(Tensor, _decoded(codes, scale, dtype))


def _run_decoded(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    if codes.device.type != "cuda":
        # with strides as the fake promises, whatever those of the codes are
        return (codes.float() * scale[:, None]).to(dtype).contiguous()
    from tercet.ops.linear_qat import codes_matrix

    return codes_matrix.decoded(codes, scale.contiguous(), dtype)


def _fake_decoded(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    del scale
    return codes.new_empty(codes.shape, dtype=dtype)


_decoded = define(
    "linear_qat_decoded",
    "(Tensor codes, Tensor scale, ScalarType dtype) -> Tensor",
    run=_run_decoded,
    fake=_fake_decoded,
)
