"""What fake_quantize is checked on, and its calls in production.

A straight-through gradient is no derivative: cases with a gradient are too large, or too small, for
the comparison with finite differences.
"""

import math
from dataclasses import replace
from typing import Any

import torch

from tercet.kernel.cases import KINDS, cases, values
from tercet.kernel.contract import Case, Workload
from tercet.kernel.model_shape import ModelShape
from tercet.ops.fake_quantize.rule import rule_of

_SCHEME, _METHOD = "ternary-channel", "absmean"
_F32, _F16, _BF16 = torch.float32, torch.float16, torch.bfloat16
_DTYPES = {"float32": _F32, "float16": _F16, "bfloat16": _BF16}
# of a matrix of 64 by 64 it draws a 0 for [49, 27], as one number in 2^23 is: a weight on a level
# is not rounded up there
_DRAWS_ZERO = 2229


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """weight [N, K], step for learned methods, seed for stochastic rounding, and the options."""
    n, k, dtype = workload.sizes["N"], workload.sizes["K"], workload.dtype
    scheme, method = (
        workload.options.get(name, default)
        for name, default in (("scheme", _SCHEME), ("method", _METHOD))
    )
    rule, step = rule_of(scheme, method), None
    stochastic, halfway = (workload.options.get(name, False) for name in ("stochastic", "halfway"))
    weight = values((n, k), dtype, seed, kind, device)
    if rule.learned:
        # about where training takes it; not equal in any two blocks
        size = values(rule.scale_shape(n, k), torch.float32, seed + 1, device=device)
        size = (1.0 + size.abs()) * rule.divisor / (1 + rule.highest)
        step = size * _size_of(kind, dtype)
        if halfway:
            # ratios on every level and halfway between: ties, and the edges of what is clipped
            step.fill_(rule.divisor)
            highest = 2 * rule.highest + 3
            weight = (values((n, k), dtype, seed, device=device) * highest).round()
            weight = weight if stochastic else weight / 2
        if workload.options.get("unusable", False):
            # as training may take a step: to zero and beyond
            for at, worst in enumerate((0.0, -1.0, -0.0, math.inf, math.nan)):
                step.view(-1)[at::7] = worst
    if workload.options.get("tied", False):
        # a mean just above halfway between two numbers of float16: a tie once it is a float32
        weight = (1 + 2.0**-11) * weight.sign().where(weight != 0, 1.0)
        weight[:, 0] += 2.0**-20 * weight[:, 0].sign()
    drawn = seed * 0x9E3779B97F4A7C % 2**63  # both words of the key
    drawn = _DRAWS_ZERO if halfway else drawn
    return {
        "weight": weight,
        "step": step,
        "seed": torch.tensor(drawn, device=device) if stochastic else None,
        "scheme": scheme,
        "method": method,
        "fake_dtype": _DTYPES.get(workload.options.get("fake", "")),
    }


def _size_of(kind: str, dtype: torch.dtype) -> float:
    half = dtype == torch.float16
    sizes = {"large": 1e4 if half else 1e15, "tiny": 1e-6 if half else 1e-30}
    return sizes.get(kind, 1.0)


def _case(
    n: int,
    k: int,
    scheme: str,
    method: str,
    dtype: torch.dtype = torch.float32,
    fake: torch.dtype | None = None,
    stochastic: bool = False,
    kinds: tuple[str, ...] = ("normal",),
    **more: bool,
) -> tuple[Case, ...]:
    written = str(fake)[6:] if fake is not None else ""
    options = {"scheme": scheme, "method": method, "fake": written, "stochastic": stochastic}
    words = (f"{n}-{k}", str(dtype)[6:], scheme, method, f"to-{written or 'nothing'}")
    name = "-".join((*words, *(("stochastic",) if stochastic else ()), *more))
    options |= more
    workload = Workload(name=name, sizes={"N": n, "K": k}, dtype=dtype, options=options)
    return cases(inputs, (workload,), kinds)


CASES = (
    # what each method and sharing is, at odd sizes
    *_case(5, 67, "ternary-channel", "absmean", _BF16, _BF16),
    *_case(9, 40, "ternary-tensor-float32", "absmean", _F32, _F32),
    *_case(3, 70, "nonary-g32-bfloat16", "absmean", _F16, _F16),
    *_case(7, 33, "int8-channel-float32", "absmax", _F32, _BF16),
    *_case(6, 130, "int4-g64", "absmax", _BF16, _F32),
    *_case(17, 5, "int2-tensor", "absmax", _F16, _F32),
    *_case(5, 67, "nonary-channel-float32", "learned", _F32, _F32),
    *_case(4, 150, "int3-g128", "learned", _BF16, _BF16),
    *_case(9, 31, "ternary-tensor-float32", "learned", _F16, _BF16),
    *_case(5, 65, "ternary-channel-float32", "stretched", _F32, _F32),
    *_case(3, 66, "int2-g32-hqq", "stretched", _BF16, _BF16),
    *_case(9, 30, "int4-tensor-hqq-float32", "stretched", _F32, _F16),
    *_case(37, 576, "nonary-channel-float32", "learned", _BF16, _BF16),
    *_case(3, 300, "ternary-channel-bfloat16", "absmean", _BF16, _BF16, True),
    *_case(2, 515, "int8-channel", "absmax", _F32, _F32),
    # without the dequantized weight
    *(
        replace(each, gradient=False)
        for each in _case(5, 67, "ternary-g64", "absmean", _F32)
    ),
    # rounding at random
    *_case(5, 67, "ternary-channel-float32", "absmean", _F32, _F32, True),
    *_case(7, 70, "nonary-g32", "learned", _BF16, _BF16, True),
    *_case(9, 33, "int2-tensor-hqq-float32", "stretched", _F32, _F32, True),
    # nothing, one, few
    *_case(0, 64, "ternary-channel", "absmean", _F32, _F32),
    *_case(2, 0, "nonary-g32", "learned", _F32, _F32),
    *_case(0, 0, "int4-tensor", "absmax", _BF16, _BF16),
    *_case(1, 1, "nonary-channel-float32", "learned", _F32, _F32),
    *_case(1, 3, "ternary-tensor-float32", "absmean", _BF16, _F32),
    # special values
    *_case(4, 68, "ternary-channel-float32", "absmean", _F32, _F32, kinds=KINDS),
    *_case(3, 70, "int4-g32-float32", "absmax", _BF16, _BF16, kinds=("inf", "nan", "subnormal")),
    *_case(
        4, 68, "nonary-channel-float32", "learned", _F32, _F32,
        kinds=("large", "tiny", "zeros", "constant", "mixed", "offset", "inf", "nan"),
    ),
    *_case(9, 30, "ternary-tensor-float32", "stretched", _F16, _F16, kinds=("inf", "mixed")),
    *_case(6, 44, "int2-g32-hqq-float32", "stretched", _F32, _F32, kinds=("inf", "nan")),
    # steps that cannot be used, and ratios on the levels and on the edges between them
    *_case(
        9, 64, "nonary-g32-float32", "learned", _F32, _F32,
        kinds=("normal", "inf", "nan"), unusable=True,
    ),
    *_case(
        9, 64, "int4-g32-hqq-float32", "stretched", _BF16, _BF16,
        kinds=("normal", "inf", "nan"), unusable=True,
    ),
    *_case(9, 64, "nonary-channel-float32", "learned", _F32, _F32, halfway=True),
    *_case(9, 64, "int3-g32-hqq-float32", "stretched", _F32, _F32, halfway=True),
    *_case(64, 64, "nonary-channel-float32", "learned", _F32, _F32, True, halfway=True),
    *_case(3, 64, "ternary-channel", "absmean", _F32, _F32, tied=True),
)  # fmt: skip


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The MLP's weights as a training step quantizes them, from float32 and bfloat16 masters."""
    width = model.share(model.intermediate) or model.expert_intermediate
    up, down = {"N": width, "K": model.hidden}, {"N": model.hidden, "K": width}
    found: list[Workload] = []
    for name, sizes, dtype, scheme, method, fake in (
        ("up", up, _F32, "ternary-channel-float32", "absmean", ""),
        ("up", up, _BF16, "ternary-channel-float32", "absmean", ""),
        ("down", down, _BF16, "ternary-channel-float32", "absmean", ""),
        ("up", up, _BF16, "nonary-g128", "absmax", ""),
        ("up", up, _F32, "nonary-channel-float32", "learned", "bfloat16"),
        ("up", up, _BF16, "int2-channel-hqq-float32", "stretched", "bfloat16"),
    ):
        options = {"scheme": scheme, "method": method, "fake": fake}
        words = f"{model.name} {name} {scheme} {method} {str(dtype)[6:]}"
        found.append(Workload(name=words, sizes=sizes, dtype=dtype, options=options))
    return tuple(found)
