"""What grouped_linear_packed is checked on (empty experts, one with all rows, odd shapes, every way
to decode), and its calls in production."""

from typing import Any

import torch
from torch import Tensor

from tercet.formats import PackedTensor, encode, fit, parse_scheme
from tercet.formats.dispatch_mode import in_dispatch_mode
from tercet.kernel.cases import values
from tercet.kernel.contract import Case, Workload
from tercet.kernel.model_shape import ModelShape
from tercet.ops.grouped_linear_packed.routing import sort_by_expert
from tercet.packed_weight.call import FLOATS
from tercet.packed_weight.drawn import drawn_bias, drawn_weight, options_of
from tercet.packed_weight.row_codes import quantize

Shape = tuple[int, int, int, int]

# each decodes in a way of its own: 2, 4 and 8 bits, zero points, floats, groups inside a word
SCHEMES = (
    "ternary",
    "ternary-channel",
    "nonary-g32-bfloat16",
    "int2-g64-hqq",
    "int4-asym",
    "int4-g20-float32",
    "int8-channel",
    "int8-g32-asym",
    "fp8_e4m3",
    "nvfp4",
    "int4-b16x32",
    "int4-g32-asym-float32",
)
# of these also with 8-bit activations: int8 and fp8, with and without zero points and groups
_QUANTIZED = SCHEMES[:2] + SCHEMES[4:6] + SCHEMES[7:9]
_SHAPES: tuple[Shape, ...] = ((13, 4, 33, 100), (9, 3, 17, 68), (36, 2, 48, 132), (3, 2, 130, 64))


def random_offsets(rows: int, experts: int, seed: int, kind: str = "ragged") -> Tensor:
    """int32 [experts + 1]: "ragged", with empty experts among them; or "one" expert has all."""
    generator = torch.Generator().manual_seed(seed)
    bounds = torch.randint(0, rows + 1, (experts - 1,), generator=generator)
    if kind == "one":
        chosen = torch.randint(0, experts, (1,), generator=generator)
        bounds = torch.where(torch.arange(experts - 1) < chosen, 0, rows)
    elif experts > 3:
        bounds[0] = bounds[1]
    ends = torch.tensor([0]), torch.tensor([rows])
    return torch.cat((ends[0], bounds.sort().values, ends[1])).to(torch.int32)


def random_weights(scheme: str, shape: Shape, seed: int) -> tuple[PackedTensor, ...]:
    """A random W [N, K] in the scheme for each expert."""
    _, experts, n, k = shape
    parsed, generator = parse_scheme(scheme), torch.Generator().manual_seed(seed)
    dense = [torch.randn(n, k, generator=generator) for _ in range(experts)]
    return tuple(encode(each, parsed, *fit(each, parsed, "absmax")) for each in dense)


def _make(
    scheme: str,
    shape: Shape,
    dtype: torch.dtype = torch.float32,
    bias: torch.dtype | None = None,
    row_weight: bool = False,
    activation: str = "none",
    coded: bool = False,
    out: torch.dtype | None = None,
    offsets: str = "ragged",
    kind: str = "normal",
    seed: int = 0,
) -> dict[str, Any]:
    rows, experts, n, k = shape
    generator = torch.Generator().manual_seed(seed + 3)
    x, x_scale = values((rows, k), dtype, seed + 7, kind), None
    if coded:
        x, x_scale, _ = quantize(x, activation)
    shared = torch.randn(experts, n, generator=generator)
    return {
        "x": x,
        "offsets": random_offsets(rows, experts, seed + 5, offsets),
        "weight": random_weights(scheme, shape, seed + n),
        "bias": shared.to(bias) if bias is not None else None,
        "row_weight": torch.rand(rows, generator=generator) if row_weight else None,
        "x_scale": x_scale,
        "activation": activation,
        "out_dtype": out,
    }


def _case(name: str, scheme: str, *arguments: Any, **options: Any) -> Case:
    def make(seed: int) -> dict[str, Any]:
        return _make(scheme, *arguments, **options, seed=seed)

    # torch's own checks compute with an op's inputs, which it cannot with 8-bit floats
    fp8 = options.get("coded") and options["activation"] == "fp8_e4m3"
    return Case(name=name, make=make, gradient=not fp8, options=options_of(scheme, options))


def _cases() -> tuple[Case, ...]:
    cases = list[Case]()
    for at, scheme in enumerate(SCHEMES):
        dtype, shape = FLOATS[at % 3], _SHAPES[at % 4]
        options: dict[str, Any] = {"dtype": dtype, "row_weight": at % 2 == 0}
        cases.append(_case(f"{scheme}-{str(dtype)[6:]}", scheme, shape, **options))
        if scheme not in _QUANTIZED:
            continue
        activation = ("int8", "fp8_e4m3")[at % 2]
        options = {"activation": activation, "coded": at % 4 < 2, "out": FLOATS[at // 2 % 3]}
        shape = _SHAPES[(at + 1) % 4]
        cases.append(_case(f"{scheme}-{activation}", scheme, shape, bias=dtype, **options))
    whole: dict[str, Any] = {"bias": torch.bfloat16, "row_weight": True}
    coded: dict[str, Any] = {"activation": "int8", "coded": True}
    cases += [
        _case("one-expert-has-all", "ternary", (37, 5, 40, 132), offsets="one", **whole),
        _case("one-expert-has-all-codes", "int4-asym", (37, 5, 40, 132), offsets="one", **coded),
        _case("more-experts-than-rows", "ternary", (5, 20, 19, 65), **whole),
        _case("one-expert", "nonary", (100, 1, 33, 64), **whole),
        _case("one-row", "ternary-channel", (1, 5, 40, 132), **whole),
        _case("one-of-each", "ternary", (1, 1, 1, 1)),
        _case("long", "ternary", (70, 2, 20, 160), dtype=torch.bfloat16, row_weight=True),
    ]
    # one scale a row of W: few, some and many rows an expert, K not a multiple of anything
    channel: dict[str, Any] = {"activation": "int8", "row_weight": True}
    half: dict[str, Any] = {"dtype": torch.bfloat16, "bias": torch.float32, "row_weight": True}
    for rows, experts, n, k in (
        (9, 5, 40, 144),
        (60, 3, 136, 272),
        (90, 3, 33, 528),
        (6, 2, 72, 1040),
    ):
        shape, name = (rows, experts, n, k), f"{rows}-rows"
        scheme, other = ("ternary", "nonary") if rows % 4 else ("nonary", "ternary")
        cases += [
            _case(f"{name}-codes", f"{scheme}-channel", shape, coded=True, **channel),
            _case(f"{name}-bfloat16", f"{other}-channel", shape, **half),
        ]
    shape = (9, 5, 40, 144)
    cases += [
        _case("quantized", "nonary-channel", shape, bias=torch.float16, **channel),
        _case("ternary-bfloat16", "ternary-channel", shape, **half),
    ]
    for scheme in ("int2-channel", "int3-channel", "int4-channel"):
        cases.append(_case(f"{scheme}-codes", scheme, (23, 4, 50, 200), coded=True, **channel))
    for shape in ((0, 3, 20, 64), (2, 3, 0, 64), (2, 3, 20, 0)):
        name = "x".join(map(str, shape))
        cases.append(_case(f"size-{name}", "int4-asym", shape, **whole))
        cases.append(_case(f"size-{name}-codes", "ternary", shape, **coded))
    # results that show each bit of scales in float32, beside x in 16 bits
    options = {"dtype": torch.float16, "out": torch.float32}
    cases.append(_case("float32-scales", "int4-g20-float32", (9, 3, 17, 68), **options))
    cases.append(_case("tiny", "int4-asym", (9, 2, 33, 100), kind="tiny", **whole))
    for kind in ("mixed", "inf", "nan"):
        cases.append(_case(f"{kind}-codes", "ternary", (9, 2, 33, 100), kind=kind, **coded))
    return tuple(cases)


CASES = _cases()

_PRODUCTION = "ternary"
_TOKENS = (1, 16, 512)


def _drawn_weights(scheme: str, shape: Shape, seed: int, device: str) -> tuple[PackedTensor, ...]:
    """W [N, K] of each expert.

    Inside a dispatch mode one weight stands for all: torch's fake tensors have no values, and each
    operation on them costs as much as on a large real one.
    """
    _, experts, n, k = shape
    different = 1 if in_dispatch_mode() else experts
    some = tuple(drawn_weight(scheme, n, k, seed + 100 * at, device) for at in range(different))
    return some * (experts // different)


def inputs(
    workload: Workload, seed: int, device: str = "cpu", kind: str = "normal"
) -> dict[str, Any]:
    """T rows of tokens, of the kind, that each go to `top_k` different experts, equally likely.

    Options: top_k (1); scheme; activation; codes=True gives x as codes; row_weight=True; bias and
    out, the names of dtypes.
    """
    rows, experts, n, k = (workload.sizes[axis] for axis in ("T", "E", "N", "K"))
    options = workload.options
    activation = str(options.get("activation", "none"))
    out = getattr(torch, str(options.get("out", str(workload.dtype)[6:])))
    x, x_scale = values((rows, k), workload.dtype, seed, kind, device), None
    if options.get("codes", False):
        x, x_scale, _ = quantize(x, activation)
    generator = torch.Generator(device).manual_seed(seed + 2)
    weighted = options.get("row_weight", False)
    return {
        "x": x,
        "offsets": _routed(generator, rows, experts, int(options.get("top_k", 1))),
        "weight": _drawn_weights(
            str(options.get("scheme", _PRODUCTION)), (rows, experts, n, k), seed + 1, device
        ),
        "bias": drawn_bias((experts, n), options.get("bias"), seed + 3, device),
        "row_weight": torch.rand(rows, generator=generator, device=device) if weighted else None,
        "x_scale": x_scale,
        "activation": activation,
        "out_dtype": out,
    }


def _routed(generator: torch.Generator, rows: int, experts: int, top_k: int) -> Tensor:
    """Offsets of `rows` rows, `top_k` to a token."""
    top_k = min(top_k, experts)
    tokens = -(-rows // top_k)
    likely = torch.rand(tokens, experts, generator=generator, device=generator.device)
    chosen = likely.topk(top_k).indices.flatten()[:rows]
    return sort_by_expert(chosen[:, None], experts)[1]


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The experts' two products on one GPU, at 1, 16 and 512 tokens; none for a dense model.

    Tensor parallelism splits the width of each expert. The down product carries the router's
    probabilities.
    """
    if not model.experts:
        return ()
    width, top_k = model.share(model.expert_intermediate), model.experts_per_token
    calls = list[Workload]()
    for tokens in _TOKENS:
        for part, n, k in (("gate|up", 2 * width, model.hidden), ("down", model.hidden, width)):
            calls.append(
                Workload(
                    name=f"{model.name} experts {part} {tokens} tokens",
                    sizes={"T": tokens * top_k, "E": model.experts, "N": n, "K": k},
                    options={
                        "scheme": _PRODUCTION,
                        "top_k": top_k,
                        "row_weight": part == "down",
                    },
                )
            )
    return tuple(calls)
