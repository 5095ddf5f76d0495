"""Cases: the inputs that every op should be checked on, built from one function of its author.

An author writes `inputs(workload, seed, device, kind)`, which draws the arguments with `values`.
`cases(inputs, workloads(...), kinds)` makes a case of every workload and kind.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tercet.errors import unknown_name
from tercet.kernel.contract import Case, Sizes, Workload

Inputs = Callable[..., dict[str, Any]]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
KINDS = (
    "normal",  # standard normal
    "large",  # squares still fit float32
    "largest",  # the dtype's largest number, both signs
    "tiny",  # squares underflow
    "subnormal",
    "zeros",
    "constant",  # one number everywhere: no variance
    "mixed",  # outliers: every seventh is 10,000 times as large
    "offset",  # a mean far from zero: sums cancel
    "inf",  # one +inf and one -inf
    "nan",  # one NaN
    "wide",  # sizes from 1e-3 to 1e3, each power of ten as often
    "small",  # float16 has them, but not what is a hundredth of them
    "lowest",  # a few times the dtype's smallest number
    "positive",  # sums grow
    "outlier",  # one column 10,000 times as large: the first, the last or any
    "cancelling",  # of odd seeds' second half with even ones': sums of products are near 0
)
_SPECIAL = {"inf": ("inf", "-inf"), "nan": ("nan",)}
NOT_DIFFERENTIABLE = ("largest", "inf", "nan")


def values(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    seed: int,
    kind: str = "normal",
    device: str = "cpu",
) -> Tensor:
    """Random numbers of a kind.

    Args:
        shape, dtype, device: of the result.
        seed: equal seeds give equal numbers on one device type.
        kind: one of KINDS.
    """
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(shape, generator=generator, device=device)
    limits = torch.finfo(dtype)
    match kind:
        case "normal":
            pass
        case "large":
            x = (x * (1e4 if dtype == torch.float16 else 1e15)).clamp(
                limits.min / 4, limits.max / 4
            )
        case "largest":
            x = torch.where(x < 0, limits.min, limits.max)
        case "tiny":
            x = x * (1e-6 if dtype == torch.float16 else 1e-30)
        case "subnormal":
            x = x * limits.smallest_normal / 4
        case "zeros":
            x = torch.zeros_like(x)
        case "constant":
            x = torch.full_like(x, 0.7)
        case "mixed":
            x[..., ::7] *= 1e4
        case "offset":
            x = x + 100.0
        case "inf" | "nan":
            flat = x.view(-1)
            places = torch.randperm(flat.numel(), generator=generator, device=device)
            # a tensor that is iterated makes one of each of its elements, first
            special = torch.tensor([float(each) for each in _SPECIAL[kind]], device=device)
            some = places[: len(special)]
            flat[some] = special[: len(some)]
        case "small":
            x = x * 1e-4
        case "lowest":
            x = (x * 100).round() * limits.smallest_normal * limits.eps
        case "outlier":
            column = (0, shape[-1] - 1, 0, seed % max(shape[-1], 1))[seed % 4]
            x[..., column : column + 1] *= 1e4
        case "positive":
            x = x.abs()
        case "cancelling":
            x = torch.rand(shape, generator=generator, device=device) / 2 + 0.5
            half = shape[-1] // 2
            x[..., half : 2 * half] = x[..., :half] * (-1) ** seed
        case "wide":
            powers = torch.rand(shape, generator=generator, device=device)
            x = x.sign() * 10 ** (6 * powers - 3)
        case _:
            raise ValueError(unknown_name("kind of values", kind, KINDS))
    return x.to(dtype)


def workloads(
    sizes: Iterable[Sizes], dtypes: Iterable[torch.dtype] = DTYPES, **options: Any
) -> tuple[Workload, ...]:
    """A workload for each of the sizes and dtypes."""
    return tuple(
        Workload(
            name="-".join((*map(str, size.values()), str(dtype)[6:], *map(_word, options.items()))),
            sizes=size,
            dtype=dtype,
            options=options,
        )
        for size in sizes
        for dtype in dtypes
    )


def _word(option: tuple[str, Any]) -> str:
    name, value = option
    return name if value is True else f"{name}={value}"


def cases(
    inputs: Inputs, over: Iterable[Workload], kinds: Iterable[str] = ("normal",)
) -> tuple[Case, ...]:
    """A case for each workload and kind of values."""
    return tuple(_case(inputs, workload, kind) for workload in over for kind in kinds)


def _case(inputs: Inputs, workload: Workload, kind: str) -> Case:
    def make(seed: int) -> dict[str, Any]:
        return inputs(workload, seed, "cpu", kind)

    return Case(
        name=workload.name if kind == "normal" else f"{workload.name}-{kind}",
        make=make,
        gradient=kind not in NOT_DIFFERENTIABLE,
        options=workload.options,
    )
