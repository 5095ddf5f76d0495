"""What embedding_packed is checked on, and its calls in production."""

from math import prod
from typing import Any

import torch

from tercet.formats import encode, fit, parse_scheme
from tercet.kernel.contract import Case, Workload
from tercet.kernel.model_shape import ModelShape
from tercet.packed_weight.drawn import drawn_weight

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
    "int4-g32-asym-float32",
    "int2-g32-hqq32-bfloat16",
)

# of the table that wrong ids are looked up in, and more ids than that
_ROWS, _MANY = 20, (3, 50)


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


def _case(
    name: str,
    scheme: str,
    n: int,
    k: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    ids: torch.dtype,
) -> Case:
    def make(seed: int) -> dict[str, Any]:
        return _make(scheme, n, k, shape, dtype, ids, seed)

    options = {"scheme": scheme} | ({"ids": "int32"} if ids == torch.int32 else {})
    return Case(name=name, make=make, options=options)


def _with_wrong_id(
    name: str,
    wrong: int,
    dtype: torch.dtype = torch.int64,
    shape: tuple[int, ...] = (9,),
    at: int | None = None,
) -> Case:
    """Ids of which one is no row of the table: the one at that place, or one of the seed's."""

    def make(seed: int) -> dict[str, Any]:
        made = _make("int4", _ROWS, 64, shape, torch.float32, dtype, seed)
        ids = made["ids"].view(-1)
        ids[seed % len(ids) if at is None else at] = wrong
        return made

    return Case(name=name, make=make, gradient=False, refusable=True)


def _with_wrong_id_of_many() -> list[Case]:
    """The same of more ids than rows: the first one, one in the middle, the last one."""
    places = {"first": 0, "middle": prod(_MANY) // 2, "last": prod(_MANY) - 1}
    return [
        _with_wrong_id(f"{place}-of-many-{kind}", wrong, shape=_MANY, at=at)
        for place, at in places.items()
        for kind, wrong in (("negative", -1), ("past-the-last", _ROWS))
    ]


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
        _with_wrong_id("negative-id", -1),
        _with_wrong_id("id-past-the-last", _ROWS),
        _with_wrong_id("id-past-32-bits", 2**32 + 3),
        _with_wrong_id("negative-int32-id", -1, torch.int32),
        _with_wrong_id("int32-id-past-the-last", _ROWS, torch.int32),
        *_with_wrong_id_of_many(),
    ]
    return tuple(cases)


CASES = _cases()

_PRODUCTION = "ternary"


def inputs(workload: Workload, seed: int, device: str = "cpu") -> dict[str, Any]:
    """ids [T], W [N, K] in the workload's scheme, the dtype of the result.

    Options: scheme; ids, the name of their dtype.
    """
    t, n, k = (workload.sizes[axis] for axis in ("T", "N", "K"))
    scheme = str(workload.options.get("scheme", _PRODUCTION))
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, str(workload.options.get("ids", "int64")))
    return {
        "ids": torch.randint(0, n, (t,), generator=generator, device=device, dtype=dtype),
        "weight": drawn_weight(scheme, n, k, seed + 1, device),
        "dtype": workload.dtype,
    }


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The embedding at 1 and 16 tokens and at prefill; the vocabulary is split over GPUs."""
    return tuple(
        Workload(
            name=f"{model.name} embedding T={t}",
            sizes={"T": t, "N": model.share(model.vocabulary), "K": model.hidden},
            options={"scheme": _PRODUCTION},
        )
        for t in sorted({1, 16, model.tokens})
    )
