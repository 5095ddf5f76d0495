"""What gelu_gate is checked on, and its calls in production."""

from typing import Any

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """gate [M, N], of the kind; up [M, N], always normal: their product has to stay finite."""
    shape = (workload.sizes["M"], workload.sizes["N"])
    return {
        "gate": values(shape, workload.dtype, seed, kind, device),
        "up": values(shape, workload.dtype, seed + 1, device=device),
    }


_SMALL = ({"M": 3, "N": 17}, {"M": 1, "N": 1}, {"M": 5, "N": 260})
_SIZES = (*_SMALL, {"M": 0, "N": 64}, {"M": 2, "N": 0}, {"M": 37, "N": 576}, {"M": 2, "N": 5000})
_KINDS = ("large", "tiny", "subnormal", "zeros", "constant", "mixed", "offset", "inf", "nan")

CASES = (
    *cases(inputs, workloads(_SIZES)),
    *cases(inputs, workloads(({"M": 4, "N": 132},)), _KINDS),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The gate of a dense MLP; with experts, of all tokens that are routed to them."""
    found = list[Workload]()
    if model.intermediate:
        sizes = {"M": model.tokens, "N": model.share(model.intermediate)}
        found.append(Workload(name=f"{model.name} gate", sizes=sizes))
    if model.experts:
        routed = model.tokens * model.experts_per_token
        sizes = {"M": routed, "N": model.share(model.expert_intermediate)}
        found.append(Workload(name=f"{model.name} experts' gate", sizes=sizes))
    return tuple(found)
