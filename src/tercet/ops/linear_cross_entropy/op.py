"""linear_cross_entropy: cross entropy of x @ weight^T, whose logits never exist whole."""

from collections.abc import Mapping
from typing import Any, Literal

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
from tercet.ops.linear_cross_entropy.cases import CASES, inputs, shapes
from tercet.ops.linear_cross_entropy.reference import gradient_magnitude, magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
    accumulate: torch.dtype | None = None,
) -> Tensor:
    """Cross entropy of the logits x @ weight^T, which never exist whole.

    loss = sum over kept tokens of logsumexp(logits) - logits[target]; divided by their number for
    "mean". The softmax is taken in float32 of logits in x's dtype. The gradients are computed
    together with the loss, chunk by chunk (Hsu et al. 2024, arXiv:2410.10989), only where x or
    weight require them; the backward pass multiplies them by the incoming scalar, in place.

    Args:
        x: [..., H], float32, float16 or bfloat16: the last hidden states.
        weight: [V, H], of x's dtype: the head.
        target: [...], int64: the class of each token, in [0, V), or ignore_index.
        ignore_index: tokens with this target have no loss and no gradient.
        reduction: "mean" over the kept tokens (NaN where there are none, as in torch) or "sum".
            A kept token whose largest logit is infinite has a loss of NaN, as in torch.
        accumulate: torch.float32 sums the gradient of weight over chunks in float32, which takes
            4 V H bytes more; None sums in weight's dtype, rounding once a chunk.

    Returns:
        The loss, a float32 scalar; differentiable once with respect to x and weight. A second
        backward pass over the same graph is an error: the gradients were scaled in place.

    Raises:
        UnsupportedError: for shapes, dtypes or devices that do not fit; on a CPU also for a target
            out of range. On a GPU, where reading targets would stall, such a target makes the loss
            and every gradient it reaches NaN.
    """
    if accumulate not in (None, torch.float32):
        raise UnsupportedError(
            f"linear_cross_entropy: accumulate is {accumulate}: it may be None or torch.float32"
        )
    if not x.dim() or target.shape != x.shape[:-1]:
        raise UnsupportedError(
            f"linear_cross_entropy: x is {list(x.shape)}, target {list(target.shape)}: target must "
            "have x's shape without its last axis"
        )
    wanted = torch.is_grad_enabled()
    loss, *_ = _forward(
        x.reshape(x.shape[:-1].numel(), x.shape[-1]),
        weight,
        target.reshape(-1),
        ignore_index,
        reduction,
        wanted and x.requires_grad,
        wanted and weight.requires_grad,
        accumulate is not None,
        x.dtype == torch.float16,
        True,
    )
    return loss


def _check(x: Tensor, weight: Tensor, target: Tensor, reduction: str) -> None:
    if x.dtype not in _DTYPES or weight.dtype != x.dtype or target.dtype != torch.int64:
        raise UnsupportedError(
            f"linear_cross_entropy: x is {x.dtype}, weight {weight.dtype}, target {target.dtype}: "
            "x may be float32, float16 or bfloat16, weight of x's dtype, target int64"
        )
    fits = x.dim() == 2 and weight.dim() == 2 and weight.shape[0] > 0
    if not fits or weight.shape[1] != x.shape[1] or target.shape != x.shape[:1]:
        raise UnsupportedError(
            f"linear_cross_entropy: x is {list(x.shape)}, weight {list(weight.shape)}, target "
            f"{list(target.shape)}: they must be [M, H], [V, H] with V at least 1, and [M]"
        )
    if reduction not in ("mean", "sum"):
        raise UnsupportedError(
            f"linear_cross_entropy: reduction is {reduction!r}: it may be 'mean' or 'sum'"
        )
    on_one_device("linear_cross_entropy", "x", x, weight=weight, target=target)


def _check_range(target: Tensor, classes: int, ignore_index: int) -> None:
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        raise UnsupportedError(
            f"linear_cross_entropy: target[{at}] is {int(target[at])}: a target must be in "
            f"[0, {classes}) or ignore_index, which is {ignore_index}"
        )


def _run(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    x_gradient: bool,
    weight_gradient: bool,
    accumulate_float32: bool,
    divide_late: bool,
    in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check(x, weight, target, reduction)
    if target.device.type == "cpu":
        _check_range(target, weight.shape[0], ignore_index)
    run = choose(OP, x.device.type, x.dtype).forward
    return run(
        x,
        weight,
        target,
        ignore_index,
        reduction,
        x_gradient,
        weight_gradient,
        accumulate_float32,
        divide_late,
        in_place,
    )


def _fake(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    x_gradient: bool,
    weight_gradient: bool,
    accumulate_float32: bool,
    divide_late: bool,
    in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    del ignore_index, accumulate_float32, divide_late, in_place
    _check(x, weight, target, reduction)
    return (
        x.new_empty((), dtype=torch.float32),
        x.new_empty(x.shape[:1], dtype=torch.float32),
        x.new_empty(x.shape if x_gradient else (0,)),
        x.new_empty(weight.shape if weight_gradient else (0,)),
    )


def _run_gradient(grad: Tensor, grad_x: Tensor, grad_weight: Tensor) -> tuple[Tensor, Tensor]:
    run = choose_gradient(OP, grad_x.device.type, grad_x.dtype)
    return run(grad, grad_x, grad_weight, False)


def _fake_gradient(grad: Tensor, grad_x: Tensor, grad_weight: Tensor) -> tuple[Tensor, Tensor]:
    del grad
    return torch.empty_like(grad_x), torch.empty_like(grad_weight)


def _run_gradient_in_place(grad: Tensor, grad_x: Tensor, grad_weight: Tensor) -> None:
    choose_gradient(OP, grad_x.device.type, grad_x.dtype)(grad, grad_x, grad_weight, True)


def _fake_gradient_in_place(grad: Tensor, grad_x: Tensor, grad_weight: Tensor) -> None:
    del grad, grad_x, grad_weight


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, target, ctx.ignore_index, reduction, *wanted, _, divide_late, ctx.in_place = inputs
    _, _, grad_x, grad_weight = output
    ctx.wanted = wanted
    # float16 gradients of a mean underflow: they are kept as those of the sum, and divided only
    # together with the incoming gradient, which carries the loss scale
    ctx.divide = reduction == "mean" and divide_late
    ctx.save_for_backward(grad_x, grad_weight, *([target] if ctx.divide else []))


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    kept_x, kept_weight, *target = ctx.saved_tensors
    # they are outputs of the op, so autograd has them require a gradient themselves
    grad_x, grad_weight = kept_x.detach(), kept_weight.detach()
    for name, needed, kept in zip(("x", "weight"), ctx.needs_input_grad, ctx.wanted, strict=False):
        if needed and not kept:
            raise UnsupportedError(
                f"linear_cross_entropy was called with {name}_gradient=False, but the gradient of "
                f"{name} is wanted: pass True, or call tercet.ops.linear_cross_entropy's function"
            )
    if ctx.divide:
        grad = grad / (target[0] != ctx.ignore_index).sum().clamp(min=1)
    if ctx.in_place:
        _gradient_in_place(grad, grad_x, grad_weight)
        # a second backward pass would scale them again: autograd now refuses it
        torch.autograd.graph.increment_version((grad_x, grad_weight))
    else:
        grad_x, grad_weight = _gradient(grad, grad_x, grad_weight)
    x_wanted, weight_wanted = ctx.wanted
    return grad_x if x_wanted else None, grad_weight if weight_wanted else None, *[None] * 8


_forward = define(
    "linear_cross_entropy",
    "(Tensor x, Tensor weight, Tensor target, int ignore_index, str reduction, bool x_gradient, "
    "bool weight_gradient, bool accumulate_float32, bool divide_late, bool in_place) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_gradient = define(
    "linear_cross_entropy_gradient",
    "(Tensor grad, Tensor grad_x, Tensor grad_weight) -> (Tensor, Tensor)",
    run=_run_gradient,
    fake=_fake_gradient,
)
_gradient_in_place = define(
    "linear_cross_entropy_gradient_",
    "(Tensor grad, Tensor(a!) grad_x, Tensor(b!) grad_weight) -> ()",
    run=_run_gradient_in_place,
    fake=_fake_gradient_in_place,
)
differentiate("linear_cross_entropy", save=_save, backward=_backward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """The product, and one more for each gradient; inputs read and results written once."""
    x, weight, target = (arguments[name] for name in ("x", "weight", "target"))
    x_gradient, weight_gradient = arguments["x_gradient"], arguments["weight_gradient"]
    tokens, hidden = x.shape
    size, weights = x.numel() * x.element_size(), weight.numel() * weight.element_size()
    products = 1 + x_gradient + weight_gradient
    return Cost(
        flops=2 * products * tokens * hidden * weight.shape[0] + 5 * tokens * weight.shape[0],
        bytes_read=size + weights + target.numel() * target.element_size(),
        bytes_written=4 + 4 * tokens + size * x_gradient + weights * weight_gradient,
    )


def gradient_cost(arguments: Mapping[str, Any]) -> Cost:
    """The gradients, kept since the forward pass, times a scalar."""
    x, weight = arguments["x"], arguments["weight"]
    elements = x.numel() * arguments["x_gradient"] + weight.numel() * arguments["weight_gradient"]
    size = elements * x.element_size()
    return Cost(flops=elements, bytes_read=size + 4, bytes_written=size)


_FLOAT32 = (torch.float32,)
_SPACE = {
    "CHUNK": (512, 640, 768, 1024),
    "RESIDENT": (0, 1),
    "SLICE": (8448, 16384, 21120),
    "SPLIT": (1, 2, 4, 8),
    "TILE": (0, 29),
}

OP = Op(
    name="linear_cross_entropy",
    axes=(
        Axis(name="M", meaning="tokens"),
        Axis(name="H", meaning="hidden size"),
        Axis(name="V", meaning="classes: the vocabulary"),
    ),
    tensors=(
        TensorSpec(name="x", axes=("M", "H"), dtypes=_DTYPES),
        TensorSpec(name="weight", axes=("V", "H"), dtypes=_DTYPES),
        TensorSpec(name="target", axes=("M",), dtypes=(torch.int64,), chooses="V"),
        TensorSpec(name="loss", axes=(), dtypes=_FLOAT32, role="output"),
        TensorSpec(name="lse", axes=("M",), dtypes=_FLOAT32, role="saved"),
        TensorSpec(name="grad_x", axes=("M", "H"), dtypes=_DTYPES, optional=True, role="saved"),
        TensorSpec(
            name="grad_weight", axes=("V", "H"), dtypes=_DTYPES, optional=True, role="saved"
        ),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    gradient_magnitude=gradient_magnitude,
    cost=cost,
    gradient_cost=gradient_cost,
    cases=CASES,
    tolerances=(
        Tolerance(
            dtype=torch.float32,
            relative=4e-6,
            reason="float32 products and sums; magnitude counts the logits' own rounding",
        ),
        Tolerance(
            dtype=torch.float16,
            relative=2**-9,
            gradient=2**-8,
            reason="as bfloat16, with 11 bits",
        ),
        Tolerance(
            dtype=torch.bfloat16,
            relative=2**-6,
            gradient=2**-5,
            reason="logits, their gradient, the result and, in the gradient of weight, the sum "
            "after each of n chunks are each rounded to 8 bits, n + 3 times 2^-9 at most; the "
            "magnitude counts more chunks than a few",
        ),
    ),
    differentiable=("x", "weight"),
    implementations=(
        Implementation(
            name="cuda",
            requirement=Requirement(
                devices=("cuda",), dtypes=_DTYPES, nvcc=True, capability=(9, 0)
            ),
            module="tercet.ops.linear_cross_entropy.cuda",
            language="cuda",
            space=_SPACE,
            gradient_space={"num_warps": (4, 8)},
        ),
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.linear_cross_entropy.triton",
            language="triton",
            space={**_SPACE, "num_warps": (16, 32)},
            gradient_space={"num_warps": (4, 8)},
            small_space={"CHUNK": (2, 5), "RESIDENT": (1,), "SLICE": (16, 32), "BLOCK": (16, 64)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.linear_cross_entropy.torch_path",
            language="torch",
            slow=True,
            capturable=False,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    baselines=(
        Baseline(name="eager", path="tercet.ops.linear_cross_entropy.baselines:eager"),
        Baseline(
            name="three products", path="tercet.ops.linear_cross_entropy.baselines:three_products"
        ),
        Baseline(
            name="liger",
            path="tercet.ops.linear_cross_entropy.baselines:liger",
            package="liger-kernel",
        ),
    ),
)
