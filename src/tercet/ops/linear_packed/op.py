"""linear_packed: y = x W^T + bias + residual, W packed and staying packed."""

from typing import Any

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
from tercet.kernel.direct_call import direct_call
from tercet.kernel.register import define, differentiate
from tercet.kernel.select import choose, choose_gradient
from tercet.ops.linear_packed.arguments import (
    FLOAT_ELEMENTS,
    cost,
    describe,
    prepared,
    traits,
)
from tercet.ops.linear_packed.cases import CASES, inputs, shapes
from tercet.ops.linear_packed.hopper_decode.plan import GROUPS, MOST_COLUMNS, MOST_TOKENS
from tercet.ops.linear_packed.hopper_prefill import fp8_sums, launch_scaled
from tercet.ops.linear_packed.reference import gradient_magnitude, magnitude, reference
from tercet.packed_weight.call import (
    FLOATS,
    INPUTS,
    SCHEMA,
    TOLERANCES,
    PackedCall,
    resolve_output,
)
from tercet.packed_weight.weight import PART_NAMES, PreparedWeight
from tercet.packed_weight.weight import SCHEMA as WEIGHT_SCHEMA

_FRAGMENTS = "tercet.packed_weight.call:as_fragments"
_BIAS = 1 + len(PART_NAMES)  # its place among the arguments, after x and the weight


def linear_packed(
    x: Tensor,
    weight: PreparedWeight,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_sum: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x W^T + bias + residual, summed in float32 (codes with integer elements: exactly).

    Where fp8 x meets ternary or fp8_e4m3 weights on Hopper, 17 tokens and more, to bfloat16, sums
    of 64 columns are those of fp8 tensor cores, each off by less than 0.8 % of what is summed
    (derived in fp8_sums); with TERCET_FP8_SUMS=float32 they are float32 there too, and slower.

    Args:
        x: [..., K], float32, float16 or bfloat16, or codes, int8 or float8_e4m3fn, as
            `quantize_activation`, `rms_norm_quantized` and `swiglu_quantized` make them; strides as
            they come; on the weight's device.
        weight: W [N, K] from `prepare` or `concatenate`.
        bias: [N], float32, float16 or bfloat16, or None.
        residual: [..., N] in the output's dtype, or None: added before the one rounding.
        x_scale: [...], float32, of codes: x = code * x_scale.
        x_sum: [...], int32 or float32, the sum of a row's codes; saves a kernel the summing where
            the weight has zero points.
        activation: "none"; or "int8" or "fp8_e4m3": a float x is first quantized per token as
            `quantize_activation` does, to the bit. Codes have their own.
        out_dtype: of the result; None is x's dtype, bfloat16 for codes.

    Returns:
        [..., N] in out_dtype. Differentiable with respect to a float x (straight through its
        quantization), bias and residual, not to W.

    Raises:
        UnsupportedError: for a wrong shape, dtype, activation or device.
    """
    return _call(
        x, *weight.parts, bias, residual, x_scale, x_sum, *resolve_output(x, activation, out_dtype)
    )


def _run(*arguments: Any) -> Tensor:
    call = PackedCall.from_arguments(*arguments)
    x = call.x
    return choose(OP, x.device.type, x.dtype, call.sizes, call.options).forward(call)


def _fake(*arguments: Any) -> Tensor:
    call = PackedCall.from_arguments(*arguments)
    shape = (*call.x.shape[:-1], call.weight.shape[0])
    return call.x.new_empty(shape, dtype=call.out_dtype)


def _run_gradient(grad: Tensor, *arguments: Any) -> Tensor:
    *parts, dtype = arguments
    weight = PreparedWeight.from_parts(*parts)
    rows, columns = weight.shape
    sizes = {"M": grad.shape[:-1].numel(), "N": rows, "K": columns}
    return choose_gradient(OP, grad.device.type, grad.dtype, sizes)(grad, weight, dtype)


def _fake_gradient(grad: Tensor, *arguments: Any) -> Tensor:
    *parts, dtype = arguments
    columns = PreparedWeight.from_parts(*parts).shape[1]
    return grad.new_empty((*grad.shape[:-1], columns), dtype=dtype)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, codes, scale, zero, *ctx.described, bias, _, _, _, _, _ = inputs
    ctx.x_dtype = x.dtype
    ctx.bias_dtype = bias.dtype if bias is not None else None
    ctx.save_for_backward(codes, scale, zero)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, grad_bias, grad_residual = None, None, None
    if ctx.needs_input_grad[0]:
        grad_x = _input_gradient(grad, *ctx.saved_tensors, *ctx.described, ctx.x_dtype)
    if ctx.needs_input_grad[_BIAS]:
        rows = grad.flatten(0, -2) if grad.dim() > 1 else grad[None]
        grad_bias = rows.float().sum(0).to(ctx.bias_dtype)
    if ctx.needs_input_grad[_BIAS + 1]:
        grad_residual = grad
    return grad_x, *(None,) * (_BIAS - 1), grad_bias, grad_residual, *(None,) * 4


_forward = define("linear_packed", SCHEMA, run=_run, fake=_fake)
_input_gradient = define(
    "linear_packed_input_gradient",
    f"(Tensor grad, {WEIGHT_SCHEMA}, ScalarType dtype) -> Tensor",
    run=_run_gradient,
    fake=_fake_gradient,
)
_call = direct_call(_forward)
differentiate("linear_packed", save=_save_for_backward, backward=_backward)


_PEERS = "tercet.ops.linear_packed.baselines"
_BASELINES = (
    Baseline(
        name="eager", path=f"{_PEERS}:eager", prepare=f"{_PEERS}:prepare_eager", tolerance=0.02
    ),
    Baseline(name="uncompressed", path=f"{_PEERS}:eager", prepare=f"{_PEERS}:prepare_uncompressed"),
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

_SMALL = ("ternary", "nonary", "int3", "int4")


def _wgmma(
    name: str,
    former_names: tuple[str, ...],
    dtypes: tuple[torch.dtype, ...],
    activations: tuple[str, ...],
    elements: tuple[str, ...],
    *,
    module: str,
    tolerances: tuple[Tolerance, ...] = (),
    **more: tuple[str | int, ...],
) -> Implementation:
    """One of those for many tokens on Hopper, which differ in what x is multiplied as."""
    return Implementation(
        name=name,
        former_names=former_names,
        requirement=Requirement(
            devices=("cuda",),
            dtypes=dtypes,
            nvcc=True,
            architecture=(9, 0),
            # sums of int8 by bytes of up to 128 * 128 are held in int32
            ranges={"M": (17, 2**24), "N": (1, 2**24), "K": (1, 2**17 - 1)},
            options={
                "layout": ("fragments",),
                "activation": activations,
                "element": elements,
                "group": (0, 64, 128),
                "zero": (False,),
                **more,
            },
        ),
        module=f"tercet.ops.linear_packed.hopper_prefill.{module}",
        language="cuda",
        arrange=_FRAGMENTS,
        tolerances=tolerances,
    )


OP = Op(
    name="linear_packed",
    axes=(
        Axis(name="M", meaning="rows of x: tokens"),
        Axis(name="N", meaning="rows of W: outputs"),
        Axis(name="K", meaning="columns of W: inputs"),
    ),
    tensors=(
        TensorSpec(name="x", axes=("M", "K"), dtypes=INPUTS),
        TensorSpec(name="bias", axes=("N",), dtypes=FLOATS, optional=True),
        TensorSpec(name="residual", axes=("M", "N"), dtypes=FLOATS, optional=True),
        TensorSpec(name="x_scale", axes=("M",), dtypes=(torch.float32,), optional=True),
        TensorSpec(name="x_sum", axes=("M",), dtypes=(torch.int32, torch.float32), optional=True),
        TensorSpec(name="y", axes=("M", "N"), dtypes=FLOATS, role="output"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    gradient_magnitude=gradient_magnitude,
    prepare=prepared,
    defaults={"activation": "none"},
    traits=traits,
    describe=describe,
    cost=cost,
    cases=CASES,
    tolerances=TOLERANCES,
    differentiable=("x", "bias", "residual"),
    implementations=(
        Implementation(
            name="hopper_decode",
            former_names=("cuda_decode",),
            requirement=Requirement(
                devices=("cuda",),
                dtypes=(torch.int8, torch.float8_e4m3fn, torch.bfloat16, torch.float16),
                nvcc=True,
                capability=(9, 0),
                ranges={"M": (0, MOST_TOKENS), "K": (0, MOST_COLUMNS)},
                options={
                    "layout": ("fragments",),
                    "element": (*_SMALL, "int8", *FLOAT_ELEMENTS),
                    "group": (0, *GROUPS),
                },
            ),
            module="tercet.ops.linear_packed.hopper_decode.launch",
            language="cuda",
            arrange=_FRAGMENTS,
        ),
        _wgmma(
            "hopper_prefill",
            ("cuda_wgmma",),
            (*FLOATS, torch.int8),
            ("int8",),
            (*_SMALL, "int2", "int8"),
            module="launch",
        ),
        # The tensor cores keep 14 bits of such sums: less than results of other dtypes ask for.
        _wgmma(
            "hopper_prefill_fp8",
            ("cuda_wgmma_fp8",),
            (*FLOATS, torch.float8_e4m3fn),
            ("fp8_e4m3",),
            ("ternary", "fp8_e4m3"),
            module="launch_fp8",
            tolerances=(fp8_sums.TOLERANCE,),
            out=("bfloat16",),
            TERCET_FP8_SUMS=("short",),
        ),
        # twice as fast as the one below for few tokens, a fifth for many
        _wgmma(
            "hopper_prefill_scaled",
            (),
            (torch.bfloat16, torch.float16, torch.float8_e4m3fn),
            ("none", "fp8_e4m3"),
            ("nonary", "int3", "int4"),
            module="launch_scaled",
            tolerances=(launch_scaled.TOLERANCE,),
            out=("bfloat16",),
            group=(64, 128),
        ),
        _wgmma(
            "hopper_prefill_float",
            ("cuda_wgmma_float",),
            (torch.bfloat16, torch.float16, torch.float8_e4m3fn),
            ("none", "fp8_e4m3"),
            (*_SMALL, *FLOAT_ELEMENTS),
            module="launch_float",
        ),
        # float32 has no tensor cores that keep its 24 bits: decoding W for torch's product takes a
        # quarter to half of the time of the kernel below, from one token on
        Implementation(
            name="decoded",
            requirement=Requirement(
                devices=("cuda",),
                dtypes=(torch.float32,),
                ranges={"M": (1, 2**24)},
                options={"activation": ("none",), "layout": ("fragments",)},
            ),
            module="tercet.ops.linear_packed.decoded",
            language="triton",
            arrange=_FRAGMENTS,
            space={"BT": (4, 8, 16, 32), "BK": (64, 128, 256, 512), "num_warps": (2, 4, 8)},
        ),
        Implementation(
            name="triton",
            requirement=Requirement(
                devices=("cuda",), dtypes=INPUTS, options={"layout": ("fragments",)}
            ),
            module="tercet.ops.linear_packed.triton",
            language="triton",
            arrange=_FRAGMENTS,
            space={
                "BM": (16, 32, 64, 128),
                "BN": (16, 32, 64, 128),
                "BK": (32, 64, 128),
                "num_warps": (2, 4, 8),
            },
        ),
        Implementation(
            name="cpu",
            requirement=Requirement(
                devices=("cpu",),
                dtypes=INPUTS,
                compiler=True,
                options={"layout": ("rows16",)},
            ),
            module="tercet.ops.linear_packed.cpu",
            language="cpp",
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=INPUTS),
            module="tercet.ops.linear_packed.torch_path",
            language="torch",
            slow=True,
            capturable=False,
        ),
    ),
    inputs=inputs,
    derived={"x_sum": ("x",)},
    shapes=shapes,
    independent="M",
    baselines=_BASELINES,
)
