"""AWQ: lower output error than RTN on correlated inputs with outlier channels."""

import pytest
import torch
from torch import Tensor

from tercet.compress.ptq import awq, rtn
from tercet.errors import FormatError
from tercet.formats import PackedTensor, parse_scheme


def normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def correlated_inputs(tokens: int, columns: int) -> Tensor:
    """Low-rank structure plus noise, with a few channels thirty times as loud as the rest."""
    x = normal(tokens, 8, 1) @ normal(8, columns, 2) * 0.5 + normal(tokens, columns, 3)
    x[:, :: max(columns // 5, 1)] *= 30
    return x


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.abs().mean(0), x.T @ x / len(x)


def output_error(x: Tensor, weight: Tensor, packed: PackedTensor, scale: Tensor) -> float:
    exact = x.double() @ weight.double().T
    found = (x.double() / scale.double()) @ packed.dequantize(torch.float64).T
    return float((found - exact).square().mean())


@pytest.mark.parametrize(
    ("name", "gain"), [("int3", 0.5), ("int4-g32", 0.5), ("int4-asym", 0.5), ("nonary", 0.5)]
)
def test_it_beats_rtn_on_outlier_channels(name: str, gain: float) -> None:
    x, scheme = correlated_inputs(256, 96), parse_scheme(name)
    weights = [normal(32, 96, 4) * 0.05, normal(16, 96, 5) * 0.05]
    magnitude, gram = statistics(x)
    scale = awq.search_scale(weights, scheme, magnitude, gram)
    ones = torch.ones(96)
    ours = theirs = 0.0
    for weight in weights:
        packed = awq.quantize(weight, scheme, scale, gram)
        packed.validate()
        ours += output_error(x, weight, packed, scale)
        theirs += output_error(x, weight, rtn.quantize(weight, scheme), ones)
    assert ours < gain * theirs
    assert scale[0] > 1.3 * scale.median()


@pytest.mark.parametrize("name", ["int3", "ternary", "int4-asym", "int4-channel", "int3-b4x32"])
def test_clipping_alone_is_never_worse_than_rtn(name: str) -> None:
    x, weight, scheme = correlated_inputs(200, 96), normal(24, 96, 4), parse_scheme(name)
    gram, ones = statistics(x)[1], torch.ones(96)
    clipped = output_error(x, weight, awq.quantize(weight, scheme, ones, gram), ones)
    plain = output_error(x, weight, rtn.quantize(weight, scheme), ones)
    assert clipped <= plain * (1 + 1e-4)


def test_the_scale_is_never_worse_than_none() -> None:
    x, scheme = normal(200, 64, 9), parse_scheme("int4")
    weight = normal(32, 64, 4)
    magnitude, gram = statistics(x)
    scale, ones = awq.search_scale([weight], scheme, magnitude, gram), torch.ones(64)
    found = output_error(x, weight, awq.quantize(weight, scheme, scale, gram), scale)
    plain = output_error(x, weight, awq.quantize(weight, scheme, ones, gram), ones)
    assert found <= plain * (1 + 1e-4)


def test_group_cost_is_the_quadratic_form_of_each_block() -> None:
    x, error, scheme = correlated_inputs(50, 10), normal(5, 10, 6), parse_scheme("int4-b2x4")
    gram = statistics(x)[1]
    padded = torch.zeros(6, 12)
    padded[:5, :10] = error
    blocks = padded.reshape(3, 2, 3, 4).transpose(1, 2).reshape(3, 3, 8)
    found = awq.group_cost(gram, scheme, (5, 10))(blocks)
    for row, column in ((0, 0), (1, 1), (2, 2)):
        columns = slice(4 * column, min(4 * column + 4, 10))
        part = error[2 * row : 2 * row + 2, columns].double()
        expected = ((part @ gram[columns, columns].double()) * part).sum()
        assert float(found[row, column]) == pytest.approx(float(expected), rel=1e-5)


def test_candidates_are_normalized_powers() -> None:
    activation, weight = torch.tensor([1.0, 4.0, 16.0]), torch.tensor([1.0, 1.0, 1.0])
    found = awq.candidates(activation, weight, 2)
    assert len(found) == 4
    torch.testing.assert_close(found[0], torch.tensor([0.5, 1.0, 2.0]))
    torch.testing.assert_close(found[2], torch.tensor([0.25, 1.0, 4.0]))
    for scale in found:
        assert float(scale.max() * scale.min()) == pytest.approx(1)


def test_silent_channels_stay_finite() -> None:
    x = correlated_inputs(100, 64)
    x[:, 7] = 0
    magnitude, gram = statistics(x)
    weight = normal(8, 64)
    scale = awq.search_scale([weight], parse_scheme("int4"), magnitude, gram)
    assert scale.isfinite().all()
    assert (scale > 0).all()
    awq.quantize(weight, parse_scheme("int4"), scale, gram).validate()


def test_no_activation_at_all_gives_ones() -> None:
    zeros = torch.zeros(64)
    scale = awq.search_scale([normal(4, 64)], parse_scheme("int4"), zeros, torch.zeros(64, 64))
    assert torch.equal(scale, torch.ones(64))


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (1, 1), (1, 65), (2, 30)])
def test_degenerate_shapes(shape: tuple[int, int]) -> None:
    weight, scheme = normal(*shape), parse_scheme("int4-g32-asym")
    magnitude, gram = statistics(correlated_inputs(20, shape[1]))
    scale = awq.search_scale([weight, torch.zeros_like(weight)], scheme, magnitude, gram)
    assert scale.shape == (shape[1],)
    packed = awq.quantize(weight, scheme, scale, gram)
    packed.validate()
    assert packed.shape == shape


def test_without_a_gram_it_is_rtn_of_the_scaled_weight() -> None:
    weight, scale = normal(4, 64), torch.rand(64) + 0.5
    found = awq.quantize(weight, parse_scheme("int4"), scale)
    assert torch.equal(found.codes, rtn.quantize(weight * scale, parse_scheme("int4")).codes)


def test_refusals() -> None:
    scheme, weight, gram = parse_scheme("int4"), torch.ones(2, 64), torch.eye(64)
    with pytest.raises(FormatError, match="no weights to scale"):
        awq.search_scale([], scheme, torch.ones(64), gram)
    with pytest.raises(FormatError, match=r"weight 0: activation_magnitude has shape \[3\]"):
        awq.search_scale([weight], scheme, torch.ones(3), gram)
    with pytest.raises(FormatError, match=r"Gram matrix has shape \[3, 3\], the weight has 64"):
        awq.search_scale([weight], scheme, torch.ones(64), torch.eye(3))
    with pytest.raises(FormatError, match="q: the Gram matrix has NaN or inf: check the calib"):
        awq.quantize(weight, scheme, torch.ones(64), gram * torch.nan, name="q")
    with pytest.raises(FormatError, match="q: 128 of 128 values are NaN or inf"):
        awq.quantize(weight * torch.nan, scheme, torch.ones(64), gram, name="q")
