"""linear_qat: golden values, train = serve, gradients against the plain definition, options."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from tercet.errors import UnsupportedError
from tercet.formats import from_codes, parse_scheme
from tercet.kernel.select import load, using
from tercet.ops.fake_quantize import fake_quantize, fake_quantize_gradient
from tercet.ops.linear_packed import linear_packed
from tercet.ops.linear_packed.op import OP as PACKED
from tercet.ops.linear_qat import linear_qat, transposed
from tercet.ops.linear_qat.op import OP
from tercet.ops.quantize_activation import quantize_activation
from tercet.packed_weight.weight import prepare

every_implementation = pytest.mark.parametrize("name", ["triton", "torch"])
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def drawn(n: int, k: int, scheme: str = "ternary-channel-float32") -> tuple[Tensor, ...]:
    """A weight [N, K], its codes and its scales."""
    weight = normal(n, k, seed=9) * 0.02
    found = fake_quantize(weight, scheme=scheme)
    return weight, found.codes, found.scale


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def cosine(found: Tensor, wanted: Tensor) -> float:
    a, b = found.double().flatten(), wanted.flatten()
    return (a @ b / (a.norm() * b.norm())).item()


@every_implementation
def test_golden(name: str) -> None:
    """One token: x = 127, -2.5 (a tie, to even), 1; W = 2 (1, 1, 0) and (0, -1, 1) / 2."""
    x = torch.tensor([[127.0, -2.5, 1.0]], device=DEVICE, requires_grad=True)
    codes = torch.tensor([[1, 1, 0], [0, -1, 1]], dtype=torch.int8, device=DEVICE)
    scale = torch.tensor([[2.0], [0.5]], device=DEVICE)
    weight = torch.zeros(2, 3, device=DEVICE, requires_grad=True)
    bias = torch.tensor([10.0, 20.0], device=DEVICE, requires_grad=True)
    with using(OP, load(OP, name)):
        y = linear_qat(x, codes, scale, weight, bias=bias)
        # grad * scale is 127 and 3.5 (to 4): scale 1
        y.backward(torch.tensor([[63.5, 7.0]], device=DEVICE))
    assert y.tolist() == [[2 * (127 - 2) + 10, (2 + 1) / 2 + 20]]
    assert x.grad is not None
    assert weight.grad is not None
    assert bias.grad is not None
    assert x.grad.tolist() == [[127.0, 127.0 - 4, 4.0]]
    assert weight.grad.tolist() == [[63.5 * 127, 63.5 * -2, 63.5], [7.0 * 127, -14.0, 7.0]]
    assert bias.grad.tolist() == [63.5, 7.0]


@every_implementation
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("scheme", "serve"),
    [("ternary-channel", "triton"), ("nonary-channel-float32", "cpu"), ("int8-tensor", "triton"),
     ("int4-channel-bfloat16", "cpu")],
)  # fmt: skip
def test_training_and_serving_agree_to_the_bit(
    name: str, scheme: str, serve: str, dtype: torch.dtype
) -> None:
    """The codes of training, packed: linear_packed with int8 activations gives the same bits.

    All but interpreted Triton, which rounds twice, fuse the product with x's scale and the bias.
    """
    if serve == "cpu" and DEVICE == "cuda":
        pytest.skip("the tensors are on a GPU")
    weight, codes, scale = drawn(48, 200, scheme)
    x = (normal(7, 200, seed=1) * 3).to(dtype)
    alike = DEVICE == "cuda" or (name == "triton") == (serve == "triton")
    bias = normal(48, seed=2) if alike else None
    kind = parse_scheme(scheme)
    unsigned = (codes.cpu().int() - int(kind.element.lowest)).to(torch.uint8)
    packed = from_codes(unsigned, kind, scale.cpu().to(kind.scaling.torch_dtype))
    packed.validate()
    served = prepare(packed, torch.device(DEVICE))
    if serve == "triton":
        served = served.to_layout("fragments")
    with using(PACKED, load(PACKED, serve)):
        wanted = linear_packed(x, served, bias, activation="int8")
    with using(OP, load(OP, name)):
        found = linear_qat(x, codes, scale, weight, bias=bias)
    assert torch.equal(found, wanted)


@every_implementation
@pytest.mark.parametrize("weight_gradient", ["float", "int8"])
def test_gradients_are_close_to_the_plain_definition(name: str, weight_gradient: str) -> None:
    """Against grad W^ and grad^T x^ in float64, where nothing else is rounded.

    The largest of 150 normal numbers is about 2.7: a step is 2.1 %, its rms error 0.6 %.
    """
    weight, codes, scale = drawn(150, 90)
    weight = weight.bfloat16().requires_grad_()
    x, way = normal(200, 90).bfloat16().requires_grad_(), normal(200, 150, seed=1).bfloat16()
    with using(OP, load(OP, name)):
        y = linear_qat(x, codes, scale, weight, weight_gradient=weight_gradient)
        grad_x, grad_weight = torch.autograd.grad(y, (x, weight), way)
    x_codes, x_scale, _ = quantize_activation(x.detach())
    exact_x = x_codes.double() * x_scale[:, None].double()
    exact_w = codes.double() * scale.double()
    assert relative(y.detach(), exact_x @ exact_w.T) < 2**-8
    assert relative(grad_x, way.double() @ exact_w) < 0.012
    assert cosine(grad_x, way.double() @ exact_w) > 0.9999
    wanted = way.double().T @ exact_x
    limit = 0.004 if weight_gradient == "float" else 0.013
    assert relative(grad_weight, wanted) < limit
    assert cosine(grad_weight, wanted) > 0.9999


@every_implementation
def test_a_random_weight_gradient_has_no_bias(name: str) -> None:
    """The mean of 12 draws is sqrt(12) times nearer to the exact gradient than one is."""
    _, codes, scale = drawn(24, 40)
    x, way = normal(50, 40), normal(50, 24, seed=1)
    weight = torch.zeros(24, 40, device=DEVICE, requires_grad=True)

    def gradient(seed: int | None) -> Tensor:
        drawn_from = None if seed is None else torch.tensor(seed, device=DEVICE)
        with using(OP, load(OP, name)):
            y = linear_qat(x, codes, scale, weight, weight_gradient="int8", seed=drawn_from)
            return torch.autograd.grad(y, weight, way)[0].double()

    x_codes, x_scale, _ = quantize_activation(x)
    exact = way.double().T @ (x_codes.double() * x_scale[:, None].double())
    draws = torch.stack([gradient(seed) for seed in range(12)])
    one = (draws - exact).norm(dim=(1, 2)).mean() / exact.norm()
    mean = relative(draws.mean(0), exact)
    assert 0.005 < one < 0.02
    assert mean < one / math.sqrt(12) * 1.15
    assert torch.equal(draws[3], gradient(3))
    assert not torch.equal(draws[3], draws[4])
    assert torch.equal(gradient(None), gradient(None))


@every_implementation
def test_microbatches_share_codes(name: str) -> None:
    """Codes made once; gradients of two microbatches add up to those of both at once."""
    weight, codes, scale = drawn(40, 72, "nonary-channel-float32")
    weight.requires_grad_()
    codes_t, x, way = transposed(codes), normal(10, 72), normal(10, 40, seed=1)
    with using(OP, load(OP, name)):
        for half in (slice(0, 4), slice(4, 10)):
            linear_qat(x[half], codes, scale, weight, codes_t=codes_t).backward(way[half])
        (whole,) = torch.autograd.grad(linear_qat(x, codes, scale, weight), weight, way)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, whole, rtol=1e-5, atol=1e-5)


@every_implementation
def test_a_learned_step_gets_its_gradient(name: str) -> None:
    """The gradient gathers in a leaf of W's shape; one pass makes it those of weight and step."""
    weight, step = normal(30, 64), torch.full((30, 1), 0.4, device=DEVICE)
    options = {"scheme": "nonary-channel-float32", "method": "learned"}
    found = fake_quantize(weight, step, **options)
    leaf = torch.empty(1, device=DEVICE).expand(30, 64).detach().requires_grad_()
    x, way = normal(20, 64, seed=1), normal(20, 30, seed=2)
    with using(OP, load(OP, name)):
        (gathered,) = torch.autograd.grad(linear_qat(x, found.codes, found.scale, leaf), leaf, way)
    grads = fake_quantize_gradient(gathered, weight, step, found.codes, **options)
    x_codes, x_scale, _ = quantize_activation(x)
    seen = x_codes.double() * x_scale[:, None].double()
    exact, exact_step = weight.double().requires_grad_(), step.double().requires_grad_()
    ratio = (exact / exact_step).clamp(-4, 4)
    fake = (ratio + (ratio.round() - ratio).detach()) * exact_step
    wanted = torch.autograd.grad(linear(seen, fake), (exact, exact_step), way.double())
    torch.testing.assert_close(grads[0].double(), wanted[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        grads[1].double(), wanted[1] / math.sqrt(64 * 4), rtol=1e-4, atol=1e-4
    )


@every_implementation
def test_values_of_carriers_are_not_read(name: str) -> None:
    """Where codes of x are given, x and weight only carry gradients: here they are NaN."""
    _, codes, scale = drawn(20, 66)
    real = normal(2, 3, 66).bfloat16()
    x_codes, x_scale, _ = quantize_activation(real)
    x = torch.full_like(real, torch.nan).requires_grad_()
    weight = torch.full((20, 66), torch.nan, device=DEVICE, requires_grad=True)
    way = normal(2, 3, 20, seed=1).bfloat16()
    with using(OP, load(OP, name)):
        y = linear_qat(x, codes, scale, weight, x_codes=x_codes, x_scale=x_scale)
        given = torch.autograd.grad(y, (x, weight), way)
        plain = real.clone().requires_grad_()
        wanted = linear_qat(plain, codes, scale, weight)
        own = torch.autograd.grad(wanted, (plain, weight), way)
    assert y.shape == (2, 3, 20)
    assert torch.equal(y, wanted)
    assert torch.equal(given[0], own[0])
    assert torch.equal(given[1], own[1])
    assert given[1].dtype == torch.float32


@every_implementation
def test_only_the_wanted_gradients(name: str) -> None:
    _, codes, scale = drawn(20, 64)
    x = normal(5, 64)
    weight = torch.zeros(20, 64, device=DEVICE)
    for x_wants, weight_wants in ((True, False), (False, True)):
        x.requires_grad_(x_wants)
        weight.requires_grad_(weight_wants)
        with using(OP, load(OP, name)):
            linear_qat(x, codes, scale, weight).sum().backward()
        assert (x.grad is None) == (not x_wants)
        assert (weight.grad is None) == (not weight_wants)
        x.grad = weight.grad = None
    assert not linear_qat(x.detach(), codes, scale).requires_grad


def test_large_sums_are_exact() -> None:
    """4,500 products of 127 and -128: past 2^24, where a float32 sum would drop odd numbers."""
    codes = torch.full((1, 4501), -128, dtype=torch.int8, device=DEVICE)
    codes[0, 4500] = 1
    x = torch.full((1, 4501), 127.0, device=DEVICE)
    for name in ("triton", "torch"):
        with using(OP, load(OP, name)):
            y = linear_qat(x, codes, torch.ones(1, 1, device=DEVICE))
        exact = torch.tensor(-128 * 127 * 4500 + 127, dtype=torch.float64)
        assert y.item() == exact.float().item()


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (3, 5)])
def test_transposed_codes_are_a_tensor_of_their_own(shape: tuple[int, int]) -> None:
    codes = torch.arange(shape[0] * shape[1], dtype=torch.int8, device=DEVICE).view(shape)
    for given in (codes, codes.t().contiguous().t()):
        found = transposed(given)
        before = found.clone()
        given += 1
        assert torch.equal(found, before)
        assert torch.equal(before.t() + 1, given)


def test_transposed() -> None:
    codes = torch.arange(-60, 60, dtype=torch.int8, device=DEVICE).reshape(8, 15)
    found = transposed(codes)
    assert found.is_contiguous()
    assert torch.equal(found, codes.t())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.ones(2, 5)}, r"x is torch.float32 \[2, 5\].*\[..., 8\]"),
        ({"codes": torch.ones(4, 8)}, "codes are torch.float32"),
        ({"scale": torch.ones(4, 2)}, r"scale is .*\[4, 2\].*groups along K cannot"),
        ({"scale": torch.ones(4, 1).half()}, "scale is torch.float16"),
        ({"weight": torch.ones(8, 4)}, r"weight is .*\[8, 4\]"),
        ({"codes_t": torch.ones(4, 8, dtype=torch.int8)}, r"codes_t .* must be int8 \[8, 4\]"),
        ({"bias": torch.ones(8)}, r"bias is .*\[4\]"),
        ({"x_codes": torch.ones(2, 8, dtype=torch.int8)}, "come together"),
        ({"weight_gradient": "int4"}, "'float' or 'int8'"),
        ({"seed": torch.zeros(2, dtype=torch.int64)}, "one int64"),
        ({"out_dtype": torch.int8}, "out_dtype torch.int8"),
        ({"weight": torch.ones(4, 8, device="meta")}, "weight on meta"),
    ],
)
def test_bad_input(changes: dict[str, object], message: str) -> None:
    given: dict[str, object] = {
        "x": torch.ones(2, 8),
        "codes": torch.ones(4, 8, dtype=torch.int8),
        "scale": torch.ones(4, 1),
    }
    with pytest.raises(UnsupportedError, match=message):
        linear_qat(**(given | changes))  # pyright: ignore[reportArgumentType]
