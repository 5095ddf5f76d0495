"""grouped_linear_packed: y[t] = row_weight[t] (x[t] W_e^T + bias_e), e the expert of row t."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.contract import (
    Axis,
    Baseline,
    Cost,
    Implementation,
    Op,
    Requirement,
    TensorSpec,
)
from tercet.kernel.direct_call import direct_call
from tercet.kernel.register import define, differentiate
from tercet.kernel.select import choose, choose_gradient
from tercet.ops.grouped_linear_packed.arguments import GroupedCall, describe, name_axes, prepared
from tercet.ops.grouped_linear_packed.cases import CASES, inputs, shapes
from tercet.ops.grouped_linear_packed.reference import gradient_magnitude, magnitude, reference
from tercet.ops.grouped_linear_packed.routing import sums_by_expert
from tercet.packed_weight.call import FLOATS, INPUTS, TOLERANCES, resolve_output, traits
from tercet.packed_weight.expert_weights import ExpertWeights
from tercet.packed_weight.weight import PART_NAMES, SCHEMA

_BIAS = 2 + len(PART_NAMES)  # its place among the arguments, after x, offsets and the weight


def grouped_linear_packed(
    x: Tensor,
    offsets: Tensor,
    weight: ExpertWeights,
    bias: Tensor | None = None,
    *,
    row_weight: Tensor | None = None,
    x_scale: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Each row of x with its expert's weight, rows sorted by expert; summed in float32.

    Args:
        x: [T, K], float32, float16 or bfloat16, or codes, int8 or float8_e4m3fn, with their
            x_scale; strides as they come; on the weight's device.
        offsets: int32 [E + 1], rising from 0 to T: expert e has the rows offsets[e] up to, not
            with, offsets[e + 1]; it may have none. `sort_by_expert` makes them. On a GPU they are
            not read by the host, so not checked: rows that none of them covers are undefined.
        weight: W [E, N, K] from `stack`.
        bias: [E, N], float32, float16 or bfloat16, or None.
        row_weight: float32 [T], the router's probability of each row, or None: multiplied in
            before the one rounding.
        x_scale: float32 [T], of codes: x = code * x_scale.
        activation: "none"; or "int8" or "fp8_e4m3": a float x is first quantized per token as
            `quantize_activation` does, to the bit. Codes have their own.
        out_dtype: of the result; None is x's dtype, bfloat16 for codes.

    Returns:
        [T, N] in out_dtype. Differentiable with respect to a float x (straight through its
        quantization), bias and row_weight, not to W.

    Raises:
        UnsupportedError: for a wrong shape, dtype, activation or device.
    """
    return _call(
        x, offsets, *weight.parts, bias, row_weight, x_scale,
        *resolve_output(x, activation, out_dtype),
    )  # fmt: skip


def _run(*arguments: Any) -> Tensor:
    call = GroupedCall.from_arguments(*arguments)
    x = call.x
    return choose(OP, x.device.type, x.dtype, call.sizes, call.options).forward(call)


def _fake(*arguments: Any) -> Tensor:
    call = GroupedCall.from_arguments(*arguments)
    return call.x.new_empty((call.x.shape[0], call.weight.shape[1]), dtype=call.out_dtype)


def _run_gradient(grad: Tensor, offsets: Tensor, *arguments: Any) -> Tensor:
    *parts, row_weight, dtype = arguments
    weight = ExpertWeights.from_parts(offsets.numel() - 1, *parts)
    run = choose_gradient(OP, grad.device.type, grad.dtype, name_axes(grad, weight))
    return run(grad, offsets, weight, row_weight, dtype)


def _fake_gradient(grad: Tensor, offsets: Tensor, *arguments: Any) -> Tensor:
    *parts, _, dtype = arguments
    columns = ExpertWeights.from_parts(offsets.numel() - 1, *parts).shape[2]
    return grad.new_empty((grad.shape[0], columns), dtype=dtype)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, offsets, codes, scale, zero, *ctx.described, bias, row_weight, x_scale, _, _ = inputs
    ctx.activation = inputs[-2]
    ctx.save_for_backward(x, offsets, codes, scale, zero, bias, row_weight, x_scale)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, offsets, codes, scale, zero, bias, row_weight, x_scale = ctx.saved_tensors
    packed = (offsets, codes, scale, zero, *ctx.described)
    grad_x, grad_bias, grad_row_weight = None, None, None
    if ctx.needs_input_grad[0]:
        grad_x = _input_gradient(grad, *packed, row_weight, x.dtype)
    if ctx.needs_input_grad[_BIAS]:
        way = grad.float() if row_weight is None else grad.float() * row_weight[:, None]
        grad_bias = sums_by_expert(way, offsets).to(bias.dtype)
    if ctx.needs_input_grad[_BIAS + 1]:
        # the product once more, before its row weight: keeping it would double what is saved
        product = _forward(x, *packed, bias, None, x_scale, ctx.activation, torch.float32)
        grad_row_weight = (grad.float() * product).sum(-1)
    return grad_x, *(None,) * (_BIAS - 1), grad_bias, grad_row_weight, *(None,) * 3


_forward = define(
    "grouped_linear_packed",
    f"(Tensor x, Tensor offsets, {SCHEMA}, Tensor? bias, Tensor? row_weight, Tensor? x_scale, "
    "str activation, ScalarType out_dtype) -> Tensor",
    run=_run,
    fake=_fake,
)
_call = direct_call(_forward)
_input_gradient = define(
    "grouped_linear_packed_input_gradient",
    f"(Tensor grad, Tensor offsets, {SCHEMA}, Tensor? row_weight, ScalarType dtype) -> Tensor",
    run=_run_gradient,
    fake=_fake_gradient,
)
differentiate("grouped_linear_packed", save=_save_for_backward, backward=_backward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """2 T N K operations; the weights of experts that have rows read once, as all else; y written.

    Offsets without values (meta tensors) are taken for one row an expert while rows last.
    """
    x, offsets, rows = arguments["x"], arguments["offsets"], arguments["rows"]
    weights = ("codes", "scale", "zero", "bias")
    sizes = {
        name: value.numel() * value.element_size()
        for name, value in arguments.items()
        if isinstance(value, Tensor)
    }
    stacked = sum(size for name, size in sizes.items() if name in weights)
    others = sum(size for name, size in sizes.items() if name not in weights)
    experts = offsets.numel() - 1
    return Cost(
        flops=2 * x.shape[0] * rows * arguments["columns"],
        bytes_read=others + stacked * _used(offsets, x.shape[0]) // experts,
        bytes_written=x.shape[0] * rows * arguments["out_dtype"].itemsize,
    )


def _used(offsets: Tensor, count: int) -> int:
    """Experts that have rows."""
    if offsets.device.type == "meta":
        return min(count, offsets.numel() - 1)
    return int((offsets.diff() > 0).sum())


_PEERS = "tercet.ops.grouped_linear_packed.baselines"
_BASELINES = (
    Baseline(
        name="eager", path=f"{_PEERS}:eager", prepare=f"{_PEERS}:prepare_eager", tolerance=0.02
    ),
    Baseline(
        name="loop over experts",
        path=f"{_PEERS}:loop",
        prepare=f"{_PEERS}:prepare_loop",
        tolerance=0.02,
    ),
    Baseline(
        name="humming",
        path=f"{_PEERS}:humming",
        package="humming-kernels",
        prepare=f"{_PEERS}:prepare_humming",
        tolerance=0.1,
    ),
    Baseline(name="read only", path=f"{_PEERS}:read_only", prepare=f"{_PEERS}:prepare_read_only"),
)

_FRAGMENTS = "tercet.ops.grouped_linear_packed.arguments:as_fragments"
_SMALL = ("ternary", "nonary", "int3", "int4")


def _hopper(
    name: str,
    former_name: str,
    dtypes: tuple[torch.dtype, ...],
    activation: str,
    elements: tuple[str, ...],
    *,
    module: str,
) -> Implementation:
    """One of the two for Hopper, which differ in what x is multiplied as."""
    return Implementation(
        name=name,
        former_names=(former_name,),
        requirement=Requirement(
            devices=("cuda",),
            dtypes=dtypes,
            nvcc=True,
            capability=(9, 0),
            # sums of int8 by bytes of up to 128 * 128 are held in int32
            ranges={"K": (1, 2**17 - 1)},
            options={
                "layout": ("fragments",),
                "activation": (activation,),
                "element": elements,
                "group": (0,),
                "zero": (False,),
            },
        ),
        module=f"tercet.ops.grouped_linear_packed.hopper_decode.{module}",
        language="cuda",
        arrange=_FRAGMENTS,
    )


OP = Op(
    name="grouped_linear_packed",
    axes=(
        Axis(name="T", meaning="rows of x: tokens times experts per token"),
        Axis(name="E", meaning="experts", most=64),
        Axis(name="N", meaning="rows of each expert's W: outputs"),
        Axis(name="K", meaning="columns of each expert's W: inputs"),
    ),
    tensors=(
        TensorSpec(name="x", axes=("T", "K"), dtypes=INPUTS),
        TensorSpec(name="bias", axes=("E", "N"), dtypes=FLOATS, optional=True),
        TensorSpec(name="row_weight", axes=("T",), dtypes=(torch.float32,), optional=True),
        TensorSpec(name="x_scale", axes=("T",), dtypes=(torch.float32,), optional=True),
        TensorSpec(name="y", axes=("T", "N"), dtypes=FLOATS, role="output"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    gradient_magnitude=gradient_magnitude,
    prepare=prepared,
    defaults={"activation": "none", "coded": False},
    traits=traits,
    describe=describe,
    cost=cost,
    cases=CASES,
    tolerances=TOLERANCES,
    differentiable=("x", "bias", "row_weight"),
    implementations=(
        _hopper(
            "hopper", "cuda", (*FLOATS, torch.int8), "int8", (*_SMALL, "int2"), module="launch"
        ),
        _hopper(
            "hopper_float", "cuda_float", (torch.bfloat16,), "none", _SMALL, module="launch_float"
        ),
        Implementation(
            name="triton",
            requirement=Requirement(
                devices=("cuda",), dtypes=INPUTS, options={"layout": ("fragments",)}
            ),
            module="tercet.ops.grouped_linear_packed.triton",
            language="triton",
            arrange=_FRAGMENTS,
            space={
                "BM": (16, 32, 64, 128),
                "BN": (16, 32, 64, 128),
                "BK": (32, 64, 128),
                "num_warps": (2, 4, 8),
            },
            gradient_space={"BM": (16, 32, 64), "BN": (32, 64), "num_warps": (4, 8)},
        ),
        Implementation(
            name="cpu",
            requirement=Requirement(
                devices=("cpu",),
                dtypes=INPUTS,
                compiler=True,
                options={"layout": ("rows16",)},
            ),
            module="tercet.ops.grouped_linear_packed.cpu",
            language="cpp",
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=INPUTS),
            module="tercet.ops.grouped_linear_packed.torch_path",
            language="torch",
            slow=True,
            capturable=False,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    baselines=_BASELINES,
)
