"""rope: rotary position embedding of queries and keys."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.contract import (
    Axis,
    Baseline,
    Cost,
    Implementation,
    Op,
    Requirement,
    TensorSpec,
    Tolerance,
)
from tercet.kernel.one_device import on_one_device
from tercet.kernel.register import define, differentiate
from tercet.kernel.select import choose, choose_gradient
from tercet.ops.rope.cases import CASES, inputs, shapes
from tercet.ops.rope.reference import magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_SPACE = {"TOKENS": (1, 2, 4), "HEADS": (4, 8, 16, 32), "num_warps": (1, 2, 4, 8)}


def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864), of q and k in one launch.

    Each pair (x1, x2) of a head becomes (x1 cos - x2 sin, x2 cos + x1 sin), in float32. Columns
    from 2 R on are copied.

    Args:
        q: [B, S, H, D] queries, float32, float16 or bfloat16; strides as they come.
        k: [B, S, G, D] keys, of q's dtype; G may differ from H.
        cos, sin: [S, R], or [B, S, R], with 2 R <= D: of the angle of each position and pair, not
            repeated for the second half; both of q's dtype or both float32. They have no gradient.
        interleaved: pairs are columns (2 i, 2 i + 1), as in the paper; else (i, i + R), as in the
            Llama of transformers.

    Returns:
        (q, k), rotated, contiguous. Differentiable with respect to q and k.

    Raises:
        UnsupportedError: for shapes, dtypes or devices that do not fit.
    """
    return _forward(q, k, cos, sin, interleaved)


def _check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    if q.dtype not in _DTYPES or k.dtype != q.dtype:
        raise UnsupportedError(
            f"rope: q is {q.dtype}, k {k.dtype}: both must be float32, both float16 or both "
            "bfloat16"
        )
    if cos.dtype not in (q.dtype, torch.float32) or sin.dtype != cos.dtype:
        raise UnsupportedError(
            f"rope: q is {q.dtype}, cos {cos.dtype}, sin {sin.dtype}: cos and sin must both be of "
            "q's dtype or both float32"
        )
    if q.dim() != 4 or k.dim() != 4 or _without_heads(k) != _without_heads(q):
        raise UnsupportedError(
            f"rope: q is {list(q.shape)}, k {list(k.shape)}: they must be [B, S, H, D] and "
            "[B, S, G, D]; transpose heads behind positions"
        )
    batch, tokens, _, width = q.shape
    leading = tuple(cos.shape[:-1])
    if cos.shape != sin.shape or leading not in ((tokens,), (batch, tokens)):
        raise UnsupportedError(
            f"rope: cos is {list(cos.shape)}, sin {list(sin.shape)}: with q {list(q.shape)} they "
            f"must be [{tokens}, R] or [{batch}, {tokens}, R]"
        )
    if 2 * cos.shape[-1] > width:
        raise UnsupportedError(
            f"rope: cos has R = {cos.shape[-1]} columns, a head {width}: 2 R must be at most "
            f"{width}; give each angle once, not repeated for the second half"
        )
    on_one_device("rope", "q", q, k=k, cos=cos, sin=sin)


def _without_heads(x: Tensor) -> tuple[int, ...]:
    batch, tokens, _, width = x.shape
    return batch, tokens, width


def _run(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    _check(q, k, cos, sin)
    return choose(OP, q.device.type, q.dtype).forward(q, k, cos, sin, interleaved)


def _fake(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    del interleaved
    _check(q, k, cos, sin)
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _run_gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    run = choose_gradient(OP, grad_q.device.type, grad_q.dtype)
    return run(grad_q, grad_k, cos, sin, interleaved)


def _fake_gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    del cos, sin, interleaved
    return grad_q.new_empty(grad_q.shape), grad_k.new_empty(grad_k.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    del output
    _, k, cos, sin, ctx.interleaved = inputs
    ctx.k_shape = k.shape
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, grad_q: Tensor, grad_k: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_k is None:
        grad_k = grad_q.new_zeros(ctx.k_shape)
    return (*_gradient(grad_q, grad_k, *ctx.saved_tensors, ctx.interleaved), None, None, None)


_forward = define(
    "rope",
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved) -> (Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_gradient = define(
    "rope_gradient",
    "(Tensor grad_q, Tensor grad_k, Tensor cos, Tensor sin, bool interleaved) -> (Tensor, Tensor)",
    run=_run_gradient,
    fake=_fake_gradient,
)
differentiate("rope", save=_save, backward=_backward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """q, k, cos and sin read once; q and k written once. The gradient's cost is the same."""
    q, k, cos, sin = (arguments[name] for name in ("q", "k", "cos", "sin"))
    heads = (q.numel() + k.numel()) * q.element_size()
    pairs = q.shape[0] * q.shape[1] * (q.shape[2] + k.shape[2]) * cos.shape[-1]
    return Cost(
        flops=6 * pairs,
        bytes_read=heads + (cos.numel() + sin.numel()) * cos.element_size(),
        bytes_written=heads,
    )


OP = Op(
    name="rope",
    axes=(
        Axis(name="B", meaning="sequences"),
        Axis(name="S", meaning="positions of a sequence"),
        Axis(name="H", meaning="query heads"),
        Axis(name="G", meaning="key heads"),
        Axis(name="D", meaning="width of a head"),
        Axis(name="R", meaning="rotated pairs of a head"),
    ),
    tensors=(
        TensorSpec(name="q", axes=("B", "S", "H", "D"), dtypes=_DTYPES),
        TensorSpec(name="k", axes=("B", "S", "G", "D"), dtypes=_DTYPES),
        TensorSpec(name="cos", axes=("S", "R"), dtypes=_DTYPES),
        TensorSpec(name="sin", axes=("S", "R"), dtypes=_DTYPES),
        TensorSpec(name="rotated_q", axes=("B", "S", "H", "D"), dtypes=_DTYPES, role="output"),
        TensorSpec(name="rotated_k", axes=("B", "S", "G", "D"), dtypes=_DTYPES, role="output"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    cost=cost,
    gradient_cost=cost,
    cases=CASES,
    tolerances=(
        Tolerance(dtype=torch.float32, relative=4e-7, reason="two float32 products and their sum"),
        Tolerance(
            dtype=torch.float16, relative=2**-10, inner=4e-6, reason="one rounding to 11 bits"
        ),
        Tolerance(
            dtype=torch.bfloat16, relative=2**-8, inner=4e-6, reason="one rounding to 8 bits"
        ),
    ),
    differentiable=("q", "k"),
    implementations=(
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.rope.triton",
            language="triton",
            space=_SPACE,
            gradient_space=_SPACE,
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.rope.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="S",
    baselines=(
        Baseline(name="eager", path="tercet.ops.rope.baselines:eager"),
        Baseline(name="liger", path="tercet.ops.rope.baselines:liger", package="liger-kernel"),
    ),
)
