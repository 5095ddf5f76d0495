"""What rms_norm is checked on, and its calls in production."""

from typing import Any

import torch

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """x [M, N], weight [N], residual [M, N] or None, eps."""
    m, n, dtype = workload.sizes["M"], workload.sizes["N"], workload.dtype
    residual = None
    if workload.options.get("residual", False):
        residual = values((m, n), dtype, seed + 2, device=device)
    weight_dtype = workload.options.get("weight", dtype)
    return {
        "x": values((m, n), dtype, seed, kind, device),
        "weight": values((n,), weight_dtype, seed + 1, device=device),
        "residual": residual,
        "eps": 1e-6,
    }


_SMALL = ({"M": 3, "N": 17}, {"M": 1, "N": 1}, {"M": 5, "N": 260})
_SIZES = (*_SMALL, {"M": 0, "N": 64}, {"M": 2, "N": 0}, {"M": 37, "N": 576}, {"M": 2, "N": 5000})
_KINDS = ("large", "tiny", "subnormal", "zeros", "constant", "mixed", "offset", "inf", "nan")

CASES = (
    *cases(inputs, workloads(_SIZES)),
    *cases(inputs, workloads(_SIZES, residual=True)),
    *cases(inputs, workloads(({"M": 4, "N": 132},)), _KINDS),
    *cases(inputs, workloads(({"M": 6, "N": 40},), weight=torch.float32)),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The norm before attention and before the MLP, alone and with the residual added."""
    sizes = {"M": model.tokens, "N": model.hidden}
    return (
        Workload(name=f"{model.name} norm", sizes=sizes),
        Workload(name=f"{model.name} add+norm", sizes=sizes, options={"residual": True}),
    )
