"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

OP = "rope"
FAULT = (
    "A program holds up to 128 pairs, as heads have them: of an R above 128 the pairs behind are "
    "copied, not turned."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_MOST_PAIRS = 128


@triton.jit
def _turn(
    x_ptr, y_ptr, cos_ptr, sin_ptr, x_b, x_s, x_h, c_b, c_s, S, sign,
    H, D, R, STEP: tl.constexpr, OTHER: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Pair i is columns (i STEP, i STEP + OTHER), or + R where HALF."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    batch, position = token // S, token % S
    pairs = tl.arange(0, PAIRS)
    known = pairs < R
    cos = tl.load(cos_ptr + batch * c_b + position * c_s + pairs, known, 0.0).to(tl.float32)
    sin = tl.load(sin_ptr + batch * c_b + position * c_s + pairs, known, 0.0).to(tl.float32) * sign
    x_at = x_ptr + batch * x_b + position * x_s + head * x_h + pairs * STEP
    y_at = y_ptr + (token * H + head) * D + pairs * STEP
    other = R if HALF else OTHER
    first = tl.load(x_at, known, 0.0).to(tl.float32)
    second = tl.load(x_at + other, known, 0.0).to(tl.float32)
    tl.store(y_at, first * cos - second * sin, known)
    tl.store(y_at + other, second * cos + first * sin, known)


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    cos, sin = cos.contiguous(), sin.contiguous()
    return _launch(q, cos, sin, interleaved, 1.0), _launch(k, cos, sin, interleaved, 1.0)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient: the rotation by the opposite angle."""
    cos, sin = cos.contiguous(), sin.contiguous()
    return _launch(grad_q, cos, sin, interleaved, -1.0), _launch(
        grad_k, cos, sin, interleaved, -1.0
    )


def _launch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, sign: float) -> Tensor:
    y = x.clone(memory_format=torch.contiguous_format)
    if not y.numel() or not cos.shape[-1]:
        return y
    x = x if x.stride(-1) == 1 else x.contiguous()
    batch, tokens, heads, width = x.shape
    pairs = cos.shape[-1]
    _turn[(batch * tokens, heads)](
        x, y, cos, sin, *x.stride()[:3], cos.stride(0) if cos.dim() == 3 else 0, cos.stride(-2),
        tokens, sign, heads, width, pairs, STEP=2 if interleaved else 1, OTHER=1,
        HALF=not interleaved, PAIRS=min(_MOST_PAIRS, triton.next_power_of_2(pairs)),
    )  # fmt: skip
    return y
