"""linear_packed: y[M, N] = x[M, K] W[N, K]^T + bias[N], W packed and staying packed."""

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
from tercet.kernel.prepared import PreparedWeight, prepare
from tercet.kernel.register import define, differentiate
from tercet.kernel.select import choose
from tercet.ops.linear_packed import torch_path
from tercet.ops.linear_packed.cases import CASES, inputs, shapes
from tercet.ops.linear_packed.reference import magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_SCHEMA = (
    "(Tensor {x}, Tensor codes, Tensor scale, Tensor? zero, {bias}str scheme, "
    "SymInt rows, SymInt columns) -> Tensor"
)


def linear_packed(x: Tensor, weight: PreparedWeight, bias: Tensor | None = None) -> Tensor:
    """x W^T + bias, summed in float32.

    Args:
        x: [..., K], float32, float16 or bfloat16; strides as they come; on the weight's device.
        weight: W [N, K] from `prepare` or `concatenate`.
        bias: [N], float32, float16 or bfloat16, or None.

    Returns:
        [..., N] in x's dtype. Differentiable with respect to x and bias, not to W.

    Raises:
        UnsupportedError: for a wrong last axis, dtype, bias shape or device.
    """
    rows, columns = weight.shape
    return _forward(x, weight.codes, weight.scale, weight.zero, bias, weight.scheme, rows, columns)


def _check(x: Tensor, codes: Tensor, bias: Tensor | None, rows: int, columns: int) -> None:
    if x.dim() == 0 or x.shape[-1] != columns:
        raise UnsupportedError(
            f"linear_packed: x has shape {list(x.shape)}, the weight is [{rows}, {columns}]: "
            f"the last axis of x must be {columns}"
        )
    if x.dtype not in _DTYPES:
        raise UnsupportedError(
            f"linear_packed: x is {x.dtype}: allowed are float32, float16 and bfloat16"
        )
    if x.device != codes.device:
        raise UnsupportedError(
            f"linear_packed: x is on {x.device}, the weight on {codes.device}: move one of them"
        )
    if bias is None:
        return
    if bias.dim() != 1 or bias.shape[0] != rows or bias.dtype not in _DTYPES:
        raise UnsupportedError(
            f"linear_packed: bias is {bias.dtype} {list(bias.shape)}: "
            f"it must be float32, float16 or bfloat16 [{rows}]"
        )
    if bias.device != codes.device:
        raise UnsupportedError(
            f"linear_packed: bias is on {bias.device}, the weight on {codes.device}: "
            "move one of them"
        )


def _run(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
) -> Tensor:
    _check(x, codes, bias, rows, columns)
    run = choose(OP, x.device.type, x.dtype).forward
    return run(x, codes, scale, zero, bias, scheme, rows, columns)


def _fake(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
) -> Tensor:
    _check(x, codes, bias, rows, columns)
    return x.new_empty((*x.shape[:-1], rows))


def _fake_gradient(
    grad: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], columns))


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, codes, scale, zero, bias, *ctx.layout = inputs
    ctx.bias_dtype = bias.dtype if bias is not None else None
    ctx.save_for_backward(codes, scale, zero)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, grad_bias = None, None
    if ctx.needs_input_grad[0]:
        grad_x = _input_gradient(grad, *ctx.saved_tensors, *ctx.layout)
    if ctx.needs_input_grad[4]:
        grad_bias = grad.flatten(0, -2).float().sum(0).to(ctx.bias_dtype)
    return grad_x, None, None, None, grad_bias, None, None, None


_forward = define(
    "linear_packed", _SCHEMA.format(x="x", bias="Tensor? bias, "), run=_run, fake=_fake
)
_input_gradient = define(
    "linear_packed_input_gradient",
    _SCHEMA.format(x="grad", bias=""),
    run=torch_path.gradient,
    fake=_fake_gradient,
)
differentiate("linear_packed", save=_save_for_backward, backward=_backward)


def _prepare(arguments: Mapping[str, Any]) -> dict[str, Any]:
    weight = prepare(arguments["weight"]).to(arguments["x"].device)
    return {
        "x": arguments["x"],
        "codes": weight.codes,
        "scale": weight.scale,
        "zero": weight.zero,
        "bias": arguments["bias"],
        "scheme": weight.scheme,
        "rows": weight.shape[0],
        "columns": weight.shape[1],
    }


def cost(arguments: Mapping[str, Any]) -> Cost:
    """2 M N K operations; x, codes, scales, zero points and bias read once, y written once."""
    x, rows, columns = arguments["x"], arguments["rows"], arguments["columns"]
    m = x.shape[:-1].numel()
    read = [x, *(arguments[name] for name in ("codes", "scale", "zero", "bias"))]
    return Cost(
        flops=2 * m * rows * columns,
        bytes_read=sum(part.numel() * part.element_size() for part in read if part is not None),
        bytes_written=m * rows * x.element_size(),
    )


_PEERS = "tercet.ops.linear_packed.baselines"
_BASELINES = (
    Baseline(
        name="eager", path=f"{_PEERS}:eager", prepare=f"{_PEERS}:prepare_eager", tolerance=0.02
    ),
    # 8-bit floats have 4 bits of fraction: rounding both operands is off by 4 % on the whole
    Baseline(name="fp8", path=f"{_PEERS}:fp8", prepare=f"{_PEERS}:prepare_fp8", tolerance=0.1),
    Baseline(
        name="humming",
        path=f"{_PEERS}:humming",
        package="humming-kernels",
        prepare=f"{_PEERS}:prepare_humming",
        tolerance=0.1,
    ),
    Baseline(
        name="gemlite",
        path=f"{_PEERS}:gemlite",
        package="gemlite",
        prepare=f"{_PEERS}:prepare_gemlite",
        tolerance=0.1,
    ),
    Baseline(name="read only", path=f"{_PEERS}:read_only", prepare=f"{_PEERS}:prepare_read_only"),
)

OP = Op(
    name="linear_packed",
    axes=(
        Axis(name="M", meaning="rows of x: tokens"),
        Axis(name="N", meaning="rows of W: outputs"),
        Axis(name="K", meaning="columns of W: inputs"),
    ),
    tensors=(
        TensorSpec(name="x", axes=("M", "K"), dtypes=_DTYPES),
        TensorSpec(name="bias", axes=("N",), dtypes=_DTYPES, optional=True),
        TensorSpec(name="y", axes=("M", "N"), dtypes=_DTYPES, role="output"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    prepare=_prepare,
    cost=cost,
    cases=CASES,
    tolerances=(
        Tolerance(
            dtype=torch.float32,
            relative=2e-6,
            reason="float32 sums of at most 1024 products in at least two chains",
        ),
        Tolerance(
            dtype=torch.float16, relative=2**-11 + 2e-6, reason="one rounding to 11 bits at the end"
        ),
        Tolerance(
            dtype=torch.bfloat16, relative=2**-8 + 2e-6, reason="one rounding to 8 bits at the end"
        ),
    ),
    differentiable=("x", "bias"),
    implementations=(
        Implementation(
            name="cpu",
            requirement=Requirement(devices=("cpu",), dtypes=_DTYPES, compiler=True),
            module="tercet.ops.linear_packed.cpu",
            language="cpp",
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.linear_packed.torch_path",
            language="torch",
            slow=True,
            capturable=False,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="M",
    baselines=_BASELINES,
)
