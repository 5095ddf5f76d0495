"""What linear_qat is checked on, and its calls in production.

A straight-through gradient is no derivative: cases with a gradient are too large, or too small, for
the comparison with finite differences.
"""

from typing import Any

import torch

from tercet.formats import element
from tercet.kernel.cases import values
from tercet.kernel.contract import Case, Workload
from tercet.kernel.model_shape import ModelShape
from tercet.packed_weight.row_codes import quantize

_F32, _F16, _BF16 = torch.float32, torch.float16, torch.bfloat16


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """x [M, K], weight [N, K], codes and scales that were drawn, and what the options say."""
    m, n, k = (workload.sizes[axis] for axis in "MNK")
    given, dtype = workload.options, workload.dtype
    levels = element(given.get("element", "ternary"))
    generator = torch.Generator(device).manual_seed(seed + 1)
    low, high = int(levels.lowest), int(levels.highest)
    codes = torch.randint(
        low, high + 1, (n, k), dtype=torch.int8, generator=generator, device=device
    )
    shared = (1, 1) if given.get("tensor", False) else (n, 1)
    # times that of tiny x it is less than float32 has all bits of, what is scaled is not
    least = 1e-10 if kind == "tiny" and dtype != _F16 else 0.01
    x = values((m, k), dtype, seed, kind, device)
    if kind == "cancelling":
        half = k // 2
        codes = codes.clamp(-127).abs()
        codes[:, half : 2 * half] = codes[:, :half] * (-1) ** (seed + 1)
    coded = quantize(x, "int8")[:2] if given.get("coded", False) else (None, None)
    drawn = seed * 0x9E3779B97F4A7C % 2**63  # both words of the key
    weight_dtype = given.get("weight", dtype)
    bias = given.get("bias")
    return {
        "x": x,
        "weight": None
        if weight_dtype is None
        else values((n, k), weight_dtype, seed + 4, device=device),
        "codes": codes,
        "scale": (values(shared, _F32, seed + 2, device=device).abs() * 5 + 1) * least,
        "codes_t": codes.t().contiguous() if given.get("transposed", False) else None,
        "bias": None if bias is None else values((n,), bias, seed + 3, device=device),
        "x_codes": coded[0],
        "x_scale": coded[1],
        "seed": torch.tensor(drawn, device=device) if given.get("random", False) else None,
        "weight_gradient": given.get("weight_gradient", "float"),
        "out_dtype": given.get("out", dtype),
    }


def _case(
    m: int, n: int, k: int, dtype: torch.dtype = _F32, kind: str = "normal", **options: Any
) -> Case:
    words = [f"{name}={str(value).removeprefix('torch.')}" for name, value in options.items()]
    name = "-".join(
        (f"{m}-{n}-{k}", str(dtype)[6:], *words, *((kind,) if kind != "normal" else ()))
    )
    workload = Workload(name=name, sizes={"M": m, "N": n, "K": k}, dtype=dtype, options=options)

    def make(seed: int) -> dict[str, Any]:
        return inputs(workload, seed, "cpu", kind)

    return Case(
        name=name, make=make, gradient=kind not in ("largest", "inf", "nan"), options=options
    )


CASES = (
    _case(5, 17, 67, bias=_F32, transposed=True),
    _case(33, 40, 65, _BF16, weight=_F32, tensor=True),
    _case(7, 70, 66, _F16, bias=_F16, element="nonary"),
    _case(13, 9, 70, _BF16, coded=True, transposed=True, bias=_F32, element="int4"),
    _case(6, 11, 68, _F32, out=_BF16, element="int8", weight=_BF16),
    _case(37, 130, 200, _BF16, element="int8", transposed=True),
    # int8 weight gradient: to nearest, and at random
    _case(21, 19, 67, _F32, weight_gradient="int8", transposed=True),
    _case(35, 33, 66, _BF16, weight=_F32, weight_gradient="int8", random=True),
    _case(9, 66, 8, _F16, weight_gradient="int8", random=True, coded=True, tensor=True),
    # sizes that whole vectors and TMA take, with tiles that are not whole
    _case(144, 264, 48, _BF16, weight=_F32, weight_gradient="int8", random=True, transposed=True),
    _case(16, 72, 272, _F16, weight_gradient="int8", transposed=True, element="int8"),
    _case(16, 24, 48, _F32, weight_gradient="int8", bias=_BF16, tensor=True),
    # no gradient of the weight
    _case(8, 20, 64, _BF16, weight=None),
    # nothing, one
    _case(0, 20, 64, bias=_F32),
    _case(2, 0, 64),
    _case(3, 20, 0, bias=_BF16),
    _case(1, 1, 1, bias=_F32, weight_gradient="int8"),
    _case(0, 20, 64, _BF16, weight_gradient="int8", random=True),
    *(
        _case(4, 16, 68, _F32, kind, bias=_F32)
        for kind in ("large", "tiny", "zeros", "mixed", "inf", "nan")
    ),
    *(
        _case(4, 16, 68, _BF16, kind, weight_gradient="int8")
        for kind in ("large", "zeros", "mixed", "nan")
    ),
    # halves of sums beyond 2^24 that are alike: what is added in floats does not come to 0
    _case(4, 16, 20001, _F32, "cancelling", element="int8"),
)  # fmt: skip


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """A training step's products: the MLP's, x in floats and as a norm or a gate quantized it."""
    width = model.share(model.intermediate) or model.expert_intermediate
    m, hidden = model.tokens, model.hidden
    return tuple(
        Workload(
            name=f"{model.name} {name}{' coded' if coded else ''}",
            sizes={"M": m, "N": n, "K": k},
            options={"coded": coded, "transposed": True},
        )
        for name, n, k in (("up", width, hidden), ("down", hidden, width))
        for coded in (False, True)
    )
