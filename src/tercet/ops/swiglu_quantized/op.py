"""swiglu_quantized: silu(gate) * up quantized per row, in one kernel."""

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
from tercet.kernel.direct_call import direct_call
from tercet.kernel.one_device import on_one_device
from tercet.kernel.register import define
from tercet.kernel.select import choose
from tercet.ops.swiglu_quantized.cases import CASES, inputs, shapes
from tercet.ops.swiglu_quantized.reference import RELATIVE, magnitude, reference
from tercet.packed_weight.row_codes import Quantized, empty, row_codes

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_TIE = "one code, and only where y is within float32's error of the boundary between two"


def swiglu_quantized(gate: Tensor, up: Tensor | None = None, element: str = "int8") -> Quantized:
    """The gated activation of Llama's MLP (arXiv:2002.05202), quantized row by row.

    y = gate * sigmoid(gate) * up; codes, scale and row_sum are quantize_activation's of y, which
    stays in float32 and is never rounded to gate's dtype.

    Args:
        gate: [..., N], float32, float16 or bfloat16; rows may lie any distance apart. Without up:
            [..., 2N], gate in the first half of each row and up in the second.
        up: like gate, or None.
        element: "int8" or "fp8_e4m3".

    Returns:
        codes [..., N], int8 or float8_e4m3fn; scale [...], float32; row_sum [...], int32 or (fp8)
        float32. Not differentiable.

    Raises:
        UnsupportedError: for shapes, dtypes, elements or devices that do not fit.
    """
    return _call(gate, up, element)


def _check(gate: Tensor, up: Tensor | None, element: str) -> None:
    row_codes(element)
    if gate.dtype not in _DTYPES or not gate.dim():
        raise UnsupportedError(
            f"swiglu_quantized: gate is {gate.dtype} {list(gate.shape)}: it may be float32, "
            "float16 or bfloat16 of [..., N]"
        )
    if up is None:
        if gate.shape[-1] % 2:
            raise UnsupportedError(
                f"swiglu_quantized: gate is {list(gate.shape)} without up: its last axis holds "
                "gate and up side by side, so its size must be even; or give up"
            )
        return
    if up.shape != gate.shape or up.dtype != gate.dtype:
        raise UnsupportedError(
            f"swiglu_quantized: gate is {gate.dtype} {list(gate.shape)}, up {up.dtype} "
            f"{list(up.shape)}: they must be alike"
        )
    on_one_device("swiglu_quantized", "gate", gate, up=up)


def _run(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    _check(gate, up, element)
    return choose(OP, gate.device.type, gate.dtype).forward(gate, up, element)


def _shape(gate: Tensor, up: Tensor | None) -> torch.Size:
    """Of y."""
    width = gate.shape[-1] if up is not None else gate.shape[-1] // 2
    return torch.Size((*gate.shape[:-1], width))


def _fake(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    _check(gate, up, element)
    return empty(_shape(gate, up), element, gate.device)


_forward = define(
    "swiglu_quantized",
    "(Tensor gate, Tensor? up, str element) -> (Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_call = direct_call(_forward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """gate and up read once; codes of one byte, scale and row_sum written once."""
    gate: Tensor = arguments["gate"]
    shape = _shape(gate, arguments["up"])
    return Cost(
        flops=9 * shape.numel(),
        bytes_read=2 * shape.numel() * gate.element_size(),
        bytes_written=shape.numel() + 8 * shape[:-1].numel(),
    )


OP = Op(
    name="swiglu_quantized",
    axes=(
        Axis(name="M", meaning="rows: tokens"),
        Axis(name="N", meaning="intermediate size; gate has 2N where it holds up as well"),
    ),
    tensors=(
        TensorSpec(name="gate", axes=("M", "N"), dtypes=_DTYPES),
        TensorSpec(name="up", axes=("M", "N"), dtypes=_DTYPES, optional=True),
        TensorSpec(
            name="codes", axes=("M", "N"), dtypes=(torch.int8, torch.float8_e4m3fn), role="output"
        ),
        TensorSpec(name="scale", axes=("M",), dtypes=(torch.float32,), role="output"),
        TensorSpec(name="row_sum", axes=("M",), dtypes=(torch.int32, torch.float32), role="output"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    cost=cost,
    cases=CASES,
    tolerances=(
        Tolerance(dtype=torch.int8, relative=1.0, reason=_TIE),
        Tolerance(dtype=torch.float8_e4m3fn, relative=1.0, reason=_TIE),
        Tolerance(dtype=torch.int32, relative=1.0, reason="a sum of codes: " + _TIE),
        Tolerance(dtype=torch.float32, relative=RELATIVE, reason="an exponential and a quotient"),
    ),
    implementations=(
        Implementation(
            name="hopper",
            requirement=Requirement(
                devices=("cuda",),
                dtypes=(torch.float16, torch.bfloat16),
                nvcc=True,
                capability=(9, 0),
            ),
            module="tercet.ops.swiglu_quantized.hopper.launch",
            language="cuda",
        ),
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.swiglu_quantized.triton",
            language="triton",
            space={
                "HELD": (2048, 8192, 16384, 32768),
                "BLOCK": (2048, 4096, 8192),
                "STAGES": (1, 2, 3),
                "num_warps": (4, 8, 16, 32),
            },
            small_space={"HELD": (16,), "BLOCK": (16, 64)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.swiglu_quantized.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="M",
    baselines=(Baseline(name="eager", path="tercet.ops.swiglu_quantized.baselines:eager"),),
)
