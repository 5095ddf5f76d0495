"""The C++ step against the same formulas in float64 torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from tercet.formats import encode, fit, parse_scheme
from tercet.models.decoder.config import DecoderConfig
from tercet.models.decoder.layer import Layer, Norm, Step
from tercet.models.decoder.linear import SideBySide
from tercet.models.decoder.native_layer import native_layer
from tercet.models.decoder.one_token import Heads, Native, native
from tercet.models.decoder.rope import angles, rotate_
from tercet.models.input_transform import InputTransform
from tercet.models.packed_modules import PackedLinear
from tercet.packed_weight import prepare


@dataclass(frozen=True)
class Sizes:
    """What a layer reads of its configuration."""

    heads: int = 4
    key_value_heads: int = 2
    head_dim: int = 16
    norm_epsilon: float = 1e-5


@pytest.fixture
def functions() -> Native:
    found = native()
    assert found is not None
    return found


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("count", [1, 15, 16, 33, 576])
def test_add_norm(functions: Native, count: int) -> None:
    hidden, update, weight = torch.randn(3, count), torch.randn(3, count), torch.rand(count)
    total = hidden.double() + update.double()
    found = functions.add_norm_(hidden, update, weight, 1e-5)
    close(hidden, total)
    close(found, rms_norm(total, (count,), weight.double(), 1e-5))
    before = hidden.clone()
    again = functions.add_norm_(hidden, None, weight, 1e-5)
    assert torch.equal(hidden, before)
    torch.testing.assert_close(again, found)


def test_silu_gate_over_the_whole_range(functions: Native) -> None:
    gate = torch.cat((torch.linspace(-120, 120, 9001), torch.tensor([0.0, 1e-30, -3e4, 3e4])))
    up = torch.rand_like(gate) + 0.5
    found = functions.silu_gate(torch.cat((gate, up)).expand(2, -1).contiguous())
    close(found, (silu(gate.double()) * up.double()).expand(2, -1))


@pytest.mark.parametrize("dim", [2, 6, 16, 64, 80])
@pytest.mark.parametrize(("heads", "key_value"), [(1, 1), (6, 2)])
@pytest.mark.parametrize(("length", "window"), [(1, None), (37, None), (37, 5), (4000, None)])
def test_attend(
    functions: Native, dim: int, heads: int, key_value: int, length: int, window: int | None
) -> None:
    torch.manual_seed(1)
    # room behind the last position, and other heads between: strides as in the cache
    cache = torch.randn(2, 2 * key_value, length + 3, dim)
    keys, values = cache[:, :key_value, :length], cache[:, key_value:, :length]
    qkv = torch.randn(2, heads + 2 * key_value, dim)
    norms = torch.rand(2, dim) + 0.5
    by = angles(torch.rand(dim // 2), length - 1, 1, torch.float32)

    query, key, value = qkv.double().split([heads, key_value, key_value], 1)
    rotated = [
        rms_norm(x, (dim,), norm.double(), 1e-5).contiguous()
        for x, norm in zip((query, key), norms, strict=True)
    ]
    for x in rotated:
        rotate_(x, (by[0][0].double(), by[1][0].double()))
    all_keys = torch.cat((keys[:, :, :-1].double(), rotated[1].unsqueeze(2)), 2)
    all_values = torch.cat((values[:, :, :-1].double(), value.unsqueeze(2)), 2)
    first = 0 if window is None else length - window
    expected = scaled_dot_product_attention(
        rotated[0].unsqueeze(2), all_keys[:, :, first:], all_values[:, :, first:], enable_gqa=True
    )
    shape = Heads(
        count=heads,
        key_value=key_value,
        dim=dim,
        window=window,
        query_norm=norms[0],
        key_norm=norms[1],
        epsilon=1e-5,
    )
    rest = cache[:, :, length:].clone()
    found = functions.attend(qkv.flatten(1), shape, by, keys, values)
    close(found, expected.flatten(1))
    close(keys, all_keys)
    close(values, all_values)
    assert torch.equal(cache[:, :, length:], rest)


@pytest.mark.parametrize(("window", "normed", "biased"), [(None, False, False), (5, True, True)])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_whole_layer_has_the_bits_of_its_parts(
    functions: Native, window: int | None, normed: bool, biased: bool, batch: int
) -> None:
    torch.manual_seed(2)
    config = cast(DecoderConfig, Sizes())

    def linear(rows: int, columns: int, scheme: str) -> Callable[[Tensor], Tensor]:
        parsed, values = parse_scheme(scheme), torch.randn(rows, columns) * 0.2
        weight = prepare(encode(values, parsed, *fit(values, parsed, "absmax")))
        return PackedLinear(weight, torch.randn(rows) if biased else None).forward

    def norm(size: int) -> Norm:
        return Norm(weight=torch.rand(size) + 0.5, epsilon=1e-5)

    def layer() -> Layer:
        torch.manual_seed(3)
        return Layer(
            config=config,
            window=window,
            attention_norm=norm(64),
            qkv=linear((4 + 2 * 2) * 16, 64, "nonary-g32"),
            query_norm=norm(16) if normed else None,
            key_norm=norm(16) if normed else None,
            output=linear(64, 64, "ternary-g64"),
            mlp_norm=norm(64),
            gate_up=linear(2 * 96, 64, "int4-g32"),
            down=linear(64, 96, "int8-channel"),
        )

    whole, parts = layer(), layer()
    vars(parts)["whole"] = None
    assert whole.whole is not None
    cache = torch.randn(2, batch, 2, 12, 16)
    hidden = torch.randn(batch, 64)
    by = angles(torch.rand(8), 8, 1, torch.float32)
    step = Step(batch=batch, angles=by, masks={}, native=functions)
    found = []
    for each in (whole, parts):
        state, (keys, values) = hidden.clone(), cache.clone()
        each.forward_(state, step, keys, keys[:, :, :9], values[:, :, :9])
        found.append((state, keys, values))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(found[0][0], hidden)
    assert not torch.equal(found[0][1], cache[0])


def test_a_layer_that_is_more_than_packed_products_stays_in_parts(functions: Native) -> None:
    parsed, values = parse_scheme("nonary-g32"), torch.randn(64, 64)
    weight = prepare(encode(values, parsed, *fit(values, parsed, "absmax")))
    plain = PackedLinear(weight).forward
    heads = Heads(
        count=2, key_value=1, dim=16, window=None, query_norm=None, key_norm=None, epsilon=1e-5
    )
    norms = (torch.ones(64), torch.ones(64))
    assert native_layer(functions, [plain] * 4, norms, 1e-5, heads) is not None
    turned = PackedLinear(weight, None, InputTransform(hadamard=32)).forward
    for other in (turned, SideBySide((plain,))):
        linears = [plain, plain, other, plain]
        assert native_layer(functions, linears, norms, 1e-5, heads) is None
