"""Selection: the best that may run, its reasons, and a warning for a slow path."""

import warnings
from collections.abc import Iterator

import pytest
import torch

from tercet import environment
from tercet.errors import UnsupportedError
from tercet.kernel import select
from tercet.kernel.contract import Op, TensorSpec
from tercet.kernel.requirement import Context, Requirement
from tercet.ops.linear_packed import cpu, linear_packed, prepare, torch_path
from tercet.ops.linear_packed.cases import random_weight
from tercet.ops.linear_packed.op import OP

FULL = torch.float32


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    select.forget()
    yield
    select.forget()


def test_the_compiled_path_wins_on_a_cpu() -> None:
    assert select.choose(OP, "cpu", FULL).forward is cpu.forward
    first, second = select.explain(OP, "cpu", FULL)
    assert (first.implementation, first.allowed, first.chosen) == ("cpu", True, True)
    assert (second.implementation, second.allowed, second.chosen) == ("torch", True, False)
    assert str(second).split() == ["torch", "may", "run", "a", "better", "one", "may", "run"]


def test_without_a_compiler_it_warns_once_and_still_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, x = prepare(random_weight("int4", 20, 64, seed=1)), torch.ones(1, 64)
    expected = linear_packed(x, weight)
    select.forget()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match=r"slow path 'torch', because cpu: no C\+\+ compiler"):
        found = linear_packed(x, weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linear_packed(x, weight)
    torch.testing.assert_close(found, expected)
    verdict = select.explain(OP, "cpu", FULL)[0]
    assert not verdict.allowed
    assert "apt install g++" in verdict.reason


def test_on_a_gpu_the_slow_path_names_the_unmet_requirement() -> None:
    with pytest.warns(UserWarning, match="cpu: runs on cpu, the tensors are on cuda"):
        assert select.choose(OP, "cuda", FULL).forward is torch_path.forward
    assert [verdict.chosen for verdict in select.explain(OP, "cuda", FULL)] == [False, True]


def test_no_implementation_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="no implementation that may run: cpu: takes"):
        select.choose(OP, "cpu", torch.float64)
    with pytest.raises(UnsupportedError, match="no implementation 'triton': it has cpu, torch"):
        select.load(OP, "triton")


def test_requirement_says_what_is_missing() -> None:
    requirement = Requirement(devices=("cuda",), dtypes=(torch.float16,))
    assert requirement.unmet(Context("cuda", torch.float16)) is None
    unmet = requirement.unmet(Context("cuda", FULL))
    assert unmet == "takes torch.float16, the input is torch.float32"


def test_an_op_with_an_axis_that_is_not_declared_is_refused() -> None:
    fields = {name: getattr(OP, name) for name in OP.__dataclass_fields__}
    fields["tensors"] = (TensorSpec(name="z", axes=("M", "Q"), dtypes=(FULL,)),)
    with pytest.raises(UnsupportedError, match=r"tensor 'z' has axes \['Q'\]"):
        Op(**fields)
    with pytest.raises(UnsupportedError, match=r"no tolerance for torch.float64"):
        OP.tolerance(torch.float64)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CPU_ISA", "portable")
    assert environment.cpu_isa() == "portable"
    monkeypatch.setenv("TERCET_CPU_ISA", "sse9")
    with pytest.raises(UnsupportedError, match="TERCET_CPU_ISA='sse9': allowed are portable"):
        environment.cpu_isa()
