"""What linear_qat takes, checked."""

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.one_device import on_one_device

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_GRADIENTS = ("float", "int8")
# 127 * 128 * this is less than 2^31: beyond, an int32 could overflow
_LONGEST = 131072


def check_codes(codes: Tensor) -> None:
    """UnsupportedError unless codes are int8 [N, K]."""
    if codes.dtype != torch.int8 or codes.dim() != 2:
        raise UnsupportedError(
            f"linear_qat: codes are {codes.dtype} {list(codes.shape)}: they must be int8 [N, K], "
            "as fake_quantize makes them"
        )


def check(
    x: Tensor,
    weight: Tensor | None,
    codes: Tensor,
    scale: Tensor,
    codes_t: Tensor | None,
    bias: Tensor | None,
    x_codes: Tensor | None,
    x_scale: Tensor | None,
    seed: Tensor | None,
    weight_gradient: str,
    out_dtype: torch.dtype,
) -> None:
    """UnsupportedError for what does not fit, in words."""
    check_codes(codes)
    n, k = codes.shape
    if x.dtype not in FLOATS or not x.dim() or x.shape[-1] != k:
        raise UnsupportedError(
            f"linear_qat: x is {x.dtype} {list(x.shape)}, codes {list(codes.shape)}: x may be "
            f"float32, float16 or bfloat16 of [..., {k}]"
        )
    if scale.dtype != torch.float32 or tuple(scale.shape) not in ((n, 1), (1, 1)):
        raise UnsupportedError(
            f"linear_qat: scale is {scale.dtype} {list(scale.shape)}: it must be float32 [{n}, 1] "
            "(a channel) or [1, 1] (the tensor); groups along K cannot be folded into the gradient "
            "of x, train them with the dequantized weight"
        )
    if max(n, k) > _LONGEST:
        raise UnsupportedError(
            f"linear_qat: codes are {list(codes.shape)}: up to {_LONGEST} rows and columns, beyond "
            "which an int32 sum could overflow"
        )
    rows = x.shape[:-1]
    _check_one("weight", weight, (n, k), FLOATS)
    _check_one("codes_t", codes_t, (k, n), (torch.int8,))
    _check_one("bias", bias, (n,), FLOATS)
    _check_one("x_codes", x_codes, (*rows, k), (torch.int8,))
    _check_one("x_scale", x_scale, rows, (torch.float32,))
    if (x_codes is None) != (x_scale is None):
        raise UnsupportedError("linear_qat: x_codes and x_scale come together")
    if weight_gradient not in _GRADIENTS or out_dtype not in FLOATS:
        raise UnsupportedError(
            f"linear_qat: weight_gradient {weight_gradient!r}, out_dtype {out_dtype}: the first is "
            "'float' or 'int8', the second float32, float16 or bfloat16"
        )
    if weight_gradient == "int8" and rows.numel() > _LONGEST:
        raise UnsupportedError(
            f"linear_qat: {rows.numel()} tokens with weight_gradient 'int8': up to {_LONGEST}, "
            "beyond which an int32 sum could overflow; use 'float' or fewer tokens a call"
        )
    if seed is not None and (seed.dtype != torch.int64 or seed.numel() != 1):
        raise UnsupportedError(
            f"linear_qat: seed is {seed.dtype} {list(seed.shape)}: it must be one int64"
        )
    on_one_device(
        "linear_qat", "x", x, weight=weight, codes=codes, scale=scale, codes_t=codes_t, bias=bias,
        x_codes=x_codes, x_scale=x_scale, seed=seed,
    )  # fmt: skip


def _check_one(
    name: str, value: Tensor | None, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    if value is None or (tuple(value.shape) == tuple(shape) and value.dtype in dtypes):
        return
    allowed = " or ".join(str(dtype)[6:] for dtype in dtypes)
    raise UnsupportedError(
        f"linear_qat: {name} is {value.dtype} {list(value.shape)}: it must be {allowed} "
        f"{list(shape)}"
    )
