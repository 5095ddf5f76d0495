"""fake_quantize: golden values, what is served, the papers' gradients, rounding at random."""

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tercet.errors import FormatError, UnsupportedError
from tercet.formats import encode, fit, parse_scheme
from tercet.kernel.select import load, using
from tercet.ops.fake_quantize import (
    FakeQuantized,
    changed_codes,
    count_changed,
    fake_quantize,
    fake_quantize_gradient,
)
from tercet.ops.fake_quantize.op import OP
from tercet.ops.fake_quantize.rule import rule_of

every_implementation = pytest.mark.parametrize("name", ["triton", "torch"])
interpreted = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN and inf
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STRETCHED = (
    "ternary-channel", "nonary-g32-bfloat16", "int2-channel-hqq-float32", "int3-g64-hqq",
    "int4-tensor-hqq32-float32",
)  # fmt: skip
SERVED = [
    *((scheme, method) for method in ("absmean", "absmax", "learned") for scheme in (
        "ternary-channel", "ternary-tensor-float32", "nonary-g128-bfloat16", "int2-g64",
        "int3-channel-float32", "int4-g32", "int8-channel",
    )),
    *((scheme, "stretched") for scheme in STRETCHED),
]  # fmt: skip


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quantized(
    name: str, weight: Tensor, step: Tensor | None = None, **options: object
) -> FakeQuantized:
    given = {key: v.to(DEVICE) if isinstance(v, Tensor) else v for key, v in options.items()}
    with using(OP, load(OP, name)):
        found = fake_quantize(
            weight.to(DEVICE),
            step.to(DEVICE) if step is not None else None,
            **given,  # pyright: ignore[reportArgumentType]
        )
    fake = found.fake.cpu() if found.fake is not None else None
    return FakeQuantized(found.codes.cpu(), found.scale.cpu(), fake)


def steps(weight: Tensor, scheme: str, method: str) -> Tensor | None:
    """About what training would learn, and different for every block."""
    rule = rule_of(scheme, method)
    if not rule.learned:
        return None
    size = normal(*rule.scale_shape(*weight.shape), seed=5).abs() + 1
    return size * rule.divisor / (1 + rule.highest)


@every_implementation
def test_golden_ternary(name: str) -> None:
    """BitNet b1.58: the mean of |w| is 1, ties go to even."""
    weight = torch.tensor([[2.0, -1.5, 0.5, 0.0, -1.0, 0.51, 1.0, -1.49], [0.0] * 8])
    found = quantized(name, weight, scheme="ternary-channel-float32", fake_dtype=torch.float32)
    assert found.scale.tolist() == [[1.0], [0.0]]
    assert found.codes.tolist() == [[1, -1, 0, 0, -1, 1, 1, -1], [0] * 8]
    assert found.fake is not None
    assert torch.equal(found.fake, found.codes * found.scale)
    assert found.codes.dtype == torch.int8


@every_implementation
def test_golden_nonary_groups_with_a_ragged_end(name: str) -> None:
    """Twice the mean over the highest level, 4; the last group has 3 columns only."""
    weight = torch.cat((torch.full((1, 32), 2.0), torch.tensor([[3.0, -6.0, 0.75]])), 1)
    found = quantized(name, weight, scheme="nonary-g32-float32", method="absmean")
    assert found.scale.tolist() == [[1.0, 1.625]], "2 * 2 / 4 and 2 * 3.25 / 4"
    assert found.codes.tolist() == [[2] * 32 + [2, -4, 0]]
    found = quantized(name, weight, scheme="nonary-g32-float32", method="absmax")
    assert found.scale.tolist() == [[0.5, 1.5]]
    assert found.codes.tolist() == [[4] * 32 + [2, -4, 0]], "0.75 / 1.5 is a tie"


@every_implementation
def test_golden_tensor(name: str) -> None:
    weight = torch.tensor([[1.0, -7.0], [3.5, 0.4]])
    found = quantized(name, weight, scheme="int4-tensor-float32", method="absmax")
    assert found.scale.tolist() == [[1.0]]
    assert found.codes.tolist() == [[1, -7], [4, 0]]


@every_implementation
@pytest.mark.parametrize(("scheme", "method"), SERVED)
def test_what_is_trained_is_what_is_served(name: str, scheme: str, method: str) -> None:
    """Codes, scales and values are those that `formats` writes and reads back, to the bit."""
    kind = parse_scheme(scheme)
    weight = normal(7, 200, seed=3) * torch.exp2(torch.arange(7.0) - 3)[:, None]
    # ties between levels, and their neighbours: what a product with 1 / scale would get wrong
    exact = quantized(name, weight, steps(weight, scheme, method), scheme=scheme, method=method)
    ties = exact.scale[:, :1] * (torch.arange(12) - 6 + 0.5)
    weight[:, 40:52] = ties
    weight[:, 60:72] = ties.nextafter(torch.tensor(torch.inf))
    step = steps(weight, scheme, method)
    found = quantized(name, weight, step, scheme=scheme, method=method, fake_dtype=torch.float32)
    shift = kind.scaling.zero is not None
    scale = found.scale * 2 if shift else found.scale
    zero = torch.full_like(scale, -0.5) if shift else None
    packed = encode(weight, kind, scale, zero)
    assert torch.equal(packed.scale.float(), scale), "scales are numbers of the scheme's dtype"
    levels = (found.codes.int() - 1) // 2 if shift else found.codes.int()
    assert torch.equal(levels - int(kind.element.lowest), packed.unpack().int())
    assert found.fake is not None
    assert torch.equal(found.fake, packed.dequantize())
    assert torch.equal(
        found.fake, found.codes.float() * found.scale.repeat_interleave(
            kind.scaling.block((7, 200))[1], 1
        )[:, :200]
    )  # fmt: skip
    assert len(found.codes.unique()) > 2


@every_implementation
def test_scales_are_those_of_the_formats(name: str) -> None:
    weight = normal(9, 130, seed=1)
    for scheme in ("ternary-channel-float32", "int4-g64-float32", "nonary-tensor-float32"):
        largest = quantized(name, weight, scheme=scheme, method="absmax").scale
        assert torch.equal(largest, fit(weight, parse_scheme(scheme), "absmax")[0])
        mean = quantized(name, weight, scheme=scheme, method="absmean").scale
        wanted = fit(weight, parse_scheme(scheme), "absmean")[0]  # a float32 sum
        assert (mean / wanted - 1).abs().max() < 5e-7


@every_implementation
@pytest.mark.parametrize("columns", [64, 5000])
def test_the_mean_does_not_lose_small_weights(name: str, columns: int) -> None:
    """2^24 and many ones: a float32 sum would stay at 2^24."""
    weight = torch.ones(2, columns)
    weight[:, 0] = 2.0**24
    for scheme in ("ternary-channel-float32", "ternary-tensor-float32"):
        scale = quantized(name, weight, scheme=scheme).scale
        assert scale.flatten()[0] == torch.tensor((2**24 + columns - 1) / columns)


@every_implementation
def test_lsq_by_hand(name: str) -> None:
    """Equations 3 and 5 of the paper at step 2, nonary: ratios 0.3, 1.6, -2.5, 4.5, -9 and 4."""
    weight = torch.tensor([[0.6, 3.2, -5.0, 9.0, -18.0, 8.0]], device=DEVICE, requires_grad=True)
    step = torch.tensor([[2.0]], device=DEVICE, requires_grad=True)
    way = torch.tensor([[1.0, 10.0, 100.0, 1e3, 1e4, 1e5]], device=DEVICE)
    with using(OP, load(OP, name)):
        found = fake_quantize(
            weight, step, scheme="nonary-channel-float32", method="learned",
            fake_dtype=torch.float32,
        )  # fmt: skip
        assert found.fake is not None
        found.fake.backward(way)
    assert found.codes.tolist() == [[0, 2, -2, 4, -4, 4]]
    assert found.fake.tolist() == [[0.0, 4.0, -4.0, 8.0, -8.0, 8.0]]
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1.0, 10.0, 100.0, 0.0, 0.0, 1e5]]
    slopes = -0.3 * 1 + 0.4 * 10 + 0.5 * 100 + 4 * 1e3 - 4 * 1e4 + 0 * 1e5
    assert step.grad is not None
    assert step.grad.item() == pytest.approx(slopes / math.sqrt(6 * 4), rel=1e-6)


def pareto(weight: Tensor, alpha: Tensor, levels: int, way: Tensor) -> tuple[Tensor, ...]:
    """SEQ and its gradients as ParetoQ's own code has them, in float64; channels."""
    ratio, half = weight / alpha, levels / 2
    shift = 0.5 if levels % 2 == 0 else 0.0
    q = (torch.round(ratio.clamp(-0.99, 0.99) * half - shift) + shift) / half
    inside = ratio.abs() <= 0.99
    bound = (half - 0.5) / half if levels % 2 else (half - shift) / half
    slope = torch.where(inside, q - ratio, ratio.sign() * bound)
    return q * alpha, way * inside, (way * slope).sum(1, keepdim=True)


@every_implementation
@pytest.mark.parametrize(
    ("scheme", "levels"), [("ternary-channel-float32", 3), ("int2-channel-hqq-float32", 4),
                           ("nonary-channel-float32", 9), ("int4-channel-hqq-float32", 16)]
)  # fmt: skip
def test_stretched_is_that_of_paretoq(name: str, scheme: str, levels: int) -> None:
    weight = normal(5, 90).double().float().to(DEVICE).requires_grad_()
    alpha = (1.0 + 0.3 * normal(5, 1, seed=1).abs()).to(DEVICE).requires_grad_()
    way = normal(5, 90, seed=2).to(DEVICE)
    with using(OP, load(OP, name)):
        found = fake_quantize(
            weight, alpha, scheme=scheme, method="stretched", fake_dtype=torch.float32
        )
        assert found.fake is not None
        grad_weight, grad_alpha = torch.autograd.grad(found.fake, (weight, alpha), way)
    wanted = pareto(weight.detach().double(), alpha.detach().double(), levels, way.double())
    torch.testing.assert_close(found.fake.double(), wanted[0], rtol=3e-7, atol=1e-7)
    assert torch.equal(grad_weight.double(), wanted[1])
    highest = levels // 2 if levels % 2 else levels // 2 - 1
    factor = 1 / math.sqrt(90 * highest)
    torch.testing.assert_close(grad_alpha.double(), wanted[2] * factor, rtol=1e-5, atol=1e-6)
    assert (wanted[1] == 0).sum() > 20, "some are clipped"


@every_implementation
def test_even_levels_stretched_are_odd_codes(name: str) -> None:
    weight = torch.tensor([[-0.9, -0.3, 0.3, 0.9, 5.0, -5.0, 0.5, -0.5]])
    found = quantized(
        name, weight, torch.tensor([[1.0]]), scheme="int2-channel-hqq-float32", method="stretched"
    )
    assert found.scale.tolist() == [[0.25]], "half of the step 2 / 4"
    assert found.codes.tolist() == [[-3, -1, 1, 3, 3, -3, 1, -3]], "ties, at 0.5 and -1.5, to even"


@every_implementation
def test_constant_scales_mask_nothing(name: str) -> None:
    """BitNet: the gradient of the dequantized weight is the weight's, beyond the range too."""
    weight = (normal(3, 50) * 3).to(DEVICE).requires_grad_()
    way = normal(3, 50, seed=1).to(DEVICE)
    for method in ("absmean", "absmax"):
        with using(OP, load(OP, name)):
            found = fake_quantize(
                weight, scheme="ternary-channel", method=method, fake_dtype=torch.bfloat16
            )
            assert found.fake is not None
            (grad,) = torch.autograd.grad(found.fake, weight, way.bfloat16())
        assert torch.equal(grad, way.bfloat16().float())


@every_implementation
def test_gradients_of_microbatches_are_added_first(name: str) -> None:
    """One pass over the sum of gradients gives what autograd gives, step by step, on the way."""
    weight = normal(6, 70).to(DEVICE).requires_grad_()
    step = torch.full((6, 3), 0.4, device=DEVICE).requires_grad_()
    options = {"scheme": "nonary-g32-float32", "method": "learned"}
    ways = [normal(6, 70, seed=seed).to(DEVICE) for seed in (1, 2)]
    with using(OP, load(OP, name)):
        found = fake_quantize(weight, step, **options, fake_dtype=torch.float32)
        assert found.fake is not None
        for way in ways:
            found.fake.backward(way, retain_graph=True)
        grads = fake_quantize_gradient(
            ways[0] + ways[1], weight.detach(), step.detach(), found.codes, **options
        )
    assert weight.grad is not None
    assert step.grad is not None
    torch.testing.assert_close(grads[0], weight.grad, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grads[1], step.grad, rtol=1e-5, atol=1e-6)


@every_implementation
def test_rounding_at_random_has_no_bias(name: str) -> None:
    """0.3 of a step, 20,000 times: the mean is 0.3 within four standard deviations, 0.013."""
    weight = torch.full((100, 200), 0.3)
    step = torch.ones(100, 1)
    options = {"scheme": "int4-channel-float32", "method": "learned"}
    first = quantized(name, weight, step, seed=torch.tensor(1), **options).codes
    assert set(first.unique().tolist()) == {0, 1}
    assert abs(first.float().mean().item() - 0.3) < 0.013
    assert (first.float().mean(1) - 0.3).abs().max() < 5 * math.sqrt(0.21 / 200), "in every row"
    assert (first.float().mean(0) - 0.3).abs().max() < 5 * math.sqrt(0.21 / 100), "in every column"
    again = quantized(name, weight, step, seed=torch.tensor(1), **options).codes
    assert torch.equal(first, again)
    for other in (2, 1 + 2**40):
        codes = quantized(name, weight, step, seed=torch.tensor(other), **options).codes
        assert 0.35 < (codes != first).float().mean() < 0.49, "0.42 where draws are independent"
    nearest = quantized(name, weight, step, **options).codes
    assert not nearest.any()


@every_implementation
def test_rounding_at_random_keeps_levels(name: str) -> None:
    weight = torch.tensor([[-1.0, 0.0, 1.0, 2.0, -7.0, 1.0, 0.0, -1.0]]) * 0.5
    found = quantized(
        name, weight, torch.tensor([[0.5]]), seed=torch.tensor(9),
        scheme="ternary-channel-float32", method="learned",
    )  # fmt: skip
    assert found.codes.tolist() == [[-1, 0, 1, 1, -1, 1, 0, -1]]


def test_random_codes_are_the_same_everywhere() -> None:
    """However the work is cut up: groups, channels, the tensor, in either implementation."""
    weight, seed = normal(5, 131), torch.tensor(2**62 + 12345)
    for scheme in ("int4-g32-float32", "int4-channel-float32", "int4-tensor-float32"):
        shape = rule_of(scheme, "learned").scale_shape(5, 131)
        every = [
            quantized(
                name, weight, torch.full(shape, 0.2), seed=seed, scheme=scheme, method="learned"
            ).codes
            for name in ("triton", "torch")
        ]
        assert torch.equal(every[0], every[1])
        if scheme == "int4-g32-float32":
            first = every[0]
        assert torch.equal(every[0], first)


@every_implementation
@interpreted
def test_weights_that_are_not_finite(name: str) -> None:
    weight = torch.ones(3, 40)
    weight[0, 1], weight[1, 4], weight[1, 7] = torch.inf, torch.nan, -torch.inf
    found = quantized(name, weight, scheme="ternary-channel", fake_dtype=torch.float32)
    assert found.fake is not None
    assert found.codes[:2].count_nonzero() == 0
    assert found.fake[:2].isnan().all(), "a loss shows it"
    assert found.codes[2].tolist() == [1] * 40
    learned = quantized(
        name, weight, torch.ones(3, 1), scheme="nonary-channel-float32", method="learned",
        fake_dtype=torch.float32,
    )  # fmt: skip
    assert learned.codes[0, :3].tolist() == [1, 4, 1]
    assert learned.codes[1, 3:8].tolist() == [1, 0, 1, 1, -4]
    assert learned.fake is not None
    assert learned.fake[1, 4].isnan()
    assert learned.fake.isnan().sum() == 1


@every_implementation
@interpreted
def test_a_step_that_cannot_be_used(name: str) -> None:
    """Zero, negative, inf or NaN: codes 0, and no gradient."""
    weight = torch.ones(5, 20, device=DEVICE, requires_grad=True)
    step = torch.tensor([[0.0], [-1.0], [torch.inf], [torch.nan], [1.0]], device=DEVICE)
    step.requires_grad_()
    with using(OP, load(OP, name)):
        found = fake_quantize(
            weight, step, scheme="int4-channel-float32", method="learned", fake_dtype=torch.float32
        )
        assert found.fake is not None
        found.fake.backward(torch.ones_like(weight))
    assert found.codes.sum(1).tolist() == [0, 0, 0, 0, 20]
    assert weight.grad is not None
    assert step.grad is not None
    assert weight.grad.sum(1).tolist() == [0, 0, 0, 0, 20]
    assert step.grad.flatten().tolist() == [0.0] * 5


def test_a_rule_made_among_fake_tensors_is_right() -> None:
    """As the first call under torch.compile does, before any other has asked for the rule."""
    rule_of.cache_clear()
    with FakeTensorMode():
        rule = rule_of("ternary-channel", "stretched")
    assert (rule.clip_low, rule.clip_high) == (-1.4850000143051147, 1.4850000143051147)


def test_the_seed_is_read_on_the_device() -> None:
    """A counter that is added to in place gives new codes: what a CUDA graph replays."""
    weight, seed = normal(4, 60).to(DEVICE), torch.zeros((), dtype=torch.int64, device=DEVICE)
    first = fake_quantize(weight, seed=seed).codes
    seed += 1
    assert not torch.equal(first, fake_quantize(weight, seed=seed).codes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "fp8_e4m3-channel"}, "floating-point"),
        ({"scheme": "int4-g64-asym"}, "zero points"),
        ({"scheme": "int8-channel", "method": "stretched"}, "few levels"),
        ({"scheme": "int2-channel", "method": "stretched"}, "add -hqq"),
        ({"scheme": "ternary-b16x16"}, "per tensor, channel or group"),
        ({"scheme": "ternary-g20"}, "multiple of 16"),
        ({"scheme": "ternary-channel-e8m0"}, "float32, float16, bfloat16"),
        ({"method": "absmin"}, "did you mean 'absmean' or 'absmax'"),
        ({"method": "learned"}, "without a step"),
        ({"step": torch.ones(2, 1)}, "'absmean' with a step"),
        ({"step": torch.ones(1, 2), "method": "learned"}, r"needs float32 \[2, 1\]"),
        ({"step": torch.ones(2, 1).half(), "method": "learned"}, "step is torch.float16"),
        ({"seed": torch.zeros(2, dtype=torch.int64)}, r"seed is torch.int64 \[2\]"),
        ({"fake_dtype": torch.int8}, "fake_dtype torch.int8"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        fake_quantize(torch.ones(2, 32), **options)  # pyright: ignore[reportArgumentType]


def test_other_bad_input() -> None:
    with pytest.raises(UnsupportedError, match=r"weight is torch.float32 \[2\]"):
        fake_quantize(torch.ones(2))
    with pytest.raises(FormatError, match="unknown format 'trinary'"):
        fake_quantize(torch.ones(2, 2), scheme="trinary")
    codes = torch.zeros(2, 2, dtype=torch.int8)
    with pytest.raises(UnsupportedError, match="learned are learned, stretched"):
        fake_quantize_gradient(
            torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 1), codes,
            scheme="ternary-channel", method="absmean",
        )  # fmt: skip


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (7, 150), (3, 512)])
def test_changed_codes_are_counted(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)
    before, after = (
        torch.randint(-1, 2, shape, dtype=torch.int8, generator=generator).to(DEVICE)
        for _ in range(2)
    )
    wanted = sum(
        a != b for a, b in zip(*(t.flatten().tolist() for t in (before, after)), strict=True)
    )
    for count in (count_changed, changed_codes.count_changed):
        found = count(before, after)
        assert (found.dtype, found.shape, int(found)) == (torch.int64, (), wanted)
        assert int(count(before, before.clone())) == 0
