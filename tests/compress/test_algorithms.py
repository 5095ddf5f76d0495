"""Every algorithm in compress/ptq keeps the contract that the pipeline relies on."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tercet.compress.algorithm import Quantized, Statistics, stored_input_scale
from tercet.compress.ptq import algorithm, algorithms
from tercet.errors import FormatError, PlanError
from tercet.formats import parse_scheme
from tercet.models.input_transform import InputTransform

FORMATS = {"smoothquant": "int8-channel", "trit_planes": "nonary-g32", "hqq": "int4-g32-hqq"}


def inputs() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    channels = torch.randn(64, generator=generator).exp()
    return torch.randn(300, 64, generator=generator) * channels


def statistics_of(x: Tensor) -> Statistics:
    return Statistics(gram=x.T @ x / len(x), absmax=x.abs().amax(0), absmean=x.abs().mean(0))


def quantized(name: str, weights: dict[str, Tensor]) -> dict[str, Quantized]:
    chosen = algorithm(name)
    scheme = parse_scheme(FORMATS.get(name, "int4-g32"))
    return chosen.quantize(weights, statistics_of(inputs()), scheme, chosen.options())


def test_all_are_found() -> None:
    expected = {"rtn", "hqq", "gptq", "awq", "smoothquant", "hadamard", "trit_planes", "qat"}
    assert set(algorithms()) == expected
    assert {name for name, one in algorithms().items() if not one.needs_inputs} == {
        "rtn",
        "hqq",
        "qat",
    }


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"unknown algorithm 'gtpq'.*'gptq'"):
        algorithm("gtpq")


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_outputs_stay_close_and_reproduce(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = {n: torch.randn(16, 64, generator=generator) for n in ("q", "k")}
    before = {n: weight.clone() for n, weight in weights.items()}
    found = quantized(name, weights)
    assert list(found) == ["q", "k"]
    x = inputs()
    for key, result in found.items():
        assert torch.equal(weights[key], before[key])
        result.packed.validate(key)
        transform = InputTransform(
            scale=result.input_scale, hadamard=result.hadamard, activation=result.activation
        )
        y = x @ weights[key].T
        error = transform(x) @ result.packed.dequantize().T - y
        assert error.norm() < 0.25 * y.norm()
        if result.input_scale is not None:
            assert torch.equal(result.input_scale.half().float(), result.input_scale)
    again = quantized(name, weights)
    for key, result in found.items():
        for part, tensor in result.packed.parts().items():
            assert torch.equal(tensor, again[key].packed.parts()[part])


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_unknown_options_and_broken_weights_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="no_such_option"):
        algorithm(name).options.model_validate({"no_such_option": 1})
    broken = torch.ones(4, 64)
    broken[2, 3] = torch.nan
    with pytest.raises(FormatError, match="NaN or inf"):
        quantized(name, {"blk": broken})


def test_stored_input_scale_is_consistent_in_float16() -> None:
    divisor = torch.tensor([1.0, 3.0, 0.1, 1e-9, 1e9])
    kept, stored = stored_input_scale(divisor)
    assert torch.equal(stored.half().float(), stored)
    torch.testing.assert_close(kept * stored, torch.ones(5))
    torch.testing.assert_close(stored[:3], 1 / divisor[:3], rtol=1e-3, atol=0)
    assert stored[3:].tolist() == [65504.0, 2.0**-14]
