"""What rms_norm_quantized is checked on, and its calls in production."""

from typing import Any

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """x [M, N], weight [N], residual [M, N] or None, eps, the element."""
    m, n, dtype = workload.sizes["M"], workload.sizes["N"], workload.dtype
    residual = None
    if workload.options.get("residual", False):
        residual = values((m, n), dtype, seed + 2, device=device)
    return {
        "x": values((m, n), dtype, seed, kind, device),
        "weight": values((n,), dtype, seed + 1, device=device),
        "residual": residual,
        "eps": 1e-6,
        "element": workload.options.get("element", "int8"),
    }


_SMALL = ({"M": 3, "N": 17}, {"M": 1, "N": 1}, {"M": 5, "N": 260})
_LARGE = ({"M": 0, "N": 64}, {"M": 2, "N": 0}, {"M": 37, "N": 576}, {"M": 2, "N": 5000})
_KINDS = ("large", "tiny", "subnormal", "zeros", "constant", "mixed", "offset", "inf", "nan")


def _fp8(workload: Workload) -> Workload:
    return Workload(
        name=f"{workload.name}-fp8",
        sizes=workload.sizes,
        dtype=workload.dtype,
        options={**workload.options, "element": "fp8_e4m3"},
    )


_PLAIN = workloads((*_SMALL, *_LARGE))
_ADDED = workloads((*_SMALL, *_LARGE), residual=True)
_SPECIAL = workloads(({"M": 4, "N": 132},))
CASES = (
    *cases(inputs, (*_PLAIN, *_ADDED)),
    *cases(inputs, map(_fp8, (*_PLAIN, *workloads(_SMALL, residual=True)))),
    *cases(inputs, _SPECIAL, _KINDS),
    *cases(inputs, map(_fp8, _SPECIAL), _KINDS),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The norm before attention and before the MLP, alone and with the residual added."""
    sizes = {"M": model.tokens, "N": model.hidden}
    return tuple(
        Workload(
            name=f"{model.name} {name} {element}",
            sizes=sizes,
            options={**options, "element": element},
        )
        for name, options in (("norm", dict[str, bool]()), ("add+norm", {"residual": True}))
        for element in ("int8", "fp8_e4m3")
    )
