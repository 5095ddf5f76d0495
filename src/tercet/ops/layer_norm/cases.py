"""What layer_norm is checked on, and its calls in production."""

from typing import Any

import torch

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """x [M, N], weight [N], bias [N] or None, eps."""
    m, n, dtype = workload.sizes["M"], workload.sizes["N"], workload.dtype
    kept = torch.float32 if workload.options.get("float32_weight", False) else dtype
    bias = None
    if workload.options.get("bias", False):
        bias = values((n,), kept, seed + 2, device=device)
    return {
        "x": values((m, n), dtype, seed, kind, device),
        "weight": values((n,), kept, seed + 1, device=device),
        "bias": bias,
        "eps": 1e-5,
    }


_SMALL = ({"M": 3, "N": 17}, {"M": 1, "N": 1}, {"M": 5, "N": 260})
_SIZES = (*_SMALL, {"M": 0, "N": 64}, {"M": 2, "N": 0}, {"M": 37, "N": 576}, {"M": 2, "N": 5000})
_ONE = ({"M": 4, "N": 132},)
_KINDS = ("large", "tiny", "subnormal", "zeros", "constant", "mixed", "offset", "inf", "nan")
_HALVES = (torch.float16, torch.bfloat16)

CASES = (
    *cases(inputs, workloads(_SIZES)),
    *cases(inputs, workloads(_SIZES, bias=True)),
    *cases(inputs, workloads(({"M": 9, "N": 65},), _HALVES, bias=True, float32_weight=True)),
    *cases(inputs, workloads(_ONE, bias=True), _KINDS),
    # the squares of float32's and bfloat16's largest numbers overflow float32: the variance is inf
    *cases(inputs, workloads(_ONE, (torch.float16,), bias=True), ("largest",)),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """A norm of the residual stream, with and without a bias."""
    sizes = {"M": model.tokens, "N": model.hidden}
    return (
        Workload(name=f"{model.name} norm", sizes=sizes, options={"bias": True}),
        Workload(name=f"{model.name} norm without bias", sizes=sizes),
    )
