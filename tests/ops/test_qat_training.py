"""fake_quantize and linear_qat together, as a training step uses them."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, mse_loss, silu
from torch.utils.checkpoint import checkpoint

from tercet.ops.fake_quantize import fake_quantize, fake_quantize_gradient
from tercet.ops.linear_qat import linear_qat, transposed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SCHEMES = ("ternary-channel-float32", "nonary-channel-float32")
# a CPU has the slow path only, and says so
pytestmark = pytest.mark.filterwarnings("ignore:.*slow path")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def layers() -> list[Tensor]:
    return [
        (normal(96, 48, seed=1) / 48**0.5).requires_grad_(),
        (normal(24, 96, seed=2) / 96**0.5).requires_grad_(),
    ]


def int8_layer(x: Tensor, weight: Tensor, scheme: str, weight_gradient: str = "float") -> Tensor:
    found = fake_quantize(weight.detach(), scheme=scheme)
    return linear_qat(x, found.codes, found.scale, weight, weight_gradient=weight_gradient)


def float_layer(x: Tensor, weight: Tensor, scheme: str) -> Tensor:
    fake = fake_quantize(weight, scheme=scheme, fake_dtype=torch.float32).fake
    assert fake is not None
    return linear(x, fake)


def losses(layer: object, scheme: str, steps: int = 60, **options: str) -> list[float]:
    """Of two layers that learn what two others, not quantized, make of random inputs."""
    assert callable(layer)
    student, teacher = layers(), [normal(96, 48, seed=3) / 7, normal(24, 96, seed=4) / 10]
    optimizer = torch.optim.Adam(student, lr=3e-3)
    found: list[float] = []
    for step in range(steps):
        x = normal(256, 48, seed=100 + step)
        target = linear(silu(linear(x, teacher[0])), teacher[1])
        hidden = silu(layer(x, student[0], scheme, **options))
        loss = mse_loss(layer(hidden, student[1], scheme, **options), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_learns_as_fake_quantization_in_floats_does(scheme: str) -> None:
    plain = losses(float_layer, scheme)
    for weight_gradient in ("float", "int8"):
        found = losses(int8_layer, scheme, weight_gradient=weight_gradient)
        last, wanted = sum(found[-10:]) / 10, sum(plain[-10:]) / 10
        assert wanted < 0.6 * plain[0], "it learns"
        assert abs(last / wanted - 1) < 0.05


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of what inductor imports
def test_torch_compile_gives_the_bits_of_eager() -> None:
    def loss(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        hidden = silu(int8_layer(x, first, SCHEMES[0]))
        return int8_layer(hidden, second, SCHEMES[1], "int8").square().mean()

    x, weights = normal(40, 48).requires_grad_(), layers()
    eager = torch.autograd.grad(loss(x, *weights), (x, *weights))
    torch.compiler.reset()
    run = torch.compile(loss, backend="aot_eager", fullgraph=True)
    compiled = torch.autograd.grad(run(x, *weights), (x, *weights))
    for one, other in zip(eager, compiled, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_checkpointing_gives_the_bits_of_keeping() -> None:
    """Codes are made again in the backward pass, of the same weights: the same codes."""
    x, (weight, _) = normal(40, 48).requires_grad_(), layers()
    way = normal(40, 96, seed=5)
    kept = torch.autograd.grad(int8_layer(x, weight, SCHEMES[0]), (x, weight), way)
    again = checkpoint(int8_layer, x, weight, SCHEMES[0], use_reentrant=False)
    assert isinstance(again, Tensor)
    found = torch.autograd.grad(again, (x, weight), way)
    assert torch.equal(kept[0], found[0])
    assert torch.equal(kept[1], found[1])


@pytest.mark.parametrize("method", ["learned", "stretched"])
def test_learned_steps_train_over_microbatches(method: str) -> None:
    """Codes once a step, gradients of four microbatches gathered in a leaf, one pass at the end."""
    scheme = "ternary-channel-float32"
    weight, step = normal(32, 64, seed=1) / 8, torch.full((32, 1), 0.12, device=DEVICE)
    if method == "stretched":
        step = step * 1.5
    first = step.clone()
    x, target = normal(256, 64, seed=2), normal(256, 32, seed=3)
    target = linear(x, normal(32, 64, seed=4) / 8) + 0.1 * target
    found: list[float] = []
    for _ in range(60):
        made = fake_quantize(weight, step, scheme=scheme, method=method)
        codes_t = transposed(made.codes)
        leaf = torch.zeros_like(weight).requires_grad_()
        total = 0.0
        for batch, wanted in zip(x.split(64), target.split(64), strict=True):
            y = linear_qat(batch, made.codes, made.scale, leaf, codes_t=codes_t)
            loss = mse_loss(y, wanted) / 4
            loss.backward()
            total += loss.item()
        assert leaf.grad is not None
        grads = fake_quantize_gradient(
            leaf.grad, weight, step, made.codes, scheme=scheme, method=method
        )
        weight, step = weight - 3.0 * grads[0], step - 1.0 * grads[1]
        found.append(total)
    assert found[-1] < 0.5 * found[0]
    assert (step / first - 1).abs().median() > 0.02, "the steps move"
    assert (step > 0).all()
