"""define: what stands between torch's dispatcher and an op's function."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tercet.kernel import register
from tercet.kernel.direct_call import direct_call

_ONE, _TWO = "(Tensor x) -> Tensor", "(Tensor x) -> (Tensor, Tensor)"
_NUMBERS = count()


def test_kernels_run_on_the_gpu_of_the_first_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches go to the current GPU, which need not be the tensors'."""
    entered = list[torch.device]()

    def enter(device: torch.device) -> AbstractContextManager[None]:
        entered.append(device)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", enter)

    def run(scale: float, x: Tensor) -> Tensor:
        return x * scale

    guarded = register.on_its_gpu(run)
    # where there is a GPU, it would be asked for one that is not there
    monkeypatch.setattr("torch._subclasses.fake_tensor.init_gpu_context", lambda _: None)
    with FakeTensorMode():
        for index in (0, 1, 2):
            assert guarded(2.0, torch.empty(3, device=f"cuda:{index}")).get_device() == index
    assert guarded(2.0, torch.ones(3)).tolist() == [2, 2, 2]
    assert entered == [torch.device("cuda:0"), torch.device("cuda:2")]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(
    ("schema", "run", "message"),
    [
        (_ONE, lambda x: None, "returned None, its schema declares one tensor"),
        (_ONE, lambda x: (x + 1, x), r"returned a tuple of \(Tensor, Tensor\), .* one tensor"),
        (_ONE, lambda x: x.numpy(), "returned ndarray, .* one tensor"),
        (_TWO, lambda x: x + 1, "returned Tensor, .* a tuple of 2 tensors"),
        (_TWO, lambda x: (x + 1, None), r".*\(Tensor, None\), .* a tuple of 2 tensors"),
        # torch ended the process
        (_TWO, lambda x: (x + 1, x + 2, x + 3), r".*\(Tensor, Tensor, Tensor\), .* 2 tensors"),
    ],
)
def test_a_result_that_the_schema_does_not_declare_is_refused(
    schema: str, run: Callable[[Tensor], Any], message: str, direct: bool
) -> None:
    name = f"undeclared_{next(_NUMBERS)}"
    overload = register.define(name, schema, run=run, fake=run)
    call = direct_call(overload) if direct else overload
    with pytest.raises(TypeError, match=f"tercet::{name} {message}.*test_register.py"):
        call(torch.ones(3))


@pytest.mark.parametrize(
    ("gradients", "count"), [(lambda grad: grad, 1), (lambda grad: (grad, None, grad), 3)]
)
def test_a_gradient_too_few_or_too_many_is_refused(
    gradients: Callable[[Tensor], Any], count: int
) -> None:
    name, schema = f"backward_{next(_NUMBERS)}", "(Tensor x, float scale) -> Tensor"

    def run(x: Tensor, scale: float) -> Tensor:
        return x * scale

    def backward(ctx: Any, grad: Tensor) -> Any:
        return gradients(grad)

    overload = register.define(name, schema, run=run, fake=run)
    register.differentiate(name, save=lambda ctx, inputs, output: None, backward=backward)
    y = overload(torch.ones(3, requires_grad=True), 2.0)
    message = rf"tercet::{name} returned {count} gradients of 2 arguments \(x, scale\)"
    with pytest.raises(TypeError, match=message):
        y.sum().backward()


@pytest.mark.parametrize("kind", [tuple, list])
def test_results_that_the_schema_declares_are_handed_on(kind: type) -> None:
    def run(x: Tensor) -> Any:
        return kind((x + 1, x + 2))

    overload = register.define(f"declared_{next(_NUMBERS)}", _TWO, run=run, fake=run)
    first, second = overload(torch.ones(2))
    assert (first.tolist(), second.tolist()) == ([2, 2], [3, 3])


def test_an_op_that_declares_no_result_may_return_none() -> None:
    def run(x: Tensor) -> None:
        x.add_(1)

    x = torch.ones(2)
    name = f"nothing_{next(_NUMBERS)}"
    assert register.define(name, "(Tensor(a!) x) -> ()", run=run, fake=run)(x) is None
    assert x.tolist() == [2, 2]
