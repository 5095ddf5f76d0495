"""linear_cross_entropy beyond the generic suite: schedules, memory, ownership of gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.errors import UnsupportedError
from tercet.harness.check.run import cannot_run
from tercet.kernel.interpreter.corrections import correct, interpreting
from tercet.kernel.select import load, using
from tercet.kernel.tuned import force
from tercet.ops.linear_cross_entropy import linear_cross_entropy, torch_path
from tercet.ops.linear_cross_entropy.op import OP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = tuple(
    each.name
    for each in OP.implementations
    if (each.language == "triton" and interpreting())
    or cannot_run(each, DEVICE, isolated=False) is None
    if each.name != "torch"
)
IMPLEMENTATIONS = ("torch", *KERNELS)
SCHEDULES = (
    {"CHUNK": 4, "RESIDENT": 0},
    {"CHUNK": 4, "RESIDENT": 1, "SLICE": 16},
    {"CHUNK": 7, "RESIDENT": 1, "SLICE": 40},
    {"CHUNK": 5, "RESIDENT": 1, "SLICE": 1000},
    {"CHUNK": 64, "RESIDENT": 1},
    {"CHUNK": 6, "RESIDENT": 0, "SPLIT": 4, "BLOCK": 16},
)

if interpreting():
    correct()


def make(m: int, h: int, v: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(m * h + v)
    x = torch.randn(m, h, generator=generator).to(dtype)
    weight = (torch.randn(v, h, generator=generator) / h**0.5).to(dtype)
    target = torch.randint(v, (m,), generator=generator)
    target[1::4] = -100
    return (
        x.to(DEVICE).requires_grad_(),
        weight.to(DEVICE).requires_grad_(),
        target.to(DEVICE),
    )


def exact(x: Tensor, weight: Tensor, target: Tensor, factor: float = 1.0) -> tuple[Tensor, ...]:
    x, weight = (tensor.detach().double().requires_grad_() for tensor in (x, weight))
    loss = functional.cross_entropy(x @ weight.T, target)
    return loss.detach(), *torch.autograd.grad(loss * factor, (x, weight))


def same(found: Tensor, expected: Tensor, relative: float) -> None:
    off = (found.double() - expected).abs().max()
    assert off <= relative * expected.abs().max(), float(off / expected.abs().max())


class Largest(TorchDispatchMode):
    """The most bytes of any tensor that an operation inside made, and what memory was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.empty = list[tuple[torch.Size, torch.dtype]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "empty" in func.name():
            self.empty.append((result.shape, result.dtype))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.bytes = max(self.bytes, tensor.numel() * tensor.element_size())
        return result


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("m", [3, 6, 8, 19])
def test_every_schedule_gives_the_same_loss_and_gradients(
    name: str, schedule: dict[str, int], m: int
) -> None:
    x, weight, target = make(m, 8, 44)
    expected = exact(x, weight, target)
    with using(OP, load(OP, name)), force(OP.name, name, "forward", schedule):
        loss = linear_cross_entropy(x, weight, target)
        gradients = torch.autograd.grad(loss, (x, weight))
    for found, right in zip((loss, *gradients), expected, strict=True):
        same(found.detach(), right, 1e-6)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("m", "inside"), [(16, True), (15, False), (19, True)])
@pytest.mark.parametrize("piece", [16, 48])
def test_the_float32_sum_of_x_lies_in_the_gradient_where_it_fits(
    name: str, m: int, inside: bool, piece: int
) -> None:
    x, weight, target = make(m, 8, 48, torch.bfloat16)
    schedule = {"CHUNK": 7, "RESIDENT": 1, "SLICE": piece}
    expected = exact(x, weight, target)
    arguments = (x.detach(), weight.detach(), target, -100, "mean", True, True, False, False, True)
    with force(OP.name, name, "forward", schedule), Largest() as made:
        _, _, *gradients = load(OP, name).forward(*arguments)
    assert ((8, 8), torch.float32) not in made.empty or not inside
    assert ((8, 8), torch.float32) in made.empty or inside
    # 7 x 48 logits of a chunk leave 8 tokens 42 classes, of which whole sixteens are used
    assert ((8, min(piece, 32)), torch.bfloat16) in made.empty
    for found, right in zip(gradients, expected[1:], strict=True):
        same(found, right, 2**-6)


@pytest.mark.parametrize("name", KERNELS)
def test_resident_tokens_are_summed_once_in_bfloat16(name: str) -> None:
    x, weight, target = make(32, 32, 72, torch.bfloat16)
    _, _, expected = exact(x, weight, target)
    errors = list[float]()
    for resident in (1, 0):
        schedule = {"CHUNK": 1, "RESIDENT": resident}
        with using(OP, load(OP, name)), force(OP.name, name, "forward", schedule):
            loss = linear_cross_entropy(x, weight, target)
            found = torch.autograd.grad(loss, weight)[0]
        errors.append(float((found.double() - expected).square().mean().sqrt()))
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_float32_accumulation_is_more_accurate_over_many_chunks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_path, "CHUNK", 1)
    monkeypatch.setattr(torch_path, "MOST_CHUNKS", 60)
    x, weight, target = make(60, 8, 40, torch.bfloat16)
    _, _, expected = exact(x, weight, target)
    errors = list[float]()
    for accumulate in (torch.float32, None):
        with (
            using(OP, load(OP, name)),
            force(OP.name, name, "forward", {"CHUNK": 1, "RESIDENT": 0}),
        ):
            loss = linear_cross_entropy(x, weight, target, accumulate=accumulate)
            found = torch.autograd.grad(loss, weight)[0]
        errors.append(float((found.double() - expected).square().mean().sqrt()))
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("factor", [1.0, -3.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_incoming_gradient_scales_in_place(
    name: str, factor: float, dtype: torch.dtype
) -> None:
    x, weight, target = make(9, 8, 33, dtype)
    _, expected_x, expected_weight = exact(x, weight, target, factor)
    with using(OP, load(OP, name)):
        loss = linear_cross_entropy(x, weight, target)
        (loss * factor).backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert x.grad is not None
    assert weight.grad is not None
    relative = 1e-6 if dtype == torch.float32 else 4e-3
    same(x.grad, expected_x, relative)
    same(weight.grad, expected_weight, relative)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_logits_never_exist_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_path, "CHUNK", 4)
    monkeypatch.setattr(torch_path, "MOST_CHUNKS", 10)
    # a row is larger than any kernel's tile, which the interpreter holds as a tensor
    m, h, v = 40, 4, 2100
    x, weight, target = make(m, h, v)
    with (
        using(OP, load(OP, name)),
        force(OP.name, name, "forward", {"CHUNK": 4, "RESIDENT": 1, "SLICE": 500}),
        torch.no_grad(),
        Largest() as largest,
    ):
        arguments = (x, weight, target, -100, "mean", True, True, False, False, True)
        load(OP, name).forward(*arguments)
    assert largest.bytes == 4 * 4 * v < 4 * m * v


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_nothing_of_the_gradient_is_made_where_none_is_wanted(name: str) -> None:
    x, weight, target = make(5, 4, 7)
    with using(OP, load(OP, name)):
        frozen = linear_cross_entropy(x, weight.detach(), target)
        gradient = torch.autograd.grad(frozen, x)[0]
        with torch.no_grad():
            loss = linear_cross_entropy(x, weight, target)
        outputs = OP.run(x.detach(), weight.detach(), target, -100, "mean", *[False] * 4, True)
    expected, expected_x, _ = exact(x, weight, target)
    same(loss, expected, 1e-6)
    same(gradient, expected_x, 1e-6)
    assert [output.numel() for output in outputs] == [1, 5, 0, 0]
    assert not loss.requires_grad


def test_asking_for_a_gradient_that_was_declined_is_an_error() -> None:
    x, weight, target = make(5, 4, 7)
    loss, *_ = OP.run(x, weight, target, -100, "mean", True, *[False] * 4)
    with pytest.raises(UnsupportedError, match="weight_gradient=False"):
        loss.backward()


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_leading_axes_and_an_ignored_class(name: str) -> None:
    x, weight, target = make(6, 4, 9)
    target = target.clamp(min=0)
    with using(OP, load(OP, name)):
        loss = linear_cross_entropy(
            x.reshape(2, 3, 4), weight, target.reshape(2, 3), ignore_index=0, reduction="sum"
        )
    expected = functional.cross_entropy(
        x.double() @ weight.double().T, target, ignore_index=0, reduction="sum"
    )
    same(loss.detach(), expected.detach(), 1e-6)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("m", [0, 4])
def test_a_mean_over_nothing_is_nan_as_in_torch_and_its_gradient_zero(name: str, m: int) -> None:
    x, weight, target = make(m, 4, 9)
    target = torch.full_like(target, -100)
    assert functional.cross_entropy(x @ weight.T, target).isnan()
    with using(OP, load(OP, name)):
        loss = linear_cross_entropy(x, weight, target)
        loss.backward()
    assert loss.isnan()
    assert x.grad is not None
    assert weight.grad is not None
    assert not x.grad.any()
    assert not weight.grad.any()


@pytest.mark.parametrize("wrong", [9, -1])
def test_a_target_out_of_range_is_an_error_on_a_cpu(wrong: int) -> None:
    x, weight, target = (tensor.cpu() for tensor in make(4, 4, 9))
    target[2] = wrong
    with pytest.raises(UnsupportedError, match=rf"target\[2\] is {wrong}: .* in \[0, 9\)"):
        linear_cross_entropy(x, weight, target)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=str)
def test_a_target_out_of_range_makes_a_kernel_return_nan(
    name: str, schedule: dict[str, int]
) -> None:
    x, weight, target = (tensor.detach() for tensor in make(9, 8, 9))
    target[2] = 9
    with force(OP.name, name, "forward", schedule):
        arguments = (x, weight, target, -100, "sum", True, True, False, False, True)
        loss, lse, grad_x, _ = load(OP, name).forward(*arguments)
    assert loss.isnan()
    assert not lse.isnan().any()
    assert grad_x.isnan().any(-1).nonzero().flatten().tolist() == [2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(7, 5)}, r"\[V, H\]"),
        ({"weight": torch.zeros(0, 4)}, "V at least 1"),
        ({"weight": torch.zeros(7, 4).half()}, "weight of x's dtype"),
        ({"target": torch.zeros(5, dtype=torch.int32)}, "target int64"),
        ({"target": torch.zeros(4, dtype=torch.int64)}, "without its last axis"),
        ({"reduction": "none"}, "'mean' or 'sum'"),
        ({"accumulate": torch.bfloat16}, "None or torch.float32"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments = {
        "x": torch.zeros(5, 4),
        "weight": torch.zeros(7, 4),
        "target": torch.zeros(5, dtype=torch.int64),
    }
    with pytest.raises(UnsupportedError, match=message):
        linear_cross_entropy(**{**arguments, **change})


def test_the_cost_counts_products_and_tensors() -> None:
    arguments: dict[str, Any] = {
        "x": torch.empty(3, 4, device="meta", dtype=torch.bfloat16),
        "weight": torch.empty(5, 4, device="meta", dtype=torch.bfloat16),
        "target": torch.empty(3, device="meta", dtype=torch.int64),
        "x_gradient": True,
        "weight_gradient": True,
    }
    spent = OP.cost(arguments)
    assert spent.flops == 3 * 2 * 3 * 4 * 5 + 5 * 15
    assert (spent.bytes_read, spent.bytes_written) == (24 + 40 + 24, 4 + 12 + 24 + 40)
    frozen = OP.cost({**arguments, "weight_gradient": False})
    assert frozen.flops == 2 * 2 * 3 * 4 * 5 + 5 * 15
    assert OP.gradient_cost is not None
    assert OP.gradient_cost(arguments).bytes == 2 * (24 + 40) + 4


def test_roundings_that_all_go_one_way_are_within_the_limit() -> None:
    vocabulary, hidden = 9000, 64
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, hidden, generator=generator) * 1e-3
    row = torch.randn(1, hidden, generator=generator)
    arguments = {"x": x, "weight": row.expand(vocabulary, hidden), "target": torch.tensor([0])}
    *_, size, _ = OP.magnitude(**arguments)
    limit = OP.tolerance(torch.float32).relative * size[0]
    # the probabilities of equal logits, exact but for their own rounding, added one by one
    found = torch.full((vocabulary,), 1 / vocabulary)
    found[0] -= 1
    total = torch.zeros(hidden)
    for share in found:
        total = total + share * row[0]
    assert (total.abs() <= limit).all()
