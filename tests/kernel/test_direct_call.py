"""An op past torch's dispatcher: only where the dispatcher would have done nothing else."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.kernel import direct_call
from tercet.kernel.register import define, differentiate

NAME = "tests_scaled"
went_directly: list[Tensor] = []


def _run(x: Tensor, y: Tensor | None, factor: float, name: str, dtype: torch.dtype) -> Tensor:
    assert isinstance(factor, float)
    assert name == "name"
    made = x.contiguous().numpy(force=True) * factor
    made = made if y is None else made + y.numpy(force=True)
    return torch.from_numpy(made).to(dtype)


def _fake(x: Tensor, y: Tensor | None, factor: float, name: str, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(x, dtype=dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.factor = inputs[2]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return grad * ctx.factor, grad, None, None, None


OVERLOAD = define(
    NAME,
    "(Tensor x, Tensor? y, float factor, str name, ScalarType dtype) -> Tensor",
    run=_run,
    fake=_fake,
)
differentiate(NAME, save=_save, backward=_backward)


def _directly(x: Tensor, *others: Any) -> Tensor:
    went_directly.append(x)
    return _run(x, *others)


with pytest.MonkeyPatch.context() as patch:
    patch.setattr(direct_call, "behind", {OVERLOAD: _directly}.get)
    CALL = direct_call.direct_call(OVERLOAD)


def scaled(x: Any, y: Any = None, factor: Any = 2.0) -> Tensor:
    """The op as its public function would call it."""
    return CALL(x, y, factor, "name", torch.float32)


def one_argument(x: Tensor) -> Tensor:
    return scaled(x)


class SeesOperations(TorchDispatchMode):
    """Notes the operations that the dispatcher shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class SeesFunctions(TorchFunctionMode):
    """Sees what torch's functions are called with."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def nothing_went() -> None:
    went_directly.clear()


@pytest.mark.parametrize(
    "context",
    [nullcontext, torch.no_grad, torch.inference_mode],
    ids=["eager", "no_grad", "inference"],
)
def test_plain_tensors_go_past_the_dispatcher(
    context: Callable[[], AbstractContextManager[Any]],
) -> None:
    with context():
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        for offered in (x, x.t().contiguous().t(), torch.nn.Parameter(x, requires_grad=False)):
            assert torch.equal(scaled(offered, y), offered * 2 + y)
    assert len(went_directly) == 3


def test_where_no_gradient_is_wanted_leaves_go_past_it_too() -> None:
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(scaled(x), x.detach() * 2)
    assert len(went_directly) == 1


@pytest.mark.parametrize("wanted", ["x", "y"])
def test_a_gradient_is_made(wanted: str) -> None:
    given = {"x": torch.randn(3), "y": torch.randn(3)}
    given[wanted].requires_grad_()
    scaled(**given).backward(torch.ones(3))
    grad = given[wanted].grad
    assert grad is not None
    assert torch.equal(grad, torch.full((3,), 2.0 if wanted == "x" else 1.0))
    assert not went_directly


@pytest.mark.parametrize(
    "watch",
    [
        SeesOperations,
        SeesFunctions,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        torch.profiler.profile,
    ],
    ids=["dispatch mode", "function mode", "autocast", "profiler"],
)
def test_whoever_watches_sees_it(watch: Callable[[], AbstractContextManager[Any]]) -> None:
    x = torch.randn(3)
    with watch() as watching:
        assert torch.equal(scaled(x), x * 2)
    assert not went_directly
    if isinstance(watching, SeesOperations):
        assert OVERLOAD in watching.seen
    if isinstance(watching, torch.profiler.profile):
        assert f"tercet::{NAME}" in str(watching.key_averages())


def test_a_compiler_and_a_tracer_see_it() -> None:
    x = torch.randn(3)
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    assert torch.equal(torch.compile(scaled, backend=keep, fullgraph=True)(x), x * 2)
    traced = make_fx(one_argument)(x)
    for graph in (*graphs, traced):
        assert OVERLOAD in {node.target for node in graph.graph.nodes}


def test_a_transform_goes_the_whole_way() -> None:
    x = torch.randn(3)
    made: Any = torch.func.functionalize(scaled)(x)
    assert torch.equal(made, x * 2)
    assert not went_directly


def test_tensors_that_are_no_plain_ones_go_the_whole_way() -> None:
    complex_ = torch.view_as_complex(torch.randn(3, 2))
    negated = complex_.conj().imag  # the same memory, to be read with another sign
    assert negated.is_neg()
    assert torch.equal(scaled(negated), -complex_.imag * 2)
    assert torch.equal(scaled(torch.randn(3), negated, 0.0), -complex_.imag)
    assert scaled(torch.empty(3, device="meta")).is_meta
    with FakeTensorMode():
        fake = torch.empty(3)
    assert isinstance(scaled(fake), FakeTensor)
    assert not went_directly


def test_arguments_of_other_types_are_the_schemas() -> None:
    x = torch.randn(3)
    assert torch.equal(scaled(x, factor=2), x * 2)  # _run is given a float
    assert not went_directly
    with pytest.raises(Exception, match="x"):
        scaled([1.0, 2.0])
    with pytest.raises(Exception, match="factor"):
        scaled(x, factor="2")
