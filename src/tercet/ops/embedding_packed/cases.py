"""What embedding_packed is checked on."""

from typing import Any

import torch

from tercet.formats import encode, fit, parse_scheme
from tercet.kernel.contract import Case

_SCHEMES = (
    "ternary",
    "nonary",
    "int2",
    "int3",
    "int4-asym",
    "int4-hqq",
    "int4-g20-float32",
    "int8-channel",
    "int8-tensor-bfloat16",
    "fp8_e4m3",
    "mxfp4",
    "nvfp4",
    "int4-b16x32",
)


def _make(
    scheme: str,
    n: int,
    k: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    ids: torch.dtype,
    seed: int = 0,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed + n + k)
    parsed = parse_scheme(scheme)
    weight = torch.randn(n, k, generator=generator)
    weight[::5] = 0.0
    scale, zero = fit(weight, parsed, "absmax")
    chosen = torch.randint(0, n, shape, generator=generator).to(ids)
    return {"ids": chosen, "weight": encode(weight, parsed, scale, zero), "dtype": dtype}


def _case(name: str, *arguments: Any) -> Case:
    def make(seed: int) -> dict[str, Any]:
        return _make(*arguments, seed=seed)

    return Case(name=name, make=make)


def _cases() -> tuple[Case, ...]:
    full, half, brain = torch.float32, torch.float16, torch.bfloat16
    cases = list[Case]()
    for scheme in _SCHEMES:
        for dtype in (full, half, brain):
            name = f"{scheme}-{str(dtype)[6:]}"
            cases.append(_case(name, scheme, 50, 132, (2, 7), dtype, torch.int64))
    cases += [
        _case("one", "ternary", 1, 1, (1,), full, torch.int64),
        _case("no-axis", "int4", 20, 65, (), full, torch.int64),
        _case("no-ids", "int4", 20, 64, (0,), full, torch.int64),
        _case("no-ids-inside", "int4", 20, 64, (3, 0), full, torch.int64),
        _case("no-columns", "int4", 20, 0, (5,), full, torch.int64),
        _case("int32-ids", "nonary", 40, 100, (9,), full, torch.int32),
        _case("many", "int8", 700, 33, (600,), full, torch.int64),
    ]
    return tuple(cases)


CASES = _cases()
