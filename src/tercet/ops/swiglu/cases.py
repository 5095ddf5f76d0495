"""What swiglu is checked on, and its calls in production."""

from typing import Any

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Workload
from tercet.kernel.model_shape import ModelShape

# the largest number times silu's other factor must stay inside the dtype
_BELOW_ONE = 0.875


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """gate and up [M, N]; with `fused` gate [M, 2N] alone; with `views` two views of one tensor."""
    m, n, dtype = workload.sizes["M"], workload.sizes["N"], workload.dtype
    if workload.options.get("fused", False):
        return {"gate": values((m, 2 * n), dtype, seed, kind, device), "up": None}
    if workload.options.get("views", False):
        both = values((m, 2 * n), dtype, seed, kind, device)
        return {"gate": both[:, :n], "up": both[:, n:]}
    up = values((m, n), dtype, seed + 1, device=device)
    if kind == "largest":
        up = up.clamp(-_BELOW_ONE, _BELOW_ONE)
    return {"gate": values((m, n), dtype, seed, kind, device), "up": up}


_SMALL = ({"M": 3, "N": 17}, {"M": 1, "N": 1}, {"M": 5, "N": 260})
_SIZES = (*_SMALL, {"M": 0, "N": 64}, {"M": 2, "N": 0}, {"M": 37, "N": 576}, {"M": 2, "N": 5000})
_KINDS = (
    "large", "largest", "tiny", "subnormal", "zeros", "constant", "mixed", "offset", "inf", "nan",
)  # fmt: skip

CASES = (
    *cases(inputs, workloads(_SIZES)),
    *cases(inputs, workloads(_SIZES, fused=True)),
    *cases(inputs, workloads(_SMALL, views=True)),
    *cases(inputs, workloads(({"M": 4, "N": 132},)), _KINDS),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The activation of a dense MLP and of the experts, on two tensors and on a fused product."""
    calls = list[tuple[str, dict[str, int]]]()
    if model.intermediate:
        calls.append(("mlp", {"M": model.tokens, "N": model.share(model.intermediate)}))
    if model.experts:
        routed = model.tokens * model.experts_per_token
        calls.append(("experts", {"M": routed, "N": model.share(model.expert_intermediate)}))
    return tuple(
        Workload(
            name=f"{model.name} {where}{' fused' if fused else ''}",
            sizes=sizes,
            options={"fused": True} if fused else {},
        )
        for where, sizes in calls
        for fused in (False, True)
    )
