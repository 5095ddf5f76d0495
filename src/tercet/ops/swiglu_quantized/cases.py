"""What swiglu_quantized is checked on, and its calls in production."""

from typing import Any

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """gate and up [M, N], or with `fused` gate [M, 2N] alone; the element."""
    m, n, dtype = workload.sizes["M"], workload.sizes["N"], workload.dtype
    element = workload.options.get("element", "int8")
    if workload.options.get("fused", False):
        return {
            "gate": values((m, 2 * n), dtype, seed, kind, device),
            "up": None,
            "element": element,
        }
    return {
        "gate": values((m, n), dtype, seed, kind, device),
        "up": values((m, n), dtype, seed + 1, device=device),
        "element": element,
    }


_SMALL = ({"M": 3, "N": 17}, {"M": 1, "N": 1}, {"M": 5, "N": 260})
_LARGE = ({"M": 0, "N": 64}, {"M": 2, "N": 0}, {"M": 37, "N": 576}, {"M": 2, "N": 20001})
_KINDS = ("large", "tiny", "subnormal", "zeros", "constant", "mixed", "offset", "inf", "nan")


def _fp8(workload: Workload) -> Workload:
    return Workload(
        name=f"{workload.name}-fp8",
        sizes=workload.sizes,
        dtype=workload.dtype,
        options={**workload.options, "element": "fp8_e4m3"},
    )


# rows that a cluster of blocks takes: of whole loads, the last block's fewer than the others'
_LONG = ({"M": 3, "N": 16392}, {"M": 1, "N": 33000})
_NORMAL = (*workloads((*_SMALL, *_LARGE)), *workloads((*_SMALL, *_LONG), fused=True))
_SPECIAL = workloads(({"M": 4, "N": 132},))
CASES = (
    *cases(inputs, _NORMAL),
    *cases(inputs, map(_fp8, _NORMAL)),
    *cases(inputs, _SPECIAL, _KINDS),
    *cases(inputs, map(_fp8, _SPECIAL), _KINDS),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The activation before the down projection, of a fused product, dense and of experts."""
    calls = list[tuple[str, int, int]]()
    if model.intermediate:
        calls.append(("mlp", model.tokens, model.share(model.intermediate)))
    if model.experts:
        routed = model.tokens * model.experts_per_token
        calls.append(("experts", routed, model.share(model.expert_intermediate)))
    return tuple(
        Workload(
            name=f"{model.name} {where} {element}",
            sizes={"M": m, "N": n},
            options={"fused": True, "element": element},
        )
        for where, m, n in calls
        for element in ("int8", "fp8_e4m3")
    )
