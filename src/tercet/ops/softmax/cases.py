"""What softmax is checked on, and its calls in production."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Case, Workload
from tercet.kernel.model_shape import ModelShape

_CONTEXT = 131072
_QUERIES = 128


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """x [M, N] and scale; of kind "masked", some numbers are -inf, of "hidden" a whole row.

    Every third one, or the first half, as a window of attention leaves them. Of kind "padded" a row
    too, and the last third of all.
    """
    shape = workload.sizes["M"], workload.sizes["N"]
    plain = kind if kind not in ("masked", "hidden", "padded") else "normal"
    x = values(shape, workload.dtype, seed, plain, device)
    if kind == "masked":
        x[..., slice(1, None, 3) if seed % 2 else slice(shape[1] // 2)] = -torch.inf
    if kind == "padded":
        x[..., shape[1] - shape[1] // 3 :] = -torch.inf
    if kind in ("hidden", "padded"):
        x[:1] = -torch.inf
    return {"x": x, "scale": workload.options.get("scale", 1.0)}


def _without_gradient(some: Iterable[Case]) -> tuple[Case, ...]:
    return tuple(replace(case, gradient=False) for case in some)


_SIZES = ({"M": 3, "N": 17}, {"M": 5, "N": 260}, {"M": 37, "N": 576}, {"M": 2, "N": 5000})
_EDGES = ({"M": 1, "N": 1}, {"M": 0, "N": 64}, {"M": 2, "N": 0})
_LONG = ({"M": 1, "N": 65537}, {"M": 2, "N": 131072})
_ONE = ({"M": 4, "N": 132},)
_KINDS = (
    *("large", "largest", "tiny", "subnormal", "zeros", "constant", "mixed", "offset"),
    *("inf", "nan", "masked"),
)

CASES = (
    *cases(inputs, workloads((*_SIZES, *_EDGES))),
    *cases(inputs, workloads(_SIZES, scale=0.125)),
    *cases(inputs, workloads(_LONG, scale=0.5)),
    *cases(inputs, workloads(({"M": 1, "N": 300_001},), (torch.bfloat16,))),
    *cases(inputs, workloads(_ONE, scale=0.3), _KINDS),
    *_without_gradient(cases(inputs, workloads(_ONE), ("hidden", "padded"))),
    *cases(inputs, workloads(({"M": 1, "N": 70_001},), (torch.float32,)), ("masked", "nan")),
    *_without_gradient(cases(inputs, workloads(({"M": 2, "N": 40_000},)), ("hidden", "inf"))),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """Attention scores, the vocabulary, the router of a mixture of experts."""
    scale = {"scale": model.head_dim**-0.5}
    heads = model.share(model.heads)
    found = [
        Workload(
            name=f"{model.name} scores of a head",
            sizes={"M": model.tokens, "N": model.tokens},
            options=scale,
        ),
        Workload(
            name=f"{model.name} scores over 128k positions",
            sizes={"M": heads * _QUERIES, "N": _CONTEXT},
            options=scale,
        ),
        Workload(
            name=f"{model.name} vocabulary",
            sizes={"M": model.tokens, "N": model.share(model.vocabulary)},
        ),
    ]
    if model.experts:
        sizes = {"M": model.tokens, "N": model.experts}
        found.append(Workload(name=f"{model.name} router", sizes=sizes))
    return tuple(found)
