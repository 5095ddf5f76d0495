"""RTN: what the formats define, under each fit, and its refusals."""

import pytest
import torch
from torch import Tensor

from tercet.compress.ptq import row_blocks, rtn
from tercet.errors import FormatError
from tercet.formats import encode, fit, parse_scheme


def heavy_tailed(rows: int, columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).pow(3) * 0.02


@pytest.mark.parametrize("method", ["mse", "absmax", "absmean"])
@pytest.mark.parametrize("name", ["ternary", "nonary-g32", "int4"])
def test_it_is_the_encoding_under_that_fit(name: str, method: str) -> None:
    weight, scheme = heavy_tailed(5, 100), parse_scheme(name)
    packed = rtn.quantize(weight, scheme, fit=method)
    packed.validate()
    assert torch.equal(
        packed.dequantize(), encode(weight, scheme, *fit(weight, scheme, method)).dequantize()
    )


def test_ternary_absmean_by_hand() -> None:
    weight = torch.tensor([[0.9, -0.2, 0.1, -1.2], [0.0, 0.0, 0.0, 0.0]])
    packed = rtn.quantize(weight, parse_scheme("ternary-channel-float32"), fit="absmean")
    expected = torch.tensor([[0.6, 0, 0, -0.6], [0, 0, 0, 0]])
    torch.testing.assert_close(packed.dequantize(), expected)


def test_importance_lowers_the_weighted_error() -> None:
    weight, scheme = heavy_tailed(64, 128), parse_scheme("int3")
    importance = torch.rand(128, generator=torch.Generator().manual_seed(1)).pow(4) * 100

    def weighted(importance_given: Tensor | None) -> float:
        error = rtn.quantize(weight, scheme, importance=importance_given).dequantize() - weight
        return float((error.square() * importance).sum())

    assert weighted(importance) < 0.9 * weighted(None)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (1, 1), (1, 65), (2, 63)])
@pytest.mark.parametrize("name", ["ternary", "nonary", "int4-asym", "int4-hqq", "int8", "nvfp4"])
def test_degenerate_shapes(name: str, shape: tuple[int, int]) -> None:
    packed = rtn.quantize(heavy_tailed(*shape), parse_scheme(name))
    packed.validate()
    assert packed.dequantize().shape == shape


def test_refusals_name_the_tensor() -> None:
    scheme, weight = parse_scheme("int4"), torch.ones(2, 64)
    broken = weight.clone()
    broken[0, 0] = torch.nan
    with pytest.raises(FormatError, match=r"blk\.1: 1 of 128 values are NaN or inf"):
        rtn.quantize(broken, scheme, name="blk.1")
    with pytest.raises(FormatError, match="importance weighs the search of fit 'mse', got fit 'ab"):
        rtn.quantize(weight, scheme, fit="absmax", importance=torch.ones(64))
    with pytest.raises(FormatError, match=r"blk\.1: importance has shape \[3\]"):
        rtn.quantize(weight, scheme, importance=torch.ones(3), name="blk.1")
    with pytest.raises(FormatError, match="importance has values that are negative, NaN or inf"):
        rtn.quantize(weight, scheme, importance=-torch.ones(64))
    with pytest.raises(FormatError, match="unknown scale fit 'mes': did you mean 'mse'"):
        rtn.quantize(weight, scheme, fit="mes")


@pytest.mark.parametrize("name", ["int4-g16", "ternary-channel", "int3-g16-asym", "nvfp4"])
@pytest.mark.parametrize("fit", ["mse", "absmax"])
def test_rows_in_blocks_are_the_whole(name: str, fit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(50, 32, generator=torch.Generator().manual_seed(0))
    whole = rtn.quantize(weight, parse_scheme(name), fit)
    monkeypatch.setitem(row_blocks.WEIGHTS_AT_ONCE, "cpu", 32 * 7)
    found = rtn.quantize(weight, parse_scheme(name), fit)
    found.validate()
    assert found.shape == whole.shape
    for part, tensor in whole.parts().items():
        assert torch.equal(
            found.parts()[part].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
        ), part
