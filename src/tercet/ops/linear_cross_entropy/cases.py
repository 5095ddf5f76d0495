"""What linear_cross_entropy is checked on, and its calls in production."""

from dataclasses import replace
from typing import Any

import torch

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Case, Workload
from tercet.kernel.model_shape import ModelShape

IGNORED = -100
_LARGE = 128.0  # times integers up to 78: logits to 9984 that bfloat16 holds exactly


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """x [M, H], weight [V, H], target [M], of which every fifth is ignored, and the options."""
    m, h, v = (workload.sizes[axis] for axis in ("M", "H", "V"))
    options, dtype = workload.options, workload.dtype
    generator = torch.Generator(device).manual_seed(seed + 2)
    target = torch.randint(v, (m,), generator=generator, device=device)
    target[4::5] = IGNORED
    if options.get("all_ignored", False):
        target[:] = IGNORED
    x = values((m, h), dtype, seed, "normal" if kind == "large" else kind, device)
    weight = values((v, h), dtype, seed + 1, device=device) / max(h, 1) ** 0.5
    if kind == "large":
        x.zero_()[:, :1] = _LARGE
        steps = torch.randint(-78, 79, (v, 1), generator=generator, device=device)
        # or logits of -32768 to -12800
        weight[:, :1] = (steps - 178 if options.get("low", False) else steps).to(dtype)
    only_loss = bool(options.get("only_loss", False))
    return {
        "x": x,
        "weight": weight,
        "target": target,
        "ignore_index": IGNORED,
        "reduction": "sum" if options.get("sum", False) else "mean",
        "x_gradient": not (only_loss or options.get("frozen_x", False)),
        "weight_gradient": not (only_loss or options.get("frozen_weight", False)),
        "accumulate_float32": bool(options.get("accumulate_float32", False)),
        "divide_late": dtype == torch.float16,
        "in_place": False,
    }


_SIZES = (
    {"M": 3, "H": 5, "V": 7},
    {"M": 1, "H": 1, "V": 1},
    {"M": 1, "H": 9, "V": 11},
    {"M": 0, "H": 8, "V": 9},
    {"M": 17, "H": 33, "V": 1001},
    {"M": 6, "H": 64, "V": 9000},
)
_ONE = ({"M": 11, "H": 24, "V": 130},)


def _without_gradient(some: tuple[Case, ...]) -> tuple[Case, ...]:
    """Cases in which not every gradient is asked for."""
    return tuple(replace(case, gradient=False) for case in some)


CASES = (
    *cases(inputs, workloads(_SIZES)),
    *cases(inputs, workloads(({"M": 900, "H": 8, "V": 50},), (torch.bfloat16,))),
    *cases(inputs, workloads(_ONE, sum=True)),
    *cases(inputs, workloads(_ONE, accumulate_float32=True)),
    *cases(inputs, workloads(_ONE, all_ignored=True, sum=True)),
    *_without_gradient(cases(inputs, workloads(_ONE, all_ignored=True))),
    *_without_gradient(cases(inputs, workloads(_ONE, frozen_weight=True))),
    *_without_gradient(cases(inputs, workloads(_ONE, frozen_x=True))),
    *_without_gradient(cases(inputs, workloads(_ONE, only_loss=True))),
    *cases(inputs, workloads(_ONE, low=True), ("large",)),
    *cases(inputs, workloads(_ONE), ("large", "zeros", "tiny", "subnormal", "inf", "nan")),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The loss of a training step; under tensor parallelism every GPU has all of the head."""
    sizes = {"M": model.tokens, "H": model.hidden, "V": model.vocabulary}
    return (
        Workload(name=f"{model.name} head loss", sizes=sizes),
        Workload(
            name=f"{model.name} head loss, evaluation", sizes=sizes, options={"only_loss": True}
        ),
    )
