"""SmoothQuant: the formula, the same layer, and a lower error of 8-bit products."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.compress.ptq import smoothquant
from tercet.compress.ptq.smoothquant import quantize_activation, smoothing_scale
from tercet.errors import FormatError
from tercet.formats import parse_scheme

INT8 = parse_scheme("int8-channel")


def normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def outlier_inputs(tokens: int, columns: int) -> Tensor:
    x = normal(tokens, columns, 7)
    x[:, :: columns // 4] *= 60
    return x


def product_error(x: Tensor, weight: Tensor, scale: Tensor) -> float:
    """Squared error of the W8A8 product against float64, relative to the product."""
    packed = smoothquant.quantize(weight, INT8, scale)
    packed.validate()
    codes, step = quantize_activation(x / scale)
    found = (codes.double() * step.double()) @ packed.dequantize(torch.float64).T
    exact = x.double() @ weight.double().T
    return float((found - exact).square().sum() / exact.square().sum())


def test_the_formula() -> None:
    weights = [normal(8, 6), normal(5, 6, 1)]
    activation = torch.tensor([1.0, 2, 4, 8, 0.5, 100])
    for alpha in (0.0, 0.3, 1.0):
        largest = torch.cat(weights).abs().amax(0).double()
        expected = activation.double() ** alpha / largest ** (1 - alpha)
        found = smoothing_scale(weights, activation, alpha)
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)


def test_half_makes_ranges_equal() -> None:
    x, weight = outlier_inputs(64, 32), normal(16, 32)
    scale = smoothing_scale([weight], x.abs().amax(0))
    torch.testing.assert_close((x / scale).abs().amax(0), (weight * scale).abs().amax(0))


def test_the_error_of_8_bit_products_falls_on_outlier_channels() -> None:
    x, weight = outlier_inputs(128, 64), normal(48, 64) * 0.05
    plain = product_error(x, weight, torch.ones(64))
    smooth = product_error(x, weight, smoothing_scale([weight], x.abs().amax(0)))
    assert smooth < 0.3 * plain


def test_silent_channels_and_zero_weights_keep_their_scale() -> None:
    weight = normal(4, 3)
    weight[:, 2] = 0
    found = smoothing_scale([weight], torch.tensor([0.0, 3.0, 5.0]))
    assert found[0] == 1
    assert found[2] == 1
    assert smoothing_scale([torch.zeros(0, 3)], torch.ones(3)).tolist() == [1, 1, 1]
    assert smoothing_scale([torch.zeros(2, 0)], torch.ones(0)).tolist() == []
    assert smoothing_scale([torch.full((1, 1), 4.0)], torch.ones(1)).tolist() == [0.5]


def test_activation_codes_by_hand() -> None:
    codes, scale = quantize_activation(torch.tensor([[127.0, -63.5, 0.5, 1.5], [0, 0, 0, 0]]))
    assert codes.dtype == torch.int8
    assert codes.tolist() == [[127, -64, 0, 2], [0, 0, 0, 0]]
    assert scale.tolist() == [[1.0], [0.0]]


@settings(deadline=None)
@given(tokens=st.integers(0, 4), columns=st.integers(0, 40), seed=st.integers(0, 99))
def test_activation_error_is_half_a_step(tokens: int, columns: int, seed: int) -> None:
    x = normal(tokens, columns, seed).reshape(1, tokens, columns) * 10.0 ** (seed % 7 - 3)
    codes, scale = quantize_activation(x)
    assert codes.shape == x.shape
    assert scale.shape == (1, tokens, 1)
    error = (codes.double() * scale.double() - x.double()).abs()
    assert (error <= scale.double() * 0.5 * (1 + 1e-5)).all()


def test_refusals() -> None:
    weight = torch.ones(2, 3)
    with pytest.raises(FormatError, match="no weights to smooth"):
        smoothing_scale([], torch.ones(3))
    with pytest.raises(FormatError, match=r"alpha 1\.5: must be from 0 to 1"):
        smoothing_scale([weight], torch.ones(3), 1.5)
    with pytest.raises(FormatError, match=r"weight 1: activation_absmax has shape \[3\]"):
        smoothing_scale([weight, torch.ones(2, 4)], torch.ones(3))
    with pytest.raises(FormatError, match=r"up: scale has shape \[4\], the weight has 3 columns"):
        smoothquant.quantize(weight, INT8, torch.ones(4), name="up")
    broken = weight.clone()
    broken[1, 1] = torch.nan
    with pytest.raises(FormatError, match="up: 1 of 6 values are NaN or inf"):
        smoothquant.quantize(broken, INT8, torch.ones(3), name="up")
