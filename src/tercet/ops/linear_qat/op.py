"""linear_qat: y = x W^T in training, its products on 8-bit codes."""

from typing import Any, cast

import torch
from torch import Tensor

from tercet.kernel.contract import (
    Axis,
    Baseline,
    Implementation,
    Op,
    Requirement,
    TensorSpec,
    Tolerance,
)
from tercet.kernel.register import define, differentiate
from tercet.kernel.select import choose, choose_gradient
from tercet.ops.linear_qat.arguments import FLOATS, QatCall, QatGradientCall, check_codes
from tercet.ops.linear_qat.cases import CASES, inputs, shapes
from tercet.ops.linear_qat.costs import cost, gradient_cost
from tercet.ops.linear_qat.operands import decoded
from tercet.ops.linear_qat.reference import gradient_magnitude, magnitude, reference

_SEVERAL = "Tensor codes, Tensor scale, Tensor? codes_t, "


def linear_qat(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    weight: Tensor | None = None,
    *,
    codes_t: Tensor | None = None,
    bias: Tensor | None = None,
    x_codes: Tensor | None = None,
    x_scale: Tensor | None = None,
    weight_gradient: str = "float",
    seed: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x^ W^^T + bias, where x^ is x quantized per token and W^ = codes * scale.

    y = (sum of x codes * codes) * scale * x_scale + bias: an exact sum of integers, then float32,
    rounded once; the bits that `linear_packed` gives with int8 activations for the same codes.

    Gradients go straight through both quantizations:
    grad_x = grad W^, from grad * scale quantized per token to int8, a product of codes;
    grad_weight = grad^T x^, in out_dtype with sums in float32 ("float"), or ("int8") from
    grad * x_scale quantized per column to int8, at random with a seed.

    Args:
        x: [..., K], float32, float16 or bfloat16; strides as they come. Where x_codes are given its
            values are not read: it only carries the gradient.
        codes: [N, K] int8, from `fake_quantize`, once for all microbatches of an optimizer step.
        scale: [N, 1] or [1, 1] float32, as `fake_quantize` returns it per channel or tensor.
        weight: [N, K], float32, float16 or bfloat16: what gets grad_weight; its values are not
            read. The weight that the codes are of, where nothing is masked; for learned steps the
            `fake` of `fake_quantize`, or a leaf whose gradient goes to `fake_quantize_gradient`.
            None: no gradient.
        codes_t: [K, N], `transposed(codes)`, which the input gradient reads; None: it is made anew
            in each backward pass.
        bias: [N], float32, float16 or bfloat16, or None.
        x_codes, x_scale: [..., K] int8 and [...] float32 of x, as `quantize_activation`,
            `rms_norm_quantized` and `swiglu_quantized` make them; None: they are made here.
        weight_gradient: "float" or "int8".
        seed: one int64 on x's device, for "int8" rounded at random; None: to nearest.
        out_dtype: of y, and of the float product; None is x's dtype.

    Returns:
        y [..., N] in out_dtype.

    Raises:
        UnsupportedError: for shapes, dtypes or devices that do not fit.
    """
    y, _, _ = _forward(
        x, weight, codes, scale, codes_t, bias, x_codes, x_scale, seed, weight_gradient,
        out_dtype or x.dtype,
    )  # fmt: skip
    return y


def transposed(codes: Tensor) -> Tensor:
    """codes [N, K] int8 as [K, N], contiguous."""
    return cast(Tensor, _transposed(codes))


def _run(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call = QatCall.from_arguments(*arguments)
    return choose(OP, call.x.device.type, call.x.dtype).forward(call)


def _run_traced(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call = QatCall.from_valid_arguments(*arguments)
    return choose(OP, call.x.device.type, call.x.dtype).forward(call)


def _fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call = QatCall.from_arguments(*arguments)
    x, given = call.x, call.x_codes is not None
    m, k = x.shape[:-1].numel(), x.shape[-1]
    return (
        x.new_empty((*x.shape[:-1], call.codes.shape[0]), dtype=call.out_dtype),
        x.new_empty((0,) if given else (m, k), dtype=torch.int8),
        x.new_empty(0 if given else m, dtype=torch.float32),
    )


def _run_gradient(*arguments: Any) -> tuple[Tensor, Tensor]:
    call = QatGradientCall.from_arguments(*arguments)
    return choose_gradient(OP, call.grad.device.type, call.grad.dtype)(call)


def _fake_gradient(*arguments: Any) -> tuple[Tensor, Tensor]:
    call = QatGradientCall.from_arguments(*arguments)
    grad, x_dtype, weight_dtype = call.grad, call.x_dtype, call.weight_dtype
    m, (n, k) = grad.shape[0], call.codes.shape
    return (
        grad.new_empty((m, k) if x_dtype is not None else (0,), dtype=x_dtype or grad.dtype),
        grad.new_empty(
            (n, k) if weight_dtype is not None else (0,), dtype=weight_dtype or grad.dtype
        ),
    )


def _run_transposed(codes: Tensor) -> Tensor:
    check_codes(codes)
    if codes.device.type != "cuda":
        # of one row, or one column, a view would be contiguous
        return codes.t().clone(memory_format=torch.contiguous_format)
    from tercet.ops.linear_qat.codes_matrix import transpose
    from tercet.ops.linear_qat.hopper import launch as cuda

    # what turns the weight's codes in the gradient
    mine = choose_gradient(OP, "cuda", torch.float32) is cuda.gradient
    return cuda.transpose_codes(codes) if mine else transpose(codes)


def _fake_transposed(codes: Tensor) -> Tensor:
    check_codes(codes)
    return codes.new_empty((codes.shape[1], codes.shape[0]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, codes, scale, codes_t, bias, x_codes, x_scale, seed, ctx.kind, _ = inputs
    _, kept_codes, kept_scale = output
    if x_codes is None:
        x_codes, x_scale = kept_codes, kept_scale
    ctx.shape, ctx.x_dtype = x.shape, x.dtype
    ctx.weight_dtype = weight.dtype if weight is not None else None
    ctx.bias_dtype = bias.dtype if bias is not None else None
    ctx.save_for_backward(codes, scale, codes_t, x_codes, x_scale, seed)


def _backward(
    ctx: Any, grad: Tensor, _codes: Tensor | None, _scale: Tensor | None
) -> tuple[Tensor | None, ...]:
    codes, scale, codes_t, x_codes, x_scale, seed = ctx.saved_tensors
    m, k = ctx.shape[:-1].numel(), ctx.shape[-1]
    flat = grad.reshape(m, codes.shape[0])
    want_x, want_weight, *_ = ctx.needs_input_grad
    grad_x, grad_weight, grad_bias = None, None, None
    if want_x or want_weight:
        x_codes, x_scale = x_codes.reshape(m, k), x_scale.reshape(m)
        # on its own: torch.compile then does it once for all layers that share an input
        seen = None
        if want_weight:
            by_codes = ctx.kind == "int8"
            seen = transposed(x_codes) if by_codes else decoded(x_codes, x_scale, grad.dtype)
        grad_x, grad_weight = _gradient(
            flat, codes, scale, codes_t, x_codes, x_scale, seen, seed, ctx.kind,
            ctx.x_dtype if want_x else None, ctx.weight_dtype if want_weight else None,
        )  # fmt: skip
        grad_x = grad_x.reshape(ctx.shape) if want_x else None
        grad_weight = grad_weight if want_weight else None
    if ctx.needs_input_grad[5]:
        grad_bias = flat.float().sum(0).to(ctx.bias_dtype)
    return grad_x, grad_weight, None, None, None, grad_bias, *(None,) * 5


_SCHEMA = (
    f"(Tensor x, Tensor? weight, {_SEVERAL}Tensor? bias, Tensor? x_codes, Tensor? x_scale, "
    "Tensor? seed, str weight_gradient, ScalarType out_dtype) -> (Tensor, Tensor, Tensor)"
)
_forward = define("linear_qat", _SCHEMA, run=_run, fake=_fake)
# what a compiled graph calls once it was differentiated and its shapes are checked: half of the
# host's time for a call
TRACED = define("linear_qat_traced", _SCHEMA, run=_run_traced, fake=_fake)
_gradient = define(
    "linear_qat_gradient",
    f"(Tensor grad, {_SEVERAL}Tensor x_codes, Tensor x_scale, Tensor? seen, Tensor? seed, "
    "str weight_gradient, ScalarType? x_dtype, ScalarType? weight_dtype) -> (Tensor, Tensor)",
    run=_run_gradient,
    fake=_fake_gradient,
)
_transposed = define(
    "linear_qat_transposed", "(Tensor codes) -> Tensor", run=_run_transposed, fake=_fake_transposed
)
differentiate("linear_qat", save=_save, backward=_backward)


_EXACT = "an exact sum, three products in float32; a float sum of M terms in the gradient"

_SPACE = {
    "BM": (64, 128),
    "BN": (128, 256),
    "BK": (64, 128),
    "STAGES": (3, 4),
    "num_warps": (4, 8),
}
_CUDA_SPACE = {"CLUSTER": (0, 1, 2, 3, 4, 5), "SWIZZLE": (4, 8, 16)}
_GLUON_SPACE = {"BN": (128, 256), "BK": (64, 128), "STAGES": (3, 4, 6)}

OP = Op(
    name="linear_qat",
    axes=(
        Axis(name="M", meaning="rows of x: tokens"),
        Axis(name="N", meaning="rows of W: outputs"),
        Axis(name="K", meaning="columns of W: inputs"),
        Axis(name="C", meaning="one scale a row of W, or one for all"),
    ),
    tensors=(
        TensorSpec(name="x", axes=("M", "K"), dtypes=FLOATS),
        TensorSpec(name="weight", axes=("N", "K"), dtypes=FLOATS, optional=True),
        TensorSpec(name="codes", axes=("N", "K"), dtypes=(torch.int8,)),
        TensorSpec(name="scale", axes=("N", "C"), dtypes=(torch.float32,)),
        TensorSpec(name="codes_t", axes=("K", "N"), dtypes=(torch.int8,), optional=True),
        TensorSpec(name="bias", axes=("N",), dtypes=FLOATS, optional=True),
        TensorSpec(name="x_codes", axes=("M", "K"), dtypes=(torch.int8,), optional=True),
        TensorSpec(name="x_scale", axes=("M",), dtypes=(torch.float32,), optional=True),
        TensorSpec(name="seed", axes=(), dtypes=(torch.int64,), optional=True),
        TensorSpec(name="y", axes=("M", "N"), dtypes=FLOATS, role="output"),
        TensorSpec(name="kept_codes", axes=("M", "K"), dtypes=(torch.int8,), role="saved"),
        TensorSpec(name="kept_scale", axes=("M",), dtypes=(torch.float32,), role="saved"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    gradient_magnitude=gradient_magnitude,
    cost=cost,
    gradient_cost=gradient_cost,
    cases=CASES,
    tolerances=(
        Tolerance(dtype=torch.float32, relative=4e-7, reason=_EXACT, gradient=4e-6),
        Tolerance(
            dtype=torch.float16,
            relative=2**-11 + 4e-7,
            gradient=2**-11 + 4e-6,
            reason="one rounding to 11 bits",
        ),
        Tolerance(
            dtype=torch.bfloat16,
            relative=2**-8 + 4e-7,
            gradient=2**-8 + 4e-6,
            reason="one rounding to 8 bits",
        ),
    ),
    differentiable=("x", "weight", "bias"),
    implementations=(
        Implementation(
            name="hopper",
            former_names=("cuda",),
            requirement=Requirement(
                devices=("cuda",), dtypes=FLOATS, nvcc=True, architecture=(9, 0)
            ),
            module="tercet.ops.linear_qat.hopper.launch",
            language="cuda",
            space=_CUDA_SPACE,
            gradient_space=_CUDA_SPACE,
        ),
        Implementation(
            name="gluon",
            requirement=Requirement(devices=("cuda",), dtypes=FLOATS, architecture=(9, 0)),
            module="tercet.ops.linear_qat.gluon",
            language="gluon",
            space=_GLUON_SPACE,
            gradient_space=_GLUON_SPACE,
        ),
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=FLOATS),
            module="tercet.ops.linear_qat.triton",
            language="triton",
            space=_SPACE,
            gradient_space=_SPACE,
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=FLOATS),
            module="tercet.ops.linear_qat.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    unread={"x": "x_codes", "weight": None},
    derived={"codes_t": ("codes",), "x_codes": ("x",), "x_scale": ("x",)},
    shapes=shapes,
    independent="M",
    baselines=(
        Baseline(name="eager", path="tercet.ops.linear_qat.baselines:eager"),
        Baseline(name="unquantized", path="tercet.ops.linear_qat.baselines:unquantized"),
    ),
)
