"""Trit planes: they recombine to the levels, and fitting them beats the algorithms below."""

import pytest
import torch
from torch import Tensor

from tercet.compress.ptq import gptq, quadratic, rtn, trit_planes
from tercet.errors import FormatError, PlanError
from tercet.formats import parse_scheme


def problem(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) * 0.05
    mix = torch.randn(columns, columns, generator=generator) / columns**0.5
    inputs = torch.randn(8 * columns, columns, generator=generator) @ (mix + torch.eye(columns))
    return weight, inputs.T @ inputs / len(inputs)


@pytest.mark.parametrize(("name", "count"), [("ternary-g32", 1), ("nonary-g32", 2)])
def test_planes_recombine_to_the_levels(name: str, count: int) -> None:
    weight, gram = problem(8, 70)
    packed = trit_planes.quantize(weight, gram, parse_scheme(name), trit_planes.Options())
    packed.validate()
    planes = trit_planes.planes(packed)
    assert len(planes) == count
    for plane in planes:
        assert plane.dtype == torch.int8
        assert set(plane.unique().tolist()) <= {-1, 0, 1}
    levels = sum(3**i * plane.float() for i, plane in enumerate(planes))
    scale = packed.scale.float().repeat_interleave(32, 1)[:, :70]
    assert torch.equal(levels * scale, packed.dequantize())


def test_planes_of_every_nonary_level_by_hand() -> None:
    scheme = parse_scheme("nonary-channel-float32")
    packed = rtn.quantize(torch.arange(-4.0, 5.0)[None], scheme, fit="absmax")
    low, high = trit_planes.planes(packed)
    assert low.tolist() == [[-1, 0, 1, -1, 0, 1, -1, 0, 1]]
    assert high.tolist() == [[-1, -1, -1, 0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize("name", ["ternary-g32", "nonary-g32", "ternary-channel"])
def test_it_beats_rtn_and_unrefined_gptq(name: str) -> None:
    weight, gram = problem(32, 128)
    scheme, damped = parse_scheme(name), quadratic.add_damping(gram, 0.05)

    def loss(quantized: Tensor) -> float:
        return quadratic.loss(weight, quantized, damped)

    fitted = loss(trit_planes.quantize(weight, gram, scheme, trit_planes.Options()).dequantize())
    once = trit_planes.Options(rounds=1)
    assert fitted <= loss(trit_planes.quantize(weight, gram, scheme, once).dequantize())
    unrefined = gptq.quantize(weight, gram, scheme, gptq.Options(refine=0))
    assert fitted < loss(unrefined.dequantize())
    assert fitted < 0.85 * loss(rtn.quantize(weight, scheme).dequantize())


def test_an_exact_ternary_weight_comes_back() -> None:
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(-1, 2, (6, 64), generator=generator).float()
    _, gram = problem(1, 64)
    packed = trit_planes.quantize(
        levels * 0.25, gram, parse_scheme("ternary-g32"), trit_planes.Options()
    )
    torch.testing.assert_close(packed.dequantize(), levels * 0.25, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("shape", [(1, 1), (2, 65), (0, 4), (3, 0)])
@pytest.mark.parametrize("name", ["ternary", "nonary", "nonary-tensor"])
def test_degenerate_shapes_dead_columns_and_zero_groups(name: str, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for given in (weight, torch.zeros(shape)):
        packed = trit_planes.quantize(
            given, torch.zeros(shape[1], shape[1]), parse_scheme(name), trit_planes.Options()
        )
        packed.validate()
        assert packed.dequantize().shape == shape
    assert torch.equal(packed.dequantize(), torch.zeros(shape))


@pytest.mark.parametrize("name", ["int4", "ternary-hqq", "mxfp4"])
def test_other_formats_are_refused(name: str) -> None:
    with pytest.raises(PlanError, match=r"blk\.1: trit_planes fits symmetric ternary and nonary"):
        trit_planes.quantize(
            torch.ones(2, 64), torch.eye(64), parse_scheme(name), trit_planes.Options(), "blk.1"
        )


def test_a_broken_weight_is_named() -> None:
    weight = torch.full((2, 4), torch.nan)
    with pytest.raises(FormatError, match=r"blk\.1: 8 of 8 values are NaN or inf"):
        trit_planes.quantize(
            weight, torch.eye(4), parse_scheme("ternary"), trit_planes.Options(), "blk.1"
        )
