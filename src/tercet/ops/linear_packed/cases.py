"""What linear_packed is checked on: every scheme, odd shapes, sizes 0 and 1, extreme values."""

from typing import Any

import torch
from torch import Tensor

from tercet.formats import PackedTensor, encode, fit, parse_scheme
from tercet.kernel.contract import Case

SCHEMES = (
    "ternary",
    "ternary-g128",
    "ternary-channel",
    "nonary",
    "nonary-g32-bfloat16",
    "int2-g64-hqq",
    "int3",
    "int4",
    "int4-asym",
    "int4-hqq",
    "int4-g20-float32",
    "int8-channel",
    "int8-tensor",
    "int8-g32-asym",
    "fp8_e4m3",
    "fp8_e5m2-tensor",
    "mxfp4",
    "nvfp4",
    "int4-b16x32",
    "fp8_e4m3-b128x128",
    "ternary-sparse_2_4",
    "ternary-sparse_3_4",
)
_SHAPES = ((1, 1, 4), (1, 33, 100), (1, 80, 256), (3, 17, 68), (14, 70, 260), (27, 40, 128))


def random_weight(
    scheme: str, n: int, k: int, seed: int, zero_groups: bool = False
) -> PackedTensor:
    """A random W [N, K] in the scheme; with zero_groups, rows of zeros and zero columns."""
    parsed = parse_scheme(scheme)
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed))
    if parsed.storage.name.startswith("sparse"):
        keep = int(parsed.storage.name[7])
        order = weight.abs().reshape(n, k // 4, 4).argsort(dim=-1, descending=True)
        mask = torch.zeros(n, k // 4, 4).scatter_(-1, order[..., :keep], 1.0)
        weight = torch.where(weight < 0, -1.0, 1.0) * mask.reshape(n, k)
    if zero_groups:
        weight[::3] = 0.0
        weight[:, : k // 2] = 0.0
    scale, zero = fit(weight, parsed, "absmax")
    return encode(weight, parsed, scale, zero)


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed + 7)).to(dtype)
    match kind:
        case "large":
            return (x * 1e4).clamp(-3e4, 3e4)
        case "tiny":
            return x * 1e-30 if dtype != torch.float16 else x * 1e-6
        case "mixed":
            x[..., ::7] *= 1e4
            return x
        case "strided":
            return torch.stack((x, x + 1), dim=-1)[..., 0]
        case "transposed":
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        case _:
            return x


def _make(
    scheme: str,
    shape: tuple[int, ...],
    n: int,
    dtype: torch.dtype = torch.float32,
    bias: torch.dtype | None = None,
    kind: str = "normal",
    seed: int = 0,
) -> dict[str, Any]:
    packed = random_weight(scheme, n, shape[-1], seed=seed + n, zero_groups=kind == "zeros")
    generator = torch.Generator().manual_seed(seed + 3)
    return {
        "x": _inputs(shape, dtype, kind, seed),
        "weight": packed,
        "bias": torch.randn(n, generator=generator).to(bias) if bias is not None else None,
    }


def _case(name: str, *arguments: Any, **options: Any) -> Case:
    def make(seed: int) -> dict[str, Any]:
        return _make(*arguments, **options, seed=seed)

    return Case(name=name, make=make)


def _cases() -> tuple[Case, ...]:
    cases = [
        _case(f"{scheme}-{m}x{n}x{k}", scheme, (m, k), n)
        for scheme in SCHEMES
        for m, n, k in _SHAPES
    ]
    for scheme in ("ternary", "nonary", "int4-asym", "int8-channel", "fp8_e4m3"):
        for kind in ("large", "tiny", "mixed", "strided", "transposed", "zeros"):
            cases.append(_case(f"{scheme}-{kind}", scheme, (5, 132), 48, kind=kind))
            cases.append(_case(f"{scheme}-{kind}-vector", scheme, (1, 132), 80, kind=kind))
        for dtype in (torch.float16, torch.bfloat16):
            for m in (1, 6):
                name = f"{scheme}-{str(dtype)[6:]}-{m}"
                cases.append(_case(name, scheme, (m, 132), 50, dtype=dtype, bias=dtype))
        cases.append(_case(f"{scheme}-leading", scheme, (2, 3, 1, 65), 19, bias=torch.float32))
        for m, n, k in ((0, 20, 64), (2, 0, 64), (2, 20, 0), (1, 20, 0), (1, 1, 1), (2, 1, 1)):
            name = f"{scheme}-size-{m}x{n}x{k}"
            cases.append(_case(name, scheme, (m, k), n, bias=torch.bfloat16))
        cases.append(_case(f"{scheme}-one-axis", scheme, (65,), 19))
        cases.append(_case(f"{scheme}-long", scheme, (400, 1000), 35))
        cases.append(_case(f"{scheme}-wide", scheme, (1, 1000), 400))
    return tuple(cases)


CASES = _cases()
