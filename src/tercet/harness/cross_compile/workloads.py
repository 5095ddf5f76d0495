"""Workloads: the calls whose kernels are compiled: those of an 8B and of a 70B model.

An op that dense models do not call has those of a mixture of experts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.harness.workloads.shapes import workloads_of
from tercet.kernel.contract import Implementation, Op, Workload

MODELS = ("llama-3-8b", "llama-3-70b")
SPARSE_MODELS = ("qwen3-30b-a3b",)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call to capture the launches of.

    Attributes:
        name: of the workload or case.
        sizes: of the axes; what the tuned table is asked for.
        make: the arguments of the reference; run where tensors have no memory.
    """

    name: str
    sizes: dict[str, int]
    make: Callable[[], dict[str, Any]]


def calls(
    op: Op, implementation: Implementation, asked: Sequence[Workload] = ()
) -> tuple[Call, ...]:
    """The calls that were asked for; else the op's production calls that the implementation takes.

    Where it takes none of their dtype, those calls in its own; else the op's largest case.
    UnsupportedError where it takes none of those asked for.
    """
    if asked:
        found = _calls_of(asked, op, implementation)
        if not found:
            raise UnsupportedError(
                f"{implementation.name!r} of {op.name!r} takes none of these calls: "
                + ", ".join(str(workload) for workload in asked)
            )
        return found
    dense, sparse = (
        [workload for model in models for workload in workloads_of(op, model)]
        for models in (MODELS, SPARSE_MODELS)
    )
    for usual in (dense, sparse, _in_own_dtype(dense, implementation)):
        if found := _calls_of(usual, op, implementation):
            return found
    return _largest_case(op)


def _in_own_dtype(
    workloads: Iterable[Workload], implementation: Implementation
) -> tuple[Workload, ...]:
    dtype = implementation.requirement.dtypes[0]
    word = str(dtype).removeprefix("torch.")
    return tuple(
        replace(workload, name=f"{workload.name} {word}", dtype=dtype) for workload in workloads
    )


def _calls_of(
    workloads: Iterable[Workload], op: Op, implementation: Implementation
) -> tuple[Call, ...]:
    if op.inputs is None:
        return ()
    inputs, requirement = op.inputs, implementation.requirement
    return tuple(
        Call(
            name=workload.name,
            sizes=dict(workload.sizes),
            make=lambda workload=workload: inputs(workload, 0, "cpu"),
        )
        for workload in workloads
        if workload.dtype in requirement.dtypes
        and requirement.unfit(workload.sizes, op.traits(op.options_of(workload))) is None
    )


def _largest_case(op: Op) -> tuple[Call, ...]:
    largest = max(
        (case for case in op.cases if case.gradient),
        key=lambda case: _elements(op.prepare(case.make(0)).values()),
        default=None,
    )
    if largest is None:
        return ()
    return (Call(name=largest.name, sizes={}, make=lambda: largest.make(0)),)


def _elements(values: Iterable[Any]) -> int:
    return sum(value.numel() for value in values if isinstance(value, Tensor))
