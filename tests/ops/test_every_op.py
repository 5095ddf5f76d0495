"""The generic suite: every op, every implementation, every case."""

from collections.abc import Iterator

import pytest
import torch

from tercet.kernel.contract import Case, Op
from tercet.kernel.select import discover, load

OPS = discover()
RUNS = [(op, case) for op in OPS.values() for case in op.cases]
IDS = [f"{op.name}-{case.name}" for op, case in RUNS]
every_case = pytest.mark.parametrize(("op", "case"), RUNS, ids=IDS)
SOME = [run for op in OPS.values() for run in RUNS if run[0] is op][::37]
some_cases = pytest.mark.parametrize(
    ("op", "case"), SOME, ids=[f"{op.name}-{case.name}" for op, case in SOME]
)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fresh tensors are full of NaN, so an element that is never written shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def names(op: Op) -> list[str]:
    return [implementation.name for implementation in op.implementations]


@pytest.mark.usefixtures("poisoned")
@every_case
def test_matches_the_reference(op: Op, case: Case) -> None:
    arguments = case.make(0)
    expected, magnitude = op.reference(**arguments), op.magnitude(**arguments)
    prepared = op.prepare(arguments)
    before = {k: v.clone() for k, v in prepared.items() if isinstance(v, torch.Tensor)}
    for name in names(op):
        found = load(op, name).forward(*prepared.values())
        assert found.shape == expected.shape, name
        limit = op.tolerance(found.dtype).relative * magnitude
        limit = limit + torch.finfo(found.dtype).smallest_normal
        wrong = ~((found.double() - expected).abs() <= limit)
        worst = ((found.double() - expected).abs() / limit).nan_to_num(torch.inf)
        assert not wrong.any(), f"{name}: {int(wrong.sum())} wrong, {worst.max():.3g} x the limit"
        again = load(op, name).forward(*prepared.values())
        assert torch.equal(found, again), f"{name}: a second run differs"
    for key, value in before.items():
        assert torch.equal(value, prepared[key]), f"{key} was written to"


@every_case
def test_tensors_are_as_declared(op: Op, case: Case) -> None:
    prepared = op.prepare(case.make(0))
    for spec in op.tensors:
        tensor = prepared.get(spec.name)
        if tensor is None:
            assert spec.optional or spec.name not in prepared
            continue
        assert tensor.dtype in spec.dtypes
    spent = op.cost(prepared)
    assert min(spent.flops, spent.bytes_read, spent.bytes_written) >= 0
    result = op.run(*prepared.values())
    assert spent.bytes_written == result.numel() * result.element_size()


def differentiable_runs() -> list[tuple[Op, Case]]:
    return [(op, case) for op, case in RUNS if op.differentiable][::5]


@pytest.mark.parametrize(
    ("op", "case"), differentiable_runs(), ids=[case.name for _, case in differentiable_runs()]
)
def test_gradient_matches_float64(op: Op, case: Case) -> None:
    arguments = case.make(0)
    wanted = [name for name in op.differentiable if arguments[name] is not None]
    exact = dict(arguments)
    for name in wanted:
        exact[name] = arguments[name].double().requires_grad_()
    expected = op.reference(**exact)
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    prepared = op.prepare(arguments)
    for name in wanted:
        prepared[name] = prepared[name].clone().requires_grad_()
    found = op.run(*prepared.values())
    direction = direction.to(found.dtype)
    references = torch.autograd.grad(expected, [exact[n] for n in wanted], direction.double())
    gradients = torch.autograd.grad(found, [prepared[n] for n in wanted], direction)
    for name, gradient, reference in zip(wanted, gradients, references, strict=True):
        assert gradient.dtype == prepared[name].dtype
        assert gradient.shape == reference.shape
        if reference.numel():
            relative = op.tolerance(gradient.dtype).relative
            limit = 4 * relative * reference.abs().max() + 1e-30
            assert (gradient.double() - reference).abs().max() <= limit, name


@some_cases
def test_torch_library_accepts_it(op: Op, case: Case) -> None:
    prepared = op.prepare(case.make(0))
    for name in op.differentiable:
        if prepared[name] is not None:
            prepared[name] = prepared[name].clone().requires_grad_()
    torch.library.opcheck(op.run, tuple(prepared.values()))


def test_finds_the_ops_by_their_folders() -> None:
    assert {"linear_packed", "embedding_packed"} <= set(OPS)
    assert all(op.name == name for name, op in OPS.items())
