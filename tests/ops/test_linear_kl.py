"""linear_kl beyond the generic suite: what it means, memory, ownership of gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.errors import UnsupportedError
from tercet.kernel.interpreter.corrections import correct, interpreting
from tercet.kernel.select import load, using
from tercet.kernel.tuned import force
from tercet.ops.linear_kl import linear_kl, torch_path
from tercet.ops.linear_kl.op import OP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMPLEMENTATIONS = ("torch", "triton") if interpreting() or DEVICE == "cuda" else ("torch",)
every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)

if interpreting():
    correct()


def make(m: int, h: int, g: int, v: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(m * h + g + v)
    shapes = ((m, h), (v, h), (m, g), (v, g))
    x, weight, teacher_x, teacher_weight = (
        torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes
    )
    return x.requires_grad_(), weight.requires_grad_(), teacher_x, teacher_weight


def probabilities(some: tuple[Tensor, ...], temperature: float) -> tuple[Tensor, Tensor]:
    """Student's and teacher's, in float64."""
    x, weight, teacher_x, teacher_weight = (tensor.double() for tensor in some)
    student = (x @ weight.T / temperature).softmax(-1)
    return student, (teacher_x @ teacher_weight.T / temperature).softmax(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """By its definition, of probabilities."""
    return (p * (p / q).log()).sum(-1)


def same(found: Tensor, expected: Tensor, relative: float) -> None:
    off = (found.detach().double() - expected).abs().max()
    assert off <= relative * expected.abs().max(), float(off / expected.abs().max())


class Largest(TorchDispatchMode):
    """The most bytes of any tensor that an operation inside made."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.bytes = max(self.bytes, tensor.numel() * tensor.element_size())
        return result


@every_implementation
@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("chunk", [2, 64])
def test_matches_the_definition_for_every_chunk(
    name: str, beta: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_path, "CHUNK", chunk)
    some = make(7, 5, 6, 30)
    q, p = probabilities(some, 1.5)
    mixture = beta * p + (1 - beta) * q
    losses = {0.0: kl(p, q), 1.0: kl(q, p)}.get(
        beta, beta * kl(p, mixture) + (1 - beta) * kl(q, mixture)
    )
    mask = torch.arange(7, device=DEVICE) % 3 != 1
    expected = 1.5**2 * losses[mask].mean()
    with using(OP, load(OP, name)), force(OP.name, "triton", "forward", {"CHUNK": chunk}):
        loss = linear_kl(*some, mask=mask, temperature=1.5, beta=beta)
        found = torch.autograd.grad(loss, some[:2])
    same(loss, expected.detach(), 2e-6)
    for gradient, right in zip(found, torch.autograd.grad(expected, some[:2]), strict=True):
        same(gradient, right.double(), 4e-6)
    assert not found[0][~mask].any()


@every_implementation
def test_forward_kl_is_that_of_torch(name: str) -> None:
    some = make(6, 5, 4, 40)
    q, p = probabilities(some, 1.0)
    expected = functional.kl_div(q.log(), p, reduction="batchmean")
    with using(OP, load(OP, name)):
        same(linear_kl(*some), expected.detach(), 2e-6)


@every_implementation
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_student_equal_to_its_teacher_has_no_loss_and_no_gradient(name: str, beta: float) -> None:
    x, weight, *_ = make(5, 16, 16, 300, torch.bfloat16)
    with using(OP, load(OP, name)):
        loss = linear_kl(x, weight, x.detach(), weight.detach(), beta=beta)
        gradients = torch.autograd.grad(loss, (x, weight))
    assert abs(float(loss.detach())) < 2e-6
    assert all(float(gradient.abs().max()) < 2e-5 for gradient in gradients)


@every_implementation
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_student_near_its_teacher_keeps_its_gradient_in_bfloat16(name: str, beta: float) -> None:
    """Rounding the logits to bfloat16 would leave a gradient that is off by its own size."""
    x, weight, *_ = make(4, 64, 64, 500, torch.bfloat16)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    teacher_x = (x.detach().float() * (1 + 0.01 * noise)).bfloat16()
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    q, p = probabilities((*exact, teacher_x, weight.detach()), 1.0)
    mixture = beta * p + (1 - beta) * q
    losses = {0.0: kl(p, q), 1.0: kl(q, p)}.get(
        beta, beta * kl(p, mixture) + (1 - beta) * kl(q, mixture)
    )
    expected = torch.autograd.grad(losses.mean(), exact)
    with using(OP, load(OP, name)):
        found = torch.autograd.grad(
            linear_kl(x, weight, teacher_x, weight.detach(), beta=beta), (x, weight)
        )
    for gradient, right in zip(found, expected, strict=True):
        same(gradient, right, 0.01)


@every_implementation
@pytest.mark.parametrize("factor", [1.0, -3.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_incoming_gradient_scales_in_place(
    name: str, factor: float, dtype: torch.dtype
) -> None:
    some = make(9, 8, 8, 33, dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in some]
    q, p = probabilities(tuple(exact), 1.0)
    expected = torch.autograd.grad(kl(p, q).mean() * factor, exact[:2])
    with using(OP, load(OP, name)):
        loss = linear_kl(*some)
        (loss * factor).backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    for tensor, right in zip(some[:2], expected, strict=True):
        assert tensor.grad is not None
        same(tensor.grad, right, 4e-6 if dtype == torch.float32 else 4e-3)


@every_implementation
def test_logits_never_exist_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_path, "CHUNK", 4)
    # a row is larger than any kernel's tile, which the interpreter holds as a tensor
    m, h, v = 60, 4, 5000
    x, weight, teacher_x, teacher_weight = make(m, h, h, v)
    options = (None, 1.0, 0.0, "mean", True, True, False, False, True)
    with (
        force(OP.name, "triton", "forward", {"CHUNK": 4}),
        torch.no_grad(),
        Largest() as largest,
    ):
        load(OP, name).forward(x, weight, teacher_x, teacher_weight, *options)
    assert largest.bytes <= 2 * 4 * 4 * v < 4 * m * v


@every_implementation
def test_only_wanted_gradients_are_made(name: str) -> None:
    x, weight, teacher_x, teacher_weight = make(5, 4, 3, 7)
    with using(OP, load(OP, name)):
        whole = torch.autograd.grad(linear_kl(x, weight, teacher_x, teacher_weight), x)[0]
        frozen = linear_kl(x, weight.detach(), teacher_x, teacher_weight)
        gradient = torch.autograd.grad(frozen, x)[0]
        loss, *kept = OP.run(
            x.detach(), weight.detach(), teacher_x, teacher_weight, None, 1.0, 0.0, "mean",
            *[False] * 4, True,
        )  # fmt: skip
    assert torch.equal(whole, gradient)
    assert torch.equal(loss, frozen.detach())
    assert [tensor.numel() for tensor in kept] == [0, 0]


@every_implementation
@pytest.mark.parametrize("m", [0, 4])
def test_a_mean_over_nothing_is_nan_and_its_gradient_zero(name: str, m: int) -> None:
    some = make(m, 4, 4, 9)
    mask = torch.zeros(m, dtype=torch.bool, device=DEVICE)
    with using(OP, load(OP, name)):
        loss = linear_kl(*some, mask=mask)
        loss.backward()
        assert linear_kl(*some, mask=mask, reduction="sum") == 0
    assert loss.isnan()
    for tensor in some[:2]:
        assert tensor.grad is not None
        assert not tensor.grad.any()


@every_implementation
def test_leading_axes_and_a_teacher_of_another_dtype(name: str) -> None:
    x, weight, teacher_x, teacher_weight = make(6, 4, 8, 9)
    teacher_x, teacher_weight = teacher_x.bfloat16(), teacher_weight.bfloat16()
    q, p = probabilities((x, weight, teacher_x, teacher_weight), 1.0)
    with using(OP, load(OP, name)):
        loss = linear_kl(
            x.reshape(2, 3, 4), weight, teacher_x.reshape(2, 3, 8), teacher_weight, reduction="sum"
        )
    expected = kl(p, q).sum()
    assert loss.shape == ()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=2e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(7, 5)}, r"\[V, H\]"),
        ({"teacher_weight": torch.zeros(8, 3)}, "they must be alike"),
        ({"teacher_x": torch.zeros(4, 3)}, "leading axes must be alike"),
        ({"teacher_x": torch.zeros(5, 3).half()}, "teacher_x is torch.float16"),
        ({"mask": torch.zeros(5)}, "must be bool"),
        ({"temperature": 0.0}, "above 0"),
        ({"beta": 1.5}, r"in \[0, 1\]"),
        ({"reduction": "batchmean"}, "'mean' or 'sum'"),
        ({"accumulate": torch.bfloat16}, "None or torch.float32"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments = {
        "x": torch.zeros(5, 4),
        "weight": torch.zeros(7, 4),
        "teacher_x": torch.zeros(5, 3),
        "teacher_weight": torch.zeros(7, 3),
    }
    with pytest.raises(UnsupportedError, match=message):
        linear_kl(**{**arguments, **change})


def test_the_cost_counts_products_and_tensors() -> None:
    shapes = {"x": (3, 4), "weight": (5, 4), "teacher_x": (3, 6), "teacher_weight": (5, 6)}
    arguments: dict[str, Any] = {
        name: torch.empty(shape, device="meta", dtype=torch.bfloat16)
        for name, shape in shapes.items()
    }
    arguments |= {"mask": None, "x_gradient": True, "weight_gradient": True}
    spent = OP.cost(arguments)
    assert spent.flops == 2 * 15 * (3 * 4 + 6) + 10 * 15
    assert (spent.bytes_read, spent.bytes_written) == (2 * (12 + 20 + 18 + 30), 4 + 2 * 32)
    assert OP.gradient_cost is not None
    assert OP.gradient_cost(arguments).bytes == 2 * 64 + 4
