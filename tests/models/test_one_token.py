"""The C++ step against the same formulas in float64 torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from tercet.formats import encode, fit, parse_scheme
from tercet.models.decoder.config import ACTIVATIONS, DecoderConfig
from tercet.models.decoder.kv_cache import Positions
from tercet.models.decoder.layer import Layer, Step
from tercet.models.decoder.linear import Linear, SideBySide
from tercet.models.decoder.mlp import Gated
from tercet.models.decoder.native_layer import NativeLayer, native_layer
from tercet.models.decoder.norm import Norm
from tercet.models.decoder.one_token import GATES, Heads, Native, native
from tercet.models.decoder.rope import angles, rotate_
from tercet.models.input_transform import InputTransform
from tercet.models.packed_modules import PackedLinear
from tercet.packed_weight import int4_rows, prepare
from tercet.packed_weight.cpu.product import isas
from tercet.packed_weight.row_codes import quantize


@dataclass(frozen=True)
class Sizes:
    """What a layer reads of its configuration."""

    heads: int = 4
    key_value_heads: int = 2
    head_dim: int = 16
    norm_epsilon: float = 1e-5
    attention_factor: float = 0.25
    attention_input_factor: float = 1.0
    attention_output_factor: float = 1.0
    score_cap: float | None = None
    residual_factor: float = 1.0
    activation: str = "silu"


@pytest.fixture
def functions() -> Native:
    found = native()
    assert found is not None
    return found


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=2e-6)


def heads_of(count: int, key_value: int, dim: int) -> Heads:
    """Heads that are neither normalized, capped nor windowed."""
    return Heads(
        count=count,
        key_value=key_value,
        dim=dim,
        window=None,
        query_norm=None,
        key_norm=None,
        epsilon=1e-5,
        scale=0.25,
        cap=None,
    )


@pytest.mark.parametrize("count", [1, 15, 16, 33, 576])
@pytest.mark.parametrize("normed", [False, True])
def test_add_and_normalize(functions: Native, count: int, normed: bool) -> None:
    hidden, update, weight = torch.randn(3, count), torch.randn(3, count), torch.rand(count)
    norm = Norm(weight=weight, epsilon=1e-5)
    added = update.double()
    if normed:
        added = rms_norm(added, (count,), weight.double(), 1e-5)
    total = hidden.double() + 0.3 * added
    functions.add_(hidden, update, norm if normed else None, 0.3)
    close(hidden, total)
    before = hidden.clone()
    found = functions.normalize(hidden, norm)
    assert torch.equal(hidden, before)
    close(found, rms_norm(total, (count,), weight.double(), 1e-5))
    assert functions.normalize(hidden, None) is hidden


def test_many_rows_have_the_bits_of_each_alone(functions: Native) -> None:
    rows, update, gate_up = torch.randn(401, 576), torch.randn(401, 576), torch.randn(401, 600)
    norm = Norm(weight=torch.rand(576) + 0.5, epsilon=1e-5)
    added, normed = rows.clone(), functions.normalize(rows, norm)
    functions.add_(added, update, norm, 0.7)
    gated = functions.gate(gate_up, "silu")
    for at in (0, 15, 16, 399, 400):
        one = slice(at, at + 1)
        alone = rows[one].clone()
        functions.add_(alone, update[one], norm, 0.7)
        assert torch.equal(added[one], alone)
        assert torch.equal(normed[one], functions.normalize(rows[one], norm))
        assert torch.equal(gated[one], functions.gate(gate_up[one].contiguous(), "silu"))


@pytest.mark.parametrize("activation", GATES)
def test_gate_over_the_whole_range(
    functions: Native, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = torch.cat((torch.linspace(-120, 120, 9001), torch.tensor([0.0, 1e-30, -3e4, 3e4])))
    up = torch.rand_like(gate) + 0.5
    expected = (ACTIVATIONS[activation](gate.double()) * up.double()).expand(2, -1)
    for isa in isas():
        monkeypatch.setenv("TERCET_CPU_ISA", isa)
        found = functions.gate(torch.cat((gate, up)).expand(2, -1).contiguous(), activation)
        close(found, expected)
        broken = functions.gate(torch.tensor([[math.nan, 1.0, 1.0, 1.0]]), activation)
        assert broken.isnan().tolist() == [[True, False]]


@pytest.mark.parametrize("dim", [2, 6, 16, 64, 80])
@pytest.mark.parametrize(("heads", "key_value"), [(1, 1), (6, 2), (5, 1), (7, 1), (16, 2)])
@pytest.mark.parametrize(
    ("length", "window"), [(1, None), (37, None), (37, 5), (129, None), (300, 128), (4000, None)]
)
@pytest.mark.parametrize(("whole", "limit"), [(False, None), (True, 1.5)])
def test_attend(
    functions: Native,
    dim: int,
    heads: int,
    key_value: int,
    length: int,
    window: int | None,
    whole: bool,
    limit: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    # room behind the last position, and other heads between: strides as in the cache
    cache = torch.randn(2, 2 * key_value, length + 3, dim)
    keys, values = cache[:, :key_value, :length], cache[:, key_value:, :length]
    qkv = torch.randn(2, heads + 2 * key_value, dim)
    widths = (heads * dim, key_value * dim) if whole else (dim, dim)
    norms = [torch.rand(width) + 0.5 for width in widths]
    by = angles(torch.rand(dim // 2), length - 1, 1, torch.float32)

    query, key, value = qkv.double().split([heads, key_value, key_value], 1)
    rotated = [
        rms_norm(x.flatten(1).unflatten(1, (-1, len(norm))), (len(norm),), norm.double(), 1e-5)
        .reshape(x.shape)
        .contiguous()
        for x, norm in zip((query, key), norms, strict=True)
    ]
    for x in rotated:
        rotate_(x, (by[0][0].double(), by[1][0].double()))
    all_keys = torch.cat((keys[:, :, :-1].double(), rotated[1].unsqueeze(2)), 2)
    all_values = torch.cat((values[:, :, :-1].double(), value.unsqueeze(2)), 2)
    first = 0 if window is None else length - window
    grouped = rotated[0].unflatten(1, (key_value, -1))
    scores = 0.3 * grouped @ all_keys[:, :, first:].transpose(-1, -2)
    if limit is not None:
        scores = limit * torch.tanh(scores / limit)
    expected = scores.softmax(-1) @ all_values[:, :, first:]
    shape = Heads(
        count=heads,
        key_value=key_value,
        dim=dim,
        window=window,
        query_norm=norms[0],
        key_norm=norms[1],
        epsilon=1e-5,
        scale=0.3,
        cap=limit,
    )
    before = cache.clone()
    for isa in isas():
        monkeypatch.setenv("TERCET_CPU_ISA", isa)
        cache.copy_(before)
        found = functions.attend(qkv.flatten(1).clone(), shape, by, Positions(cache, keys, values))
        close(found, expected.flatten(1))
        close(keys, all_keys)
        close(values, all_values)
        assert torch.equal(cache[:, :, length:], before[:, :, length:])


def test_attention_has_the_same_bits_for_any_number_of_threads(functions: Native) -> None:
    cache, qkv = torch.randn(2, 6, 1000, 64), torch.randn(2, 960)
    positions = Positions(cache, cache[:, :3], cache[:, 3:])
    by = angles(torch.rand(32), 999, 1, torch.float32)
    found, threads = [], torch.get_num_threads()
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        found.append(functions.attend(qkv.clone(), heads_of(9, 3, 64), by, positions))
    torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dim", [6, 16, 80])
@pytest.mark.parametrize(("heads", "key_value"), [(1, 1), (7, 1), (16, 2)])
@pytest.mark.parametrize("length", [1, 37, 300])
def test_attend_to_codes(
    functions: Native,
    dim: int,
    heads: int,
    key_value: int,
    length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    cached, qkv = (
        torch.randn(2, 2 * key_value, length, dim),
        torch.randn(2, heads + 2 * key_value, dim),
    )
    codes, scales, _ = quantize(cached, "int8")
    # no rotation, so that what is stored is what was given
    by = torch.ones(1, 1, dim), torch.zeros(1, 1, dim)
    stored, of_stored, _ = quantize(qkv[:, heads:], "int8")
    expected_codes, expected_scales = codes.clone(), scales.clone()
    expected_codes[:, :, -1], expected_scales[:, :, -1] = stored, of_stored
    held = expected_codes.double() * expected_scales.double().unsqueeze(-1)
    grouped = qkv[:, :heads].double().unflatten(1, (key_value, -1))
    scores = 0.25 * grouped @ held[:, :key_value].transpose(-1, -2)
    expected = (scores.softmax(-1) @ held[:, key_value:]).flatten(1)
    for isa in isas():
        monkeypatch.setenv("TERCET_CPU_ISA", isa)
        now, of_now = codes.clone(), scales.clone()
        halves = (slice(0, key_value), slice(key_value, None))
        positions = Positions(
            now,
            *(now[:, half] for half in halves),
            of_now,
            *(of_now[:, half] for half in halves),
        )
        shape = heads_of(heads, key_value, dim)
        found = functions.attend(qkv.flatten(1).clone(), shape, by, positions)
        close(found, expected)
        assert torch.equal(now, expected_codes)
        assert torch.equal(of_now, expected_scales)


@pytest.mark.parametrize("dim", [2, 6, 16, 36, 64, 80, 128])
@pytest.mark.parametrize(("heads", "key_value"), [(1, 1), (7, 1), (16, 2)])
@pytest.mark.parametrize("length", [1, 37, 300])
@pytest.mark.parametrize("offset", [False, True])
def test_attend_to_4_bits(
    functions: Native,
    dim: int,
    heads: int,
    key_value: int,
    length: int,
    offset: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    cached = torch.randn(2, 2 * key_value, length, dim)
    qkv = torch.randn(2, heads + 2 * key_value, dim)
    taken = torch.randn(key_value, dim) if offset else None
    codes, scales = int4_rows.quantize(cached)
    by = torch.ones(1, 1, dim), torch.zeros(1, 1, dim)
    key = int4_rows.turn(qkv[:, heads : heads + key_value])
    key = key if taken is None else key - taken
    expected_codes, expected_scales = codes.clone(), scales.clone()
    made = int4_rows.quantize(torch.cat((key, qkv[:, heads + key_value :]), 1))
    expected_codes[:, :, -1], expected_scales[:, :, -1] = made
    held = int4_rows.dequantize(expected_codes, expected_scales).double()
    grouped = int4_rows.turn(qkv[:, :heads]).double().unflatten(1, (key_value, -1))
    scores = 0.25 * grouped @ held[:, :key_value].transpose(-1, -2)
    expected = (scores.softmax(-1) @ held[:, key_value:]).flatten(1)
    for isa in isas():
        monkeypatch.setenv("TERCET_CPU_ISA", isa)
        now, of_now = codes.clone(), scales.clone()
        halves = (slice(0, key_value), slice(key_value, None))
        positions = Positions(
            now,
            *(now[:, half] for half in halves),
            of_now,
            *(of_now[:, half] for half in halves),
            key_offset=taken,
        )
        shape = heads_of(heads, key_value, dim)
        found = functions.attend(qkv.flatten(1).clone(), shape, by, positions)
        close(found, expected)
        assert torch.equal(now, expected_codes)
        assert torch.equal(of_now.view(torch.int16), expected_scales.view(torch.int16))


@pytest.mark.parametrize(
    "row",
    [
        [0.0] * 4,
        [3e38, -3e38, 1.0, 0.0],
        [float("nan"), 1.0, 2.0, 3.0],
        [float("inf"), 1.0, 2.0, 3.0],
        [float("-inf"), 1.0, 2.0, 3.0],
        [1e-40, 2e-40, 0.0, -1e-40],
        [1.0, 1.0 + 2**-20, 1.0, 1.0],
    ],
)
def test_rows_at_the_ends_of_floats_have_the_bits_of_4_bit_rows(
    functions: Native, row: list[float]
) -> None:
    values = torch.tensor(row)
    codes = torch.zeros(1, 2, 1, 2, dtype=torch.uint8)
    scales = torch.zeros(1, 2, 1, 2, dtype=torch.bfloat16)
    halves = slice(0, 1), slice(1, 2)
    positions = Positions(
        codes, *(codes[:, half] for half in halves),
        scales, *(scales[:, half] for half in halves),
    )  # fmt: skip
    by = torch.ones(1, 1, 4), torch.zeros(1, 1, 4)
    functions.attend(
        torch.cat((torch.zeros(8), values)).view(1, 12), heads_of(1, 1, 4), by, positions
    )
    expected_codes, expected_scales = int4_rows.quantize(values)
    assert torch.equal(codes[0, 1, 0], expected_codes)
    torch.testing.assert_close(scales[0, 1, 0], expected_scales, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("normed", [None, "each", "whole"])
@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize(("batch", "count", "before"), [(1, 200, 0), (3, 7, 5)])
def test_store_gives_each_position_the_bits_of_one_alone(
    functions: Native, normed: str | None, codes: bool, batch: int, count: int, before: int
) -> None:
    widths = {"each": (16, 16), "whole": (64, 32)}.get(normed or "")
    heads = replace(
        heads_of(4, 2, 16),
        query_norm=torch.rand(widths[0]) + 0.5 if widths else None,
        key_norm=torch.rand(widths[1]) + 0.5 if widths else None,
    )
    by = angles(torch.rand(8), before, count, torch.float32)
    qkv, room = torch.randn(batch, count, 8, 16), before + count + 3

    def cache() -> tuple[Tensor, Tensor | None]:
        held = torch.zeros(batch, 4, room, 16, dtype=torch.int8 if codes else torch.float32)
        return held, torch.zeros(batch, 4, room) if codes else None

    def up_to(end: int, held: Tensor, scales: Tensor | None) -> Positions:
        parts = [held[:, :2, :end], held[:, 2:, :end]]
        if scales is None:
            return Positions(held, *parts)
        return Positions(held, *parts, scales, scales[:, :2, :end], scales[:, 2:, :end])

    together, alone = cache(), cache()
    rotated = qkv.clone()
    functions.store(rotated, heads, by, up_to(before + count, *together))
    for at in range(count):
        one = qkv[:, at].flatten(1).clone()
        angle = by[0][at : at + 1], by[1][at : at + 1]
        functions.attend(one, heads, angle, up_to(before + at + 1, *alone))
        assert torch.equal(one[:, : 6 * 16], rotated[:, at, :6].flatten(1))
    for one, other in zip(together, alone, strict=True):
        assert one is other is None or torch.equal(one, other)
    assert together[0].any()


@pytest.mark.parametrize(
    "row",
    [
        [0.0, 0.0, 0.0, -0.0],
        [1e-45, -1e-44, 0.0, 3e-45],
        [3e38, -3.4e38, 1.0, 0.0],
        [math.inf, 1.0, -2.0, 0.0],
        [1.0, math.nan, -2.0, 0.0],
        [127.0, 0.5, 1.5, -2.5],
        [-1e-39, 2e-39, 3e-40, 1e-38],
    ],
)
def test_stored_codes_are_those_of_the_definition(functions: Native, row: list[float]) -> None:
    by = torch.ones(1, 1, 4), torch.zeros(1, 1, 4)
    codes, scales = torch.zeros(1, 2, 1, 4, dtype=torch.int8), torch.zeros(1, 2, 1)
    positions = Positions(codes, codes[:, :1], codes[:, 1:], scales, scales[:, :1], scales[:, 1:])
    given = torch.tensor([[[1.0, 2.0, 3.0, 4.0], row, row]])
    # 0 times inf is NaN: only a value is stored as it was given
    functions.attend(given.flatten(1).clone(), heads_of(1, 1, 4), by, positions)
    expected_codes, expected_scales, _ = quantize(given[:, 2], "int8")
    assert torch.equal(codes[:, 1, 0], expected_codes)
    torch.testing.assert_close(scales[:, 1, 0], expected_scales, rtol=0, atol=0, equal_nan=True)


GEMMA = Sizes(
    attention_factor=0.3, score_cap=1.5, residual_factor=0.7, activation="gelu_pytorch_tanh"
)


@pytest.mark.parametrize(
    ("window", "heads_norm", "biased", "sizes", "norms"),
    [
        (None, None, False, Sizes(), "before"),
        (5, "each", True, Sizes(), "before"),
        (5, "each", True, GEMMA, "around"),
        (None, "whole", False, Sizes(), "behind"),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_whole_layer_has_the_bits_of_its_parts(
    functions: Native,
    window: int | None,
    heads_norm: str | None,
    biased: bool,
    sizes: Sizes,
    norms: str,
    batch: int,
) -> None:
    torch.manual_seed(2)
    config = cast(DecoderConfig, sizes)

    def linear(rows: int, columns: int, scheme: str) -> Callable[[Tensor], Tensor]:
        parsed, values = parse_scheme(scheme), torch.randn(rows, columns) * 0.2
        weight = prepare(encode(values, parsed, *fit(values, parsed, "absmax")))
        return PackedLinear(weight, torch.randn(rows) if biased else None).forward

    def norm(size: int) -> Norm:
        return Norm(weight=torch.rand(size) + 0.5, epsilon=1e-5)

    def layer() -> Layer:
        torch.manual_seed(3)
        before, behind = norms != "behind", norms != "before"
        widths = {"each": (16, 16), "whole": (64, 32)}.get(heads_norm or "")
        return Layer(
            config=config,
            window=window,
            attention_norm=norm(64) if before else None,
            attention_output_norm=norm(64) if behind else None,
            mlp_output_norm=norm(64) if behind else None,
            qkv=linear((4 + 2 * 2) * 16, 64, "nonary-g32"),
            query_norm=norm(widths[0]) if widths else None,
            key_norm=norm(widths[1]) if widths else None,
            output=linear(64, 64, "ternary-g64"),
            mlp_norm=norm(64) if before else None,
            mlp=Gated(
                gate_up=linear(2 * 96, 64, "int4-g32"),
                down=linear(64, 96, "int8-channel"),
                activation=config.activation,
            ),
        )

    whole, parts = layer(), layer()
    vars(parts)["whole"] = None
    assert whole.whole is not None
    cache = torch.randn(2, batch, 2, 12, 16)
    hidden = torch.randn(batch, 64)
    by = angles(torch.rand(8), 8, 1, torch.float32)
    step = Step(batch=batch, angles=(by,), masks={}, native=functions)
    found = []
    for each in (whole, parts):
        state, (keys, values) = hidden.clone(), cache.clone()
        each.forward_(state, step, Positions(keys, keys[:, :, :9], values[:, :, :9]))
        found.append((state, keys, values))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(found[0][0], hidden)
    assert not torch.equal(found[0][1], cache[0])


def test_a_layer_that_is_more_than_packed_products_stays_in_parts(functions: Native) -> None:
    parsed, values = parse_scheme("nonary-g32"), torch.randn(64, 64)
    weight = prepare(encode(values, parsed, *fit(values, parsed, "absmax")))
    plain = PackedLinear(weight).forward
    heads = heads_of(2, 1, 16)
    norm, other_norm = (Norm(weight=torch.ones(64), epsilon=value) for value in (1e-5, 1e-6))

    def found(linears: list[Linear], **how: Any) -> NativeLayer | None:
        usual = {"norms": (norm, None, norm, None), "activation": "silu", "factor": 1.0}
        return native_layer(functions, linears=linears, heads=heads, **{**usual, **how})

    assert found([plain] * 4) is not None
    turned = PackedLinear(weight, None, InputTransform(hadamard=32)).forward
    for other in (turned, SideBySide((plain,))):
        assert found([plain, plain, other, plain]) is None
    assert found([plain] * 4, activation="relu") is None
    assert found([plain] * 4, norms=(norm, None, norm, other_norm)) is None
