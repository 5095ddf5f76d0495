"""What linear_kl is checked on, and its calls in production."""

from dataclasses import replace
from typing import Any

import torch

from tercet.kernel.cases import cases, values, workloads
from tercet.kernel.contract import Case, Workload
from tercet.kernel.model_shape import ModelShape

_LARGE = 128.0  # times integers up to 78: logits to 9984


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """x [M, H], weight [V, H], the teacher's, and the options.

    The teacher has G hidden units; where a mask leaves its rows out, they are NaN. Option "same"
    makes it the student.
    """
    m, h, g, v = (workload.sizes[axis] for axis in ("M", "H", "G", "V"))
    options, dtype = workload.options, workload.dtype
    shown = "normal" if kind == "large" else kind
    x = values((m, h), dtype, seed, shown, device)
    weight = values((v, h), dtype, seed + 1, device=device) / max(h, 1) ** 0.5
    teacher_x = values((m, g), dtype, seed + 2, shown, device)
    teacher_weight = values((v, g), dtype, seed + 3, device=device) / max(g, 1) ** 0.5
    generator = torch.Generator(device).manual_seed(seed + 4)
    if kind == "large":
        x.zero_()[:, :1] = _LARGE
        steps = torch.randint(-78, 79, (v, 1), generator=generator, device=device)
        weight[:, :1] = steps.to(dtype)
    if options.get("same", False):
        teacher_x, teacher_weight = x.clone(), weight.clone()
    mask = None
    if options.get("mask", False):
        mask = torch.rand(m, generator=generator, device=device) < 0.7
    if options.get("all_masked", False):
        mask = torch.zeros(m, dtype=torch.bool, device=device)
    if mask is not None:
        teacher_x = teacher_x.masked_fill(~mask[:, None], torch.nan)
    only_loss = bool(options.get("only_loss", False))
    return {
        "x": x,
        "weight": weight,
        "teacher_x": teacher_x,
        "teacher_weight": teacher_weight,
        "mask": mask,
        "temperature": float(options.get("temperature", 1.0)),
        "beta": float(options.get("beta", 0.0)),
        "reduction": "sum" if options.get("sum", False) else "mean",
        "x_gradient": not (only_loss or options.get("frozen_x", False)),
        "weight_gradient": not (only_loss or options.get("frozen_weight", False)),
        "accumulate_float32": bool(options.get("accumulate_float32", False)),
        "divide_late": dtype == torch.float16,
        "in_place": False,
    }


_SIZES = (
    {"M": 3, "H": 5, "G": 4, "V": 7},
    {"M": 1, "H": 1, "G": 1, "V": 1},
    {"M": 1, "H": 9, "G": 5, "V": 11},
    {"M": 0, "H": 8, "G": 8, "V": 9},
    {"M": 13, "H": 33, "G": 20, "V": 1001},
    {"M": 4, "H": 48, "G": 64, "V": 9000},
)
_ONE = ({"M": 11, "H": 24, "G": 32, "V": 130},)
_BETAS = (0.0, 0.1, 0.5, 1.0)


def _named(some: tuple[Case, ...], suffix: str, gradient: bool = True) -> tuple[Case, ...]:
    """The cases under names of their own; without a gradient where not all of it is asked for."""
    return tuple(
        replace(case, name=f"{case.name}-{suffix}", gradient=case.gradient and gradient)
        for case in some
    )


def _diverging(beta: float) -> tuple[Case, ...]:
    plain = cases(inputs, workloads(_ONE, beta=beta, mask=True, temperature=2.0))
    # of both models' logits most are so low that there is no probability left
    same = cases(inputs, workloads(_ONE, beta=beta, same=True), ("normal", "large"))
    special = cases(inputs, workloads(_ONE, beta=beta), ("large", "zeros", "inf", "nan"))
    return _named((*plain, *same, *special), str(beta))


CASES = (
    *cases(inputs, workloads(_SIZES)),
    *_named(cases(inputs, workloads(_SIZES, (torch.float32, torch.bfloat16), beta=0.3)), "0.3"),
    *_named(cases(inputs, workloads(_SIZES[:5], (torch.bfloat16,), beta=1.0)), "1.0"),
    *(case for beta in _BETAS for case in _diverging(beta)),
    *cases(inputs, workloads(_ONE, sum=True)),
    *cases(inputs, workloads(_ONE, accumulate_float32=True)),
    *cases(inputs, workloads(_ONE, all_masked=True, sum=True)),
    *_named(cases(inputs, workloads(_ONE, all_masked=True)), "none", gradient=False),
    *_named(cases(inputs, workloads(_ONE, frozen_weight=True)), "some", gradient=False),
    *_named(cases(inputs, workloads(_ONE, frozen_x=True)), "some", gradient=False),
    *_named(cases(inputs, workloads(_ONE, only_loss=True, beta=0.5)), "none", gradient=False),
)


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """A model distilled into one of its own shape: the student that compression trains."""
    sizes = {"M": model.tokens, "H": model.hidden, "G": model.hidden, "V": model.vocabulary}
    return (
        Workload(name=f"{model.name} distillation", sizes=sizes),
        Workload(name=f"{model.name} distillation, JSD", sizes=sizes, options={"beta": 0.5}),
    )
