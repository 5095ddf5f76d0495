"""linear_kl: divergence of a student head from a teacher's, whose logits never exist whole."""

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
from tercet.ops.linear_kl.cases import CASES, inputs, shapes
from tercet.ops.linear_kl.reference import gradient_magnitude, magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def linear_kl(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    *,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    beta: float = 0.0,
    reduction: Literal["mean", "sum"] = "mean",
    accumulate: torch.dtype | None = None,
) -> Tensor:
    """Divergence between the softmax of two heads, whose logits never exist whole.

    With p = softmax(teacher_x teacher_weight^T / T), q = softmax(x weight^T / T) and
    m = beta p + (1 - beta) q, each kept token contributes T^2 times (Hinton et al. 2015,
    arXiv:1503.02531; Agarwal et al. 2023, arXiv:2306.13649)

        KL(p || q)                                   for beta = 0, the default
        KL(q || p)                                   for beta = 1
        beta KL(p || m) + (1 - beta) KL(q || m)      between: generalized Jensen-Shannon

    All after the products is float32: p - q of a student near its teacher would drown in the
    rounding of bfloat16 logits. The gradients are computed together with the loss, chunk by chunk,
    only where x or weight require them; the backward pass multiplies them in place.

    Args:
        x: [..., H], float32, float16 or bfloat16: the student's last hidden states.
        weight: [V, H], of x's dtype: the student's head.
        teacher_x: [..., G], float32, float16 or bfloat16: the teacher's last hidden states.
        teacher_weight: [V, G], of teacher_x's dtype: the teacher's head. No gradient.
        mask: [...], bool: which tokens count; None for all.
        temperature: T, above 0.
        beta: in [0, 1].
        reduction: "mean" over the kept tokens (NaN where there are none) or "sum".
        accumulate: torch.float32 sums the gradient of weight over chunks in float32, which takes
            4 V H bytes more; None sums in weight's dtype, rounding once a chunk.

    Returns:
        The loss, a float32 scalar; differentiable once with respect to x and weight. A second
        backward pass over the same graph is an error: the gradients were scaled in place.

    Raises:
        UnsupportedError: for shapes, dtypes, devices or options that do not fit.
    """
    if accumulate not in (None, torch.float32):
        raise UnsupportedError(
            f"linear_kl: accumulate is {accumulate}: it may be None or torch.float32"
        )
    tokens = x.shape[:-1]
    others = [teacher_x.shape[:-1]] + ([] if mask is None else [mask.shape])
    if not x.dim() or any(other != tokens for other in others):
        raise UnsupportedError(
            f"linear_kl: x is {list(x.shape)}, teacher_x {list(teacher_x.shape)}, mask "
            f"{None if mask is None else list(mask.shape)}: leading axes must be alike"
        )
    wanted = torch.is_grad_enabled()
    loss, *_ = _forward(
        x.reshape(tokens.numel(), x.shape[-1]),
        weight,
        teacher_x.detach().reshape(tokens.numel(), teacher_x.shape[-1]),
        teacher_weight.detach(),
        None if mask is None else mask.reshape(-1),
        temperature,
        beta,
        reduction,
        wanted and x.requires_grad,
        wanted and weight.requires_grad,
        accumulate is not None,
        x.dtype == torch.float16,
        True,
    )
    return loss


def _check(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    mask: Tensor | None,
    temperature: float,
    beta: float,
    reduction: str,
) -> None:
    for name, hidden, head in (("", x, weight), ("teacher_", teacher_x, teacher_weight)):
        if hidden.dtype not in _DTYPES or head.dtype != hidden.dtype:
            raise UnsupportedError(
                f"linear_kl: {name}x is {hidden.dtype}, {name}weight {head.dtype}: they may be "
                "float32, float16 or bfloat16, and must be alike"
            )
        if hidden.dim() != 2 or head.dim() != 2 or head.shape[1] != hidden.shape[1]:
            raise UnsupportedError(
                f"linear_kl: {name}x is {list(hidden.shape)}, {name}weight {list(head.shape)}: "
                "they must be [M, H] and [V, H]"
            )
    if teacher_x.shape[0] != x.shape[0] or teacher_weight.shape[0] != weight.shape[0]:
        raise UnsupportedError(
            f"linear_kl: {x.shape[0]} tokens and {weight.shape[0]} classes, the teacher has "
            f"{teacher_x.shape[0]} and {teacher_weight.shape[0]}: they must be alike"
        )
    if not weight.shape[0]:
        raise UnsupportedError("linear_kl: weight is [0, H]: there must be at least one class")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:1]):
        raise UnsupportedError(
            f"linear_kl: mask is {mask.dtype} {list(mask.shape)}: it must be bool [{x.shape[0]}]"
        )
    if not (temperature > 0 and 0 <= beta <= 1 and reduction in ("mean", "sum")):
        raise UnsupportedError(
            f"linear_kl: temperature {temperature}, beta {beta}, reduction {reduction!r}: they "
            "must be above 0, in [0, 1], and 'mean' or 'sum'"
        )
    teacher = {"teacher_x": teacher_x, "teacher_weight": teacher_weight}
    on_one_device("linear_kl", "x", x, weight=weight, **teacher, mask=mask)


def _run(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    mask: Tensor | None,
    temperature: float,
    beta: float,
    reduction: str,
    *options: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, weight, teacher_x, teacher_weight, mask, temperature, beta, reduction)
    run = choose(OP, x.device.type, x.dtype).forward
    return run(x, weight, teacher_x, teacher_weight, mask, temperature, beta, reduction, *options)


def _fake(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    mask: Tensor | None,
    temperature: float,
    beta: float,
    reduction: str,
    *options: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, weight, teacher_x, teacher_weight, mask, temperature, beta, reduction)
    x_gradient, weight_gradient, *_ = options
    return (
        x.new_empty((), dtype=torch.float32),
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
    x, _, _, _, mask, _, _, reduction, *wanted, _, divide_late, ctx.in_place = inputs
    _, grad_x, grad_weight = output
    ctx.wanted = wanted
    # float16 gradients of a mean underflow: they are kept as those of the sum, and divided only
    # together with the incoming gradient, which carries the loss scale
    ctx.divide = reduction == "mean" and divide_late
    ctx.tokens = x.shape[0]
    masked = ctx.divide and mask is not None
    ctx.save_for_backward(grad_x, grad_weight, *([mask] if masked else []))


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    kept_x, kept_weight, *mask = ctx.saved_tensors
    # they are outputs of the op, so autograd has them require a gradient themselves
    grad_x, grad_weight = kept_x.detach(), kept_weight.detach()
    for name, needed, kept in zip(("x", "weight"), ctx.needs_input_grad, ctx.wanted, strict=False):
        if needed and not kept:
            raise UnsupportedError(
                f"linear_kl was called with {name}_gradient=False, but the gradient of {name} is "
                "wanted: pass True, or call tercet.ops.linear_kl's function"
            )
    if ctx.divide:
        grad = grad / (mask[0].sum().clamp(min=1) if mask else max(1, ctx.tokens))
    if ctx.in_place:
        _gradient_in_place(grad, grad_x, grad_weight)
        # a second backward pass would scale them again: autograd now refuses it
        torch.autograd.graph.increment_version((grad_x, grad_weight))
    else:
        grad_x, grad_weight = _gradient(grad, grad_x, grad_weight)
    x_wanted, weight_wanted = ctx.wanted
    return grad_x if x_wanted else None, grad_weight if weight_wanted else None, *[None] * 11


_forward = define(
    "linear_kl",
    "(Tensor x, Tensor weight, Tensor teacher_x, Tensor teacher_weight, Tensor? mask, "
    "float temperature, float beta, str reduction, bool x_gradient, bool weight_gradient, "
    "bool accumulate_float32, bool divide_late, bool in_place) -> (Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_gradient = define(
    "linear_kl_gradient",
    "(Tensor grad, Tensor grad_x, Tensor grad_weight) -> (Tensor, Tensor)",
    run=_run_gradient,
    fake=_fake_gradient,
)
_gradient_in_place = define(
    "linear_kl_gradient_",
    "(Tensor grad, Tensor(a!) grad_x, Tensor(b!) grad_weight) -> ()",
    run=_run_gradient_in_place,
    fake=_fake_gradient_in_place,
)
differentiate("linear_kl", save=_save, backward=_backward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """Two products, and one more for each gradient; inputs read and results written once."""
    names = ("x", "weight", "teacher_x", "teacher_weight")
    x, weight, teacher_x, teacher_weight = (arguments[name] for name in names)
    x_gradient, weight_gradient = arguments["x_gradient"], arguments["weight_gradient"]
    mask = arguments["mask"]
    logits = x.shape[0] * weight.shape[0]
    widths = x.shape[1] * (1 + x_gradient + weight_gradient) + teacher_x.shape[1]
    read = (x, weight, teacher_x, teacher_weight, *([] if mask is None else [mask]))
    return Cost(
        flops=2 * logits * widths + 10 * logits,
        bytes_read=sum(tensor.numel() * tensor.element_size() for tensor in read),
        bytes_written=4 + _kept_elements(arguments) * x.element_size(),
    )


def gradient_cost(arguments: Mapping[str, Any]) -> Cost:
    """The gradients, kept since the forward pass, times a scalar."""
    elements = _kept_elements(arguments)
    size = elements * arguments["x"].element_size()
    return Cost(flops=elements, bytes_read=size + 4, bytes_written=size)


def _kept_elements(arguments: Mapping[str, Any]) -> int:
    x, weight = arguments["x"], arguments["weight"]
    return x.numel() * arguments["x_gradient"] + weight.numel() * arguments["weight_gradient"]


OP = Op(
    name="linear_kl",
    axes=(
        Axis(name="M", meaning="tokens"),
        Axis(name="H", meaning="the student's hidden size"),
        Axis(name="G", meaning="the teacher's hidden size"),
        Axis(name="V", meaning="classes: the vocabulary"),
    ),
    tensors=(
        TensorSpec(name="x", axes=("M", "H"), dtypes=_DTYPES),
        TensorSpec(name="weight", axes=("V", "H"), dtypes=_DTYPES),
        TensorSpec(name="teacher_x", axes=("M", "G"), dtypes=_DTYPES),
        TensorSpec(name="teacher_weight", axes=("V", "G"), dtypes=_DTYPES),
        TensorSpec(name="mask", axes=("M",), dtypes=(torch.bool,), optional=True),
        TensorSpec(name="loss", axes=(), dtypes=(torch.float32,), role="output"),
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
            reason="float32 products, logarithms and sums",
        ),
        Tolerance(
            dtype=torch.float16,
            relative=2**-10,
            reason="the gradient of the logits and the result are each rounded to 11 bits",
        ),
        Tolerance(
            dtype=torch.bfloat16,
            relative=2**-7,
            reason="the gradient of the logits and the result are each rounded to 8 bits; the "
            "magnitude counts that the gradient of weight is rounded once a chunk",
        ),
    ),
    differentiable=("x", "weight"),
    implementations=(
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.linear_kl.triton",
            language="triton",
            space={
                "CHUNK": (256, 512, 768, 1024),
                "BLOCK": (4096, 8192),
                "num_warps": (16, 32),
            },
            gradient_space={"num_warps": (4, 8)},
            small_space={"CHUNK": (4, 7), "BLOCK": (16, 64)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.linear_kl.torch_path",
            language="torch",
            slow=True,
            capturable=False,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    baselines=(
        Baseline(name="eager", path="tercet.ops.linear_kl.baselines:eager"),
        Baseline(name="four products", path="tercet.ops.linear_kl.baselines:four_products"),
        Baseline(name="liger", path="tercet.ops.linear_kl.baselines:liger", package="liger-kernel"),
    ),
)
