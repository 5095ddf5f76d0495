"""What linear_packed is checked on (every scheme, odd shapes, sizes 0 and 1, extreme values), and
its calls in production."""

from typing import Any

import torch
from torch import Tensor

from tercet.formats import PackedTensor, encode, fit, parse_scheme
from tercet.kernel.cases import values
from tercet.kernel.contract import Case, Workload
from tercet.kernel.model_shape import ModelShape
from tercet.packed_weight.call import FLOATS
from tercet.packed_weight.drawn import drawn_bias, drawn_weight, options_of
from tercet.packed_weight.row_codes import ELEMENTS, quantize

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
    "int4-g64-asym-float32",
    "int2-g32-hqq32-bfloat16",
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
    scheme: str, n: int, k: int, seed: int, zero_groups: bool = False, positive: bool = False
) -> PackedTensor:
    """A random W [N, K] in the scheme; with zero_groups, rows of zeros and zero columns."""
    parsed = parse_scheme(scheme)
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed))
    weight = weight.abs() if positive else weight
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


def _x(shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed + 7)).to(dtype)
    match kind:
        case "large":
            return (x * 1e4).clamp(-3e4, 3e4)
        case "tiny":
            return x * 1e-30 if dtype != torch.float16 else x * 1e-6
        case "mixed":
            x[..., ::7] *= 1e4
            return x
        case "positive":
            return x.abs()
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
    activation: str = "none",
    coded: bool = False,
    residual: bool = False,
    out: torch.dtype | None = None,
) -> dict[str, Any]:
    packed = random_weight(scheme, n, shape[-1], seed + n, kind == "zeros", kind == "positive")
    generator = torch.Generator().manual_seed(seed + 3)
    x, x_scale, x_sum = _x(shape, dtype, kind, seed), None, None
    added = torch.randn((*shape[:-1], n), generator=generator)
    if coded:
        x, x_scale, x_sum = quantize(x, activation)
        out = out or torch.bfloat16
    return {
        "x": x,
        "weight": packed,
        "bias": torch.randn(n, generator=generator).to(bias) if bias is not None else None,
        "residual": added.to(out or dtype) if residual else None,
        "x_scale": x_scale,
        "x_sum": x_sum,
        "activation": activation,
        "out_dtype": out,
    }


def _case(name: str, scheme: str, *arguments: Any, **options: Any) -> Case:
    def make(seed: int) -> dict[str, Any]:
        return _make(scheme, *arguments, **options, seed=seed)

    return Case(name=name, make=make, options=options_of(scheme, options))


_MAIN = ("ternary", "nonary", "int4-asym", "int8-channel", "fp8_e4m3")
_FEW = ("ternary", "int4-asym")


def _cases() -> tuple[Case, ...]:
    cases = list[Case]()
    for at, scheme in enumerate(SCHEMES):
        shapes = _SHAPES if scheme in _MAIN else (_SHAPES[at % 6], _SHAPES[(at + 4) % 6])
        cases += [_case(f"{scheme}-{m}x{n}x{k}", scheme, (m, k), n) for m, n, k in shapes]
    for scheme in _MAIN:
        for kind in ("large", "tiny", "mixed", "strided", "transposed", "zeros"):
            cases.append(_case(f"{scheme}-{kind}", scheme, (5, 132), 48, kind=kind))
            if scheme in _FEW:
                cases.append(_case(f"{scheme}-{kind}-vector", scheme, (1, 132), 80, kind=kind))
        for dtype in (torch.float16, torch.bfloat16):
            for m in (1, 6):
                name = f"{scheme}-{str(dtype)[6:]}-{m}"
                cases.append(_case(name, scheme, (m, 132), 50, dtype=dtype, bias=dtype))
        cases.append(_case(f"{scheme}-leading", scheme, (2, 3, 1, 65), 19, bias=torch.float32))
        cases.append(_case(f"{scheme}-long", scheme, (400, 1000), 35))
        cases.append(_case(f"{scheme}-wide", scheme, (1, 1000), 400))
    for scheme in _FEW:
        for m, n, k in ((0, 20, 64), (2, 0, 64), (2, 20, 0), (1, 20, 0), (1, 1, 1), (2, 1, 1)):
            name = f"{scheme}-size-{m}x{n}x{k}"
            cases.append(_case(name, scheme, (m, k), n, bias=torch.bfloat16))
        cases.append(_case(f"{scheme}-one-axis", scheme, (65,), 19, bias=torch.float32))
    return (*cases, *_quantized_cases(), *_residual_cases(), *_prefill_cases())


def _quantized_cases() -> list[Case]:
    """8-bit activations: every scheme with both, quantized inside the op or given as codes."""
    cases = list[Case]()
    for at, scheme in enumerate(SCHEMES):
        m, n, k = _SHAPES[at % len(_SHAPES)]
        inside, given = ELEMENTS if at % 2 else ELEMENTS[::-1]
        out = FLOATS[at % 3]
        name = f"{scheme}-{inside}-{m}x{n}x{k}"
        cases.append(_case(name, scheme, (m, k), n, dtype=out, activation=inside))
        name, shape = f"{scheme}-{given}-codes", (3, 68)
        cases.append(_case(name, scheme, shape, 33, activation=given, coded=True, out=out))
    for scheme, activation in (("ternary-channel", "int8"), ("int4-asym", "fp8_e4m3")):
        name, options = f"{scheme}-{activation}", {"activation": activation, "coded": True}
        for m, n, k in ((0, 20, 64), (2, 0, 64), (2, 20, 0), (1, 1, 1)):
            cases.append(_case(f"{name}-size-{m}x{n}x{k}", scheme, (m, k), n, **options))
        for kind in ("large", "tiny", "mixed", "zeros"):
            cases.append(_case(f"{name}-{kind}", scheme, (5, 132), 48, kind=kind, **options))
        cases.append(_case(f"{name}-leading", scheme, (2, 3, 68), 19, **options))
    return cases


def _residual_cases() -> list[Case]:
    """Bias and residual in each output dtype, which need not be x's; scales in float32."""
    cases = list[Case]()
    for dtype in FLOATS:
        for out in FLOATS:
            name = f"ternary-{str(dtype)[6:]}-{str(out)[6:]}-residual"
            options: dict[str, Any] = {"dtype": dtype, "out": out, "residual": True}
            cases.append(_case(name, "ternary", (4, 132), 50, bias=dtype, **options))
    # results that show each bit of scales in float32, beside x in 16 bits
    for scheme in ("int4-g20-float32", "nvfp4"):
        for dtype in FLOATS[1:]:
            name = f"{scheme}-{str(dtype)[6:]}-float32"
            cases.append(_case(name, scheme, (3, 100), 33, dtype=dtype, out=torch.float32))
    for scheme in ("ternary", "int8-channel"):
        for activation in ELEMENTS:
            options = {"activation": activation, "residual": True, "bias": torch.float32}
            name = f"{scheme}-{activation}-residual"
            cases.append(_case(name, scheme, (4, 132), 50, **options))
            cases.append(_case(f"{name}-codes", scheme, (4, 132), 50, coded=True, **options))
    return cases


def _prefill_cases() -> list[Case]:
    """More rows than a decoding step has: tiles cut at every edge."""
    cases = list[Case]()
    for at, scheme in enumerate(("ternary", "nonary", "int3", "ternary-g128", "int4-g64")):
        x, (m, n, k) = FLOATS[1 + at % 2], ((17, 40, 68), (130, 140, 300))[at % 2]
        options = {"dtype": x, "out": FLOATS[at % 3], "bias": x, "residual": at % 2 == 0}
        cases.append(_case(f"{scheme}-prefill-{str(x)[6:]}", scheme, (m, k), n, **options))
    for at, scheme in enumerate(("ternary", "nonary", "int3", "int8-channel", "ternary-g128")):
        out = FLOATS[at % 3]
        for m, n, k in ((17, 40, 68), (130, 140, 300)):
            options = {"activation": "int8", "bias": out, "residual": at % 2 == 1}
            name = f"{scheme}-prefill-{m}x{n}x{k}"
            cases.append(_case(name, scheme, (m, k), n, dtype=out, **options))
    coded = {"activation": "int8", "coded": True, "residual": True}
    for scheme in ("ternary", "int4-g64", "int8-g128"):
        cases.append(_case(f"{scheme}-prefill-codes", scheme, (3, 30, 320), 200, **coded))
    return [*cases, *_fp8_prefill_cases()]


def _fp8_prefill_cases() -> list[Case]:
    """8-bit floats, of the weight, of x, and of both."""
    cases = list[Case]()
    for scheme, x in (
        ("fp8_e4m3", torch.float16),
        ("fp8_e4m3-b128x128", torch.bfloat16),
        ("fp8_e5m2", torch.bfloat16),
    ):
        name = f"{scheme}-prefill-{str(x)[6:]}"
        cases.append(_case(name, scheme, (33, 260), 140, dtype=x, bias=x))
    for scheme, out in (("fp8_e4m3", torch.bfloat16), ("ternary", torch.float32)):
        options = {"activation": "fp8_e4m3", "coded": True, "out": out, "residual": True}
        cases.append(_case(f"{scheme}-prefill-fp8-codes", scheme, (33, 132), 72, **options))
    options = {"activation": "fp8_e4m3", "coded": True}
    for at, scheme in enumerate(("fp8_e4m3", "ternary", "fp8_e4m3-b128x128")):
        m, n = ((130, 140), (33, 72))[at > 0]
        cases.append(_case(f"{scheme}-prefill-fp8-wide", scheme, (m, 2068), n, **options))
    # sums that only grow, and few large numbers among small ones: what sums of few bits lose first
    for kind in ("positive", "mixed", "zeros"):
        name = f"fp8_e4m3-prefill-fp8-{kind}"
        cases.append(_case(name, "fp8_e4m3", (20, 2068), 48, kind=kind, **options))
    options = {"dtype": torch.bfloat16, "activation": "fp8_e4m3"}
    for k in (68, 2052):
        cases.append(_case(f"fp8_e4m3-prefill-fp8_e4m3-{k}", "fp8_e4m3", (17, k), 40, **options))
    return cases


CASES = _cases()

_PRODUCTION = "ternary"
_DECODE = (1, 16)


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """x [M, K] of the kind, W [N, K] in the workload's scheme.

    Options: scheme; activation; codes=True gives x as codes; residual=True; bias and out, the names
    of dtypes.
    """
    m, n, k = (workload.sizes[axis] for axis in ("M", "N", "K"))
    options = workload.options
    scheme = str(options.get("scheme", _PRODUCTION))
    activation = str(options.get("activation", "none"))
    out = getattr(torch, str(options.get("out", str(workload.dtype)[6:])))
    x, x_scale, x_sum = values((m, k), workload.dtype, seed, kind, device), None, None
    if options.get("codes", False):
        x, x_scale, x_sum = quantize(x, activation)
    added = values((m, n), out, seed + 2, device=device) if options.get("residual") else None
    return {
        "x": x,
        "weight": drawn_weight(scheme, n, k, seed + 1, device),
        "bias": drawn_bias((n,), options.get("bias"), seed + 3, device),
        "residual": added,
        "x_scale": x_scale,
        "x_sum": x_sum,
        "activation": activation,
        "out_dtype": out,
    }


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """Each projection of a layer on one GPU, at 1 and 16 tokens and at prefill; the head at decode.

    Column-parallel projections split N, row-parallel ones (o, down) split K. An expert takes its
    even part of a call's tokens.
    """
    calls = list[Workload]()
    for part, (n, k) in _projections(model).items():
        for m in sorted({*_DECODE, model.tokens}) if part != "head" else _DECODE:
            calls.append(_call(f"{model.name} {part} M={m}", m, n, k))
    if model.experts:
        n, k = 2 * model.share(model.expert_intermediate), model.share(model.expert_intermediate)
        each = -(-model.tokens * model.experts_per_token // model.experts)
        for m in sorted({1, each}):
            calls.append(_call(f"{model.name} expert gate|up M={m}", m, n, model.hidden))
            calls.append(_call(f"{model.name} expert down M={m}", m, model.hidden, k))
    return tuple(calls)


def _projections(model: ModelShape) -> dict[str, tuple[int, int]]:
    """(N, K) by name."""
    wide = model.share(model.intermediate)
    found = _attention(model) | {"head": (model.share(model.vocabulary), model.hidden)}
    if not model.experts or model.dense_layers:
        found |= {"gate|up": (2 * wide, model.hidden), "down": (model.hidden, wide)}
    return found


def _attention(model: ModelShape) -> dict[str, tuple[int, int]]:
    heads, hidden = model.share(model.heads), model.hidden
    if not model.kv_rank:
        n = (heads + 2 * model.share(model.kv_heads)) * model.head_dim
        return {"q|k|v": (n, hidden), "o": (hidden, heads * model.head_dim)}
    kept = model.head_dim - model.rope_dim + model.value_dim
    return {
        "q|kv down": (model.query_rank + model.kv_rank + model.rope_dim, hidden),
        "q up": (heads * model.head_dim, model.query_rank),
        "kv up": (heads * kept, model.kv_rank),
        "o": (hidden, heads * model.value_dim),
    }


def _call(name: str, m: int, n: int, k: int) -> Workload:
    return Workload(name=name, sizes={"M": m, "N": n, "K": k}, options={"scheme": _PRODUCTION})
