"""What quantize_activation is checked on, and its calls in production."""

from typing import Any

from tercet.kernel.cases import KINDS, cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """x [M, K] and the element."""
    shape = (workload.sizes["M"], workload.sizes["K"])
    return {
        "x": values(shape, workload.dtype, seed, kind, device),
        "element": workload.options.get("element", "int8"),
    }


_SMALL = ({"M": 3, "K": 17}, {"M": 1, "K": 1}, {"M": 5, "K": 260})
_LARGE = ({"M": 0, "K": 64}, {"M": 2, "K": 0}, {"M": 37, "K": 576}, {"M": 2, "K": 20001})
_ONE = ({"M": 4, "K": 132},)


def _fp8(workload: Workload) -> Workload:
    return Workload(
        name=f"{workload.name}-fp8",
        sizes=workload.sizes,
        dtype=workload.dtype,
        options={"element": "fp8_e4m3"},
    )


_WORKLOADS, _SPECIAL = workloads((*_SMALL, *_LARGE)), workloads(_ONE)
CASES = (
    *cases(inputs, _WORKLOADS),
    *cases(inputs, map(_fp8, _WORKLOADS)),
    *cases(inputs, _SPECIAL, KINDS),
    *cases(inputs, map(_fp8, _SPECIAL), KINDS),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The inputs of the layers' products: hidden, attention's and the MLP's, in both elements."""
    widths = {"hidden": model.hidden, "heads": model.share(model.heads * model.head_dim)}
    if model.intermediate:
        widths["mlp"] = model.share(model.intermediate)
    if model.experts:
        widths["expert"] = model.share(model.expert_intermediate)
    return tuple(
        Workload(
            name=f"{model.name} {name} {element}",
            sizes={
                "M": model.tokens * (model.experts_per_token if name == "expert" else 1),
                "K": k,
            },
            options={"element": element},
        )
        for name, k in widths.items()
        for element in ("int8", "fp8_e4m3")
    )
