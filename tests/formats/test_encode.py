"""Encode: nearest level under stored scales, refusals, idempotence, degenerate shapes."""

from math import inf, isnan, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.errors import FormatError
from tercet.formats import PackedTensor, Scheme, encode, fit, from_codes, parse_scheme
from tercet.formats.encode import effective_scale, round_scale

DENSE_SCHEMES = (
    "ternary",
    "ternary-g32-bits2",
    "ternary-channel-float32",
    "nonary-g16",
    "nonary-tensor-bits4",
    "int2-g8-asym",
    "int3-b4x8",
    "int4-g64-hqq",
    "int4-g8-hqq32-bfloat16",
    "int8-channel",
    "int8-g16-asym-float32",
    "fp8_e4m3",
    "fp8_e5m2-g8",
    "fp8_e4m3-g32-e8m0",
    "mxfp4",
    "nvfp4",
)


def normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.05


def fitted(weight: Tensor, name: str, method: str = "mse") -> PackedTensor:
    scheme = parse_scheme(name)
    return encode(weight, scheme, *fit(weight, scheme, method))


def brute_force(weight: Tensor, packed: PackedTensor) -> Tensor:
    """The least distance, in float64, of each weight to any level under its stored scale."""
    scheme, (rows, columns) = packed.scheme, packed.shape
    br, bk = scheme.scaling.block(packed.shape)
    levels = [level for level in scheme.element.levels if not isnan(level)]
    least = torch.empty(rows, columns, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            place = (i // br, j // bk)
            scale = float(packed.scale[place])
            scale *= float(packed.second) if packed.second is not None else 1
            zero = float(packed.zero[place]) if packed.zero is not None else 0
            values = ((level - zero) * scale for level in levels)
            least[i, j] = min(abs(value - float(weight[i, j])) for value in values)
    return least


@pytest.mark.parametrize("name", DENSE_SCHEMES)
def test_every_weight_gets_the_nearest_level(name: str) -> None:
    weight = normal(5, 37)
    packed = fitted(weight, name)
    packed.validate()
    distance = (packed.dequantize(torch.float64) - weight.double()).abs()
    # float32 arithmetic may pick the other side of a near-tie, never a level farther than that
    torch.testing.assert_close(distance, brute_force(weight, packed), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", DENSE_SCHEMES)
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(0, 5), columns=st.integers(0, 70), seed=st.integers(0, 99))
def test_encoding_what_was_decoded_changes_nothing(
    name: str, rows: int, columns: int, seed: int
) -> None:
    packed = fitted(normal(rows, columns, seed), name, "absmax")
    packed.validate()
    assert packed.dequantize().shape == (rows, columns)
    zero = packed.zero.float() if packed.zero is not None else None
    scale = packed.scale.float() if packed.second is None else packed.scale.float() * packed.second
    again = encode(packed.dequantize(), packed.scheme, scale, zero)
    assert torch.equal(again.codes, packed.codes)
    assert torch.equal(again.scale.float(), packed.scale.float())
    assert torch.equal(again.dequantize(), packed.dequantize())


@pytest.mark.parametrize("name", ["ternary-g8-sparse_2_4", "ternary-g8-sparse_3_4-float32"])
def test_pruned_weights_survive_sparse_storage(name: str) -> None:
    scheme = parse_scheme(name)
    kept = {"sparse_2_4": 2, "sparse_3_4": 3}[scheme.storage.name]
    fours = torch.zeros(6, 8, 4)
    fours[..., :kept] = torch.where(normal(6, 8)[..., None] > 0, 0.5, -0.5)
    weight = fours.reshape(6, 32)
    packed = encode(weight, scheme, *fit(weight, scheme, "absmax"))
    packed.validate()
    assert torch.equal(packed.dequantize(), weight)
    with pytest.raises(FormatError, match=f"prune to {kept}:4 first"):
        encode(torch.ones(1, 8), scheme, torch.ones(1, 1))


@pytest.mark.parametrize("method", ["absmax", "mse"])
@pytest.mark.parametrize("name", DENSE_SCHEMES)
def test_all_zero_groups_stay_exact_zero(name: str, method: str) -> None:
    weight = normal(8, 128)
    weight[:4, 64:] = 0
    weight[5] = 0
    packed = fitted(weight, name, method)
    packed.validate()
    decoded = packed.dequantize()
    assert decoded.isfinite().all()
    assert (decoded[5] == 0).all()
    if packed.scheme.scaling.block(packed.shape)[1] <= 64:
        assert (decoded[:4, 64:] == 0).all()


@pytest.mark.parametrize("name", DENSE_SCHEMES)
def test_a_tensor_of_zeros_stays_exact_zero(name: str) -> None:
    packed = fitted(torch.zeros(3, 70), name)
    packed.validate()
    assert torch.equal(packed.dequantize(), torch.zeros(3, 70))


def test_ties_go_to_the_even_level_for_any_scale() -> None:
    scheme = parse_scheme("int4-channel-float32")
    scale = torch.rand(500, 1, generator=torch.Generator().manual_seed(3)) + 0.01
    weight = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5]]) * scale
    exact = (weight.double() / scale.double()).frac().abs() == 0.5
    levels = scheme.element.decode(encode(weight, scheme, scale).unpack())
    expected = torch.tensor([0.0, 2, 2, 0, -2, -2]).expand_as(levels)
    assert exact.sum() > 1000
    assert torch.equal(levels[exact], expected[exact])


def test_dequantize_is_level_minus_zero_times_scale() -> None:
    scheme = parse_scheme("int4-g2-hqq")
    codes = torch.tensor([[8, 9, 0, 15, 7]], dtype=torch.uint8)
    scale = torch.tensor([[0.5, 2.0, 0.25]], dtype=torch.float16)
    zero = torch.tensor([[0.5, -1.0, 0.0]], dtype=torch.float16)
    packed = from_codes(codes, scheme, scale, zero)
    packed.validate()
    assert packed.codes.tolist() == [[0x98, 0xF0, 0x07]]
    assert packed.dequantize().tolist() == [[-0.25, 0.25, -14.0, 16.0, -0.25]]
    assert packed.dequantize(torch.bfloat16).dtype == torch.bfloat16


def test_blocks_share_scales_across_rows() -> None:
    weight = torch.tensor([[1.0, 1, 2], [1, 1, 2], [4, 4, 8]])
    packed = fitted(weight, "ternary-b2x2", "absmax")
    assert packed.scale.tolist() == [[1, 2], [4, 8]]
    assert torch.equal(packed.dequantize(), weight)


def test_nvfp4_scales_are_e4m3_under_one_float32() -> None:
    weight = torch.zeros(2, 32)
    weight[0, 0], weight[1, 16] = 6 * 448 * 2.0**-10, -6 * 2.0**-10
    packed = fitted(weight, "nvfp4", "absmax")
    assert packed.second is not None
    assert float(packed.second) == 2.0**-10
    assert packed.scale.float().tolist() == [[448, 0], [0, 1]]
    torch.testing.assert_close(packed.dequantize(), weight)


@pytest.mark.parametrize("largest", [224, 231, 232, 233, 240, 448, 449, 464, 464.1, 1e-30, 1e30])
def test_nvfp4_has_a_power_of_two_for_all(largest: float) -> None:
    """Its reciprocal is exact, and rounded scales have the same one again."""
    scheme, scale = parse_scheme("nvfp4"), torch.tensor([[largest, largest / 7]])
    stored, second = round_scale(scale, scheme, "w")
    assert second is not None
    assert torch.frexp(second).mantissa == 0.5
    torch.testing.assert_close(stored.float() * second, scale, rtol=2**-4, atol=0)
    assert 240 <= float(stored.float().max()) <= 448
    again, same = round_scale(effective_scale(stored, second), scheme, "w")
    assert same == second
    assert torch.equal(again.float(), stored.float())


def test_mxfp4_scale_is_the_next_power_of_two() -> None:
    scheme = parse_scheme("mxfp4")
    scale = torch.tensor([[1.0], [1.001], [0.125], [0.3], [0.0]])
    packed = encode(torch.zeros(5, 32), scheme, scale)
    assert packed.scale.float().flatten().tolist() == [1, 2, 0.125, 0.5, 2.0**-127]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_float_dtypes(dtype: torch.dtype) -> None:
    weight = normal(4, 64).to(dtype)
    assert torch.equal(fitted(weight, "int4").codes, fitted(weight.float(), "int4").codes)


def test_non_contiguous_weights() -> None:
    weight = normal(64, 6).T
    assert torch.equal(fitted(weight, "int4").codes, fitted(weight.contiguous(), "int4").codes)


def test_subnormal_float32_scales_still_decode_to_what_was_encoded() -> None:
    scheme = parse_scheme("int4-channel-float32")
    scale = torch.tensor([[1e-40]])
    weight = torch.tensor([[3.0, -2.0, 0.0]]) * scale
    levels = scheme.element.decode(encode(weight, scheme, scale).unpack())
    assert levels.tolist() == [[3, -2, 0]]


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_nan_and_inf_are_refused_by_name_and_place(bad: float) -> None:
    weight = torch.zeros(3, 64)
    weight[1, 7] = bad
    weight[2, 9] = bad
    message = r"blk\.0\.q: 2 of 192 values are NaN or inf, the first at \[1, 7\]: repair the source"
    with pytest.raises(FormatError, match=message):
        encode(weight, parse_scheme("int4"), torch.ones(3, 1), name="blk.0.q")


def test_a_weight_that_is_no_float_matrix_is_refused() -> None:
    scheme = parse_scheme("int4")
    with pytest.raises(FormatError, match=r"head: a weight is a matrix \[N, K\], got shape \[4\]"):
        encode(torch.ones(4), scheme, torch.ones(1, 1), name="head")
    with pytest.raises(FormatError, match=r"a weight is floating point, got torch\.int64"):
        encode(torch.ones(1, 64, dtype=torch.int64), scheme, torch.ones(1, 1))


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("int4", 7e4),
        ("int4", inf),
        ("int4-bfloat16", 3.4e38),
        ("fp8_e4m3-g32-e8m0", 3e38),
        ("int4-e4m3", 500.0),
    ],
)
def test_a_scale_that_does_not_fit_is_refused(name: str, scale: float) -> None:
    scheme: Scheme = parse_scheme(name)
    scales = torch.full(scheme.scaling.scale_shape((1, 32)), scale)
    with pytest.raises(FormatError, match=f"up: a scale of .* does not fit {scheme.scaling.dtype}"):
        encode(torch.zeros(1, 32), scheme, scales, name="up")


def test_weights_so_small_that_all_scales_would_be_0_are_refused() -> None:
    weight = torch.full((2, 64), 1e-9)
    weight[1] = 0
    scale = fit(weight, parse_scheme("int4-g32"), "absmax")[0]
    with pytest.raises(FormatError, match=r"up: the largest scale is .*, which is 0 in float16"):
        encode(weight, parse_scheme("int4-g32"), scale, name="up")
    for name in ("int4-g32-bfloat16", "int4-g32-float32"):
        decoded = encode(weight, parse_scheme(name), scale).dequantize()
        torch.testing.assert_close(decoded, weight, rtol=2**-8, atol=0.0)


def test_a_block_that_is_small_beside_others_may_be_0() -> None:
    scheme = parse_scheme("int4-g32")
    weight = torch.cat((torch.full((1, 32), 7.0), torch.full((1, 32), 1e-9)))
    decoded = encode(weight, scheme, fit(weight, scheme, "absmax")[0]).dequantize()
    assert decoded.tolist() == [[7.0] * 32, [0.0] * 32]


def test_a_huge_weight_is_refused_under_float16_scales() -> None:
    with pytest.raises(FormatError, match="does not fit float16: use a scheme with float32 scales"):
        fitted(torch.full((1, 64), 1e30), "int4")
    decoded = fitted(torch.full((1, 64), 1e30), "int4-float32", "absmax").dequantize()
    torch.testing.assert_close(decoded, torch.full((1, 64), 1e30))


@pytest.mark.parametrize("scale", [-1.0, nan])
def test_a_negative_or_nan_scale_is_refused(scale: float) -> None:
    with pytest.raises(FormatError, match="o: a scale is negative or NaN"):
        encode(torch.zeros(1, 64), parse_scheme("int4"), torch.full((1, 1), scale), name="o")


def test_scales_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(FormatError, match=r"scale has shape \[1, 1\].*needs \[1, 2\]"):
        encode(torch.zeros(1, 128), parse_scheme("int4"), torch.ones(1, 1))
    with pytest.raises(FormatError, match=r"zero has shape \[2, 1\].*needs \[1, 1\]"):
        encode(torch.zeros(1, 64), parse_scheme("int4-asym"), torch.ones(1, 1), torch.ones(2, 1))


def test_zero_points_are_wanted_or_refused() -> None:
    one = torch.ones(1, 1)
    with pytest.raises(FormatError, match="scheme 'int4-g64-asym' needs zero points"):
        encode(torch.zeros(1, 64), parse_scheme("int4-asym"), one)
    with pytest.raises(FormatError, match="scheme 'int4-g64' has no zero points"):
        encode(torch.zeros(1, 64), parse_scheme("int4"), one, one)
    with pytest.raises(FormatError, match="a zero point is NaN, inf or too large"):
        encode(torch.zeros(1, 64), parse_scheme("int4-hqq"), one, one * 1e6)


def test_integer_zero_points_are_rounded_and_clamped() -> None:
    scheme = parse_scheme("int4-g1-asym")
    zero = torch.tensor([[0.6, -200.0, 300.0, 2.5]])
    packed = encode(torch.zeros(1, 4), scheme, torch.ones(1, 4), zero)
    assert packed.zero is not None
    assert packed.zero.dtype == torch.int8
    assert packed.zero.tolist() == [[1, -128, 127, 2]]
