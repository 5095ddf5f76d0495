"""What linear_qat takes: its arguments as one call, and those of its gradient."""

from dataclasses import dataclass, fields
from typing import Any

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


@dataclass(frozen=True, kw_only=True, slots=True)
class QatCall:
    """One call of linear_qat: what its implementations take.

    Attributes:
        x: [..., K], floats.
        weight: [N, K], what gets grad_weight, or None.
        codes, scale: [N, K] int8, and [N, 1] or [1, 1] float32, of the weight.
        codes_t: [K, N], the codes transposed, or None.
        bias: [N], floats, or None.
        x_codes, x_scale: [..., K] int8 and [...] float32 of x, or both None.
        seed: one int64, or None.
        weight_gradient: "float" or "int8".
        out_dtype: of y.
    """

    x: Tensor
    weight: Tensor | None
    codes: Tensor
    scale: Tensor
    codes_t: Tensor | None
    bias: Tensor | None
    x_codes: Tensor | None
    x_scale: Tensor | None
    seed: Tensor | None
    weight_gradient: str
    out_dtype: torch.dtype

    @classmethod
    def from_arguments(cls, *arguments: Any) -> "QatCall":
        """The call of the op's flat arguments. UnsupportedError for what does not fit, in words."""
        call = cls.from_valid_arguments(*arguments)
        _validate(call)
        return call

    @classmethod
    def from_valid_arguments(cls, *arguments: Any) -> "QatCall":
        """The call of flat arguments that are known to fit, as a compiled graph's are."""
        return cls(**dict(zip(_CALL_FIELDS, arguments, strict=True)))


_CALL_FIELDS = tuple(field.name for field in fields(QatCall))


@dataclass(frozen=True, kw_only=True, slots=True)
class QatGradientCall:
    """One call of linear_qat's gradient: what its implementations take.

    Attributes:
        grad: [M, N], of y.
        codes, scale, codes_t: of the weight, as in QatCall.
        x_codes, x_scale: [M, K] int8 and [M] float32 of x.
        seen: what the product with grad reads of x: [M, K] values for "float", [K, M] codes for
            "int8"; None without a gradient of the weight.
        seed, weight_gradient: as in QatCall.
        x_dtype, weight_dtype: of the gradients of x and weight; None where one is not wanted.
    """

    grad: Tensor
    codes: Tensor
    scale: Tensor
    codes_t: Tensor | None
    x_codes: Tensor
    x_scale: Tensor
    seen: Tensor | None
    seed: Tensor | None
    weight_gradient: str
    x_dtype: torch.dtype | None
    weight_dtype: torch.dtype | None

    @classmethod
    def from_arguments(cls, *arguments: Any) -> "QatGradientCall":
        """The call of the op's flat arguments."""
        return cls(**dict(zip(_GRADIENT_FIELDS, arguments, strict=True)))


_GRADIENT_FIELDS = tuple(field.name for field in fields(QatGradientCall))


def _validate(call: QatCall) -> None:
    x, codes, scale = call.x, call.codes, call.scale
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
    _validate_tensor("weight", call.weight, (n, k), FLOATS)
    _validate_tensor("codes_t", call.codes_t, (k, n), (torch.int8,))
    _validate_tensor("bias", call.bias, (n,), FLOATS)
    _validate_tensor("x_codes", call.x_codes, (*rows, k), (torch.int8,))
    _validate_tensor("x_scale", call.x_scale, rows, (torch.float32,))
    if (call.x_codes is None) != (call.x_scale is None):
        raise UnsupportedError("linear_qat: x_codes and x_scale come together")
    if call.weight_gradient not in _GRADIENTS or call.out_dtype not in FLOATS:
        raise UnsupportedError(
            f"linear_qat: weight_gradient {call.weight_gradient!r}, out_dtype {call.out_dtype}: "
            "the first is 'float' or 'int8', the second float32, float16 or bfloat16"
        )
    if call.weight_gradient == "int8" and rows.numel() > _LONGEST:
        raise UnsupportedError(
            f"linear_qat: {rows.numel()} tokens with weight_gradient 'int8': up to {_LONGEST}, "
            "beyond which an int32 sum could overflow; use 'float' or fewer tokens a call"
        )
    seed = call.seed
    if seed is not None and (seed.dtype != torch.int64 or seed.numel() != 1):
        raise UnsupportedError(
            f"linear_qat: seed is {seed.dtype} {list(seed.shape)}: it must be one int64"
        )
    on_one_device(
        "linear_qat", "x", x, weight=call.weight, codes=codes, scale=scale, codes_t=call.codes_t,
        bias=call.bias, x_codes=call.x_codes, x_scale=call.x_scale, seed=seed,
    )  # fmt: skip


def _validate_tensor(
    name: str, value: Tensor | None, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    if value is None or (tuple(value.shape) == tuple(shape) and value.dtype in dtypes):
        return
    allowed = " or ".join(str(dtype)[6:] for dtype in dtypes)
    raise UnsupportedError(
        f"linear_qat: {name} is {value.dtype} {list(value.shape)}: it must be {allowed} "
        f"{list(shape)}"
    )
