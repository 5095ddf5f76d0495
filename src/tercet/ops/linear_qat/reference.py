"""The meaning of linear_qat: what is rounded, to the bit; all that is between, in float64."""

from typing import Any, cast

import torch
from torch import Tensor

_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def reference(
    x: Tensor,
    weight: Tensor | None,
    codes: Tensor,
    scale: Tensor,
    codes_t: Tensor | None = None,
    bias: Tensor | None = None,
    x_codes: Tensor | None = None,
    x_scale: Tensor | None = None,
    seed: Tensor | None = None,
    weight_gradient: str = "float",
    out_dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y [.., N], codes of x [M, K] and their scales [M], both empty where they were given)."""
    del codes_t
    kept, shape = x_codes is None, (x.shape[:-1].numel(), x.shape[-1])
    if x_codes is None or x_scale is None:
        x_codes, x_scale = _codes(x.detach().reshape(shape).float())
    flat, scales = x_codes.reshape(shape).double(), x_scale.reshape(shape[0])
    wide = scale.reshape(-1).expand(len(codes))
    options = (weight_gradient, out_dtype)
    operands = (x, weight, flat, scales, codes.double(), wide, seed, options)
    y = cast(Tensor, _StraightThrough.apply(*operands))
    if bias is not None:
        y = y + bias.double()
    return y, flat if kept else flat.new_empty(0), (scales if kept else scales[:0]).double()


def magnitude(
    x: Tensor,
    weight: Tensor | None,
    codes: Tensor,
    scale: Tensor,
    codes_t: Tensor | None = None,
    bias: Tensor | None = None,
    *options: Any,
    **more: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """|x W^T| + |bias|: the product is a sum of integers, exact."""
    del codes_t
    plain, kept, scales = reference(x, weight, codes, scale, None, None, *options, **more)
    size = plain.detach().abs()
    if bias is not None:
        size = size + bias.double().abs()
    return size, kept, scales


def gradient_magnitude(
    directions: list[Tensor | None],
    x: Tensor,
    weight: Tensor | None,
    codes: Tensor,
    scale: Tensor,
    codes_t: Tensor | None = None,
    bias: Tensor | None = None,
    x_codes: Tensor | None = None,
    x_scale: Tensor | None = None,
    seed: Tensor | None = None,
    weight_gradient: str = "float",
    out_dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Tensor]:
    """Of weight in floats: |grad|^T |x|; of bias: the sum of |grad|."""
    del scale, codes_t, seed, out_dtype
    if directions[0] is None:
        return {}
    m, k = x.shape[:-1].numel(), x.shape[-1]
    grad = directions[0].double().abs().reshape(m, len(codes))
    if x_codes is None or x_scale is None:
        x_codes, x_scale = _codes(x.reshape(m, k).float())
    size = x_codes.reshape(m, k).double().abs() * x_scale.reshape(m, 1).double()
    sizes: dict[str, Tensor] = {}
    if bias is not None:
        sizes["bias"] = grad.sum(0)
    if weight is not None and weight_gradient == "float":
        sizes["weight"] = grad.T @ size
    return sizes


class _StraightThrough(torch.autograd.Function):
    """y = x^ W^T with gradients grad W and grad^T x^, their operands rounded as the op says."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, weight, flat, scales, codes, wide, seed, options = inputs
        ctx.shape, ctx.options = x.shape, options
        ctx.wanted = weight is not None
        ctx.save_for_backward(flat, scales, codes, wide, seed)
        y = (flat @ codes.T) * wide.double() * scales.double()[:, None]
        return y.reshape(*x.shape[:-1], len(codes))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        flat, scales, codes, wide, seed = ctx.saved_tensors
        weight_gradient, dtype = ctx.options
        grad = grads[0].reshape(len(flat), len(codes)).float()
        back, back_scale = _codes(grad * wide)
        grad_x = (back.double() @ codes) * back_scale.double()[:, None]
        grad_weight = None
        if ctx.wanted and weight_gradient == "int8":
            rounded, size = _codes((grad * scales[:, None]).T, seed)
            grad_weight = (rounded.double() @ flat) * size.double()[:, None]
        elif ctx.wanted:
            seen = (flat.float() * scales[:, None]).to(dtype)
            grad_weight = grad.double().T @ seen.double()
        return grad_x.reshape(ctx.shape), grad_weight, *(None,) * 6


def _codes(rows: Tensor, seed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """int8 codes and scale of each row [R, C] of float32: absmax / 127, IEEE divisions."""
    wide = torch.cat((rows.abs(), rows.new_zeros((len(rows), 1))), 1)
    # a tensor: on a GPU torch turns division by a number into a product with its reciprocal
    scale = wide.amax(1).div(torch.tensor([127.0], device=rows.device))
    usable = ((scale > 0) & scale.isfinite())[:, None]
    ratio = torch.where(usable, rows, 0.0) / torch.where(usable, scale[:, None], 1.0)
    ratio = ratio.clamp(-127, 127)
    if seed is None:
        return ratio.round(), scale
    return (ratio + _uniform(seed, *rows.shape)).floor(), scale


def _uniform(seed: Tensor, rows: int, columns: int) -> Tensor:
    """2^-16 times half c % 8, the lower first, of Philox block r * ceil(C / 8) + c // 8."""
    blocks, low = -(-columns // 8), 0xFFFFFFFF
    at = torch.arange(rows * blocks, device=seed.device)
    word = [at & low, at >> 32, torch.zeros_like(at), torch.zeros_like(at)]
    key = [seed.reshape(()) & low, (seed.reshape(()) >> 32) & low]
    for _ in range(10):
        left, right = word[0] * _MULTIPLIERS[0], word[2] * _MULTIPLIERS[1]
        word = [
            ((right >> 32) & low) ^ word[1] ^ key[0],
            right & low,
            ((left >> 32) & low) ^ word[3] ^ key[1],
            left & low,
        ]
        key = [(part + weyl) & low for part, weyl in zip(key, _WEYL, strict=True)]
    halves = [half for one in word for half in (one & 0xFFFF, one >> 16)]
    bits = torch.stack(halves, 1).reshape(rows, 8 * blocks)[:, :columns]
    return bits.float() * 2.0**-16
