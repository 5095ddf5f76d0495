"""What drawn cases of an op are made from, and how large they may be."""

import inspect
from collections.abc import Mapping
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from tercet.formats import PackedTensor
from tercet.harness.workloads.arguments import tied_arguments
from tercet.harness.workloads.drawn import FLOATS
from tercet.harness.workloads.shapes import workloads_of
from tercet.kernel.cases import KINDS
from tercet.kernel.contract import Op, Workload

_MODELS = ("smollm2-135m", "qwen3-30b-a3b")
# times as many elements as in all tensors, at most: what two axes span, as logits are no tensor of
# the contract
_BETWEEN = 4


def bases_of(op: Op) -> list[Workload]:
    """Calls in production, whose options cases are drawn with."""
    return [each for model in _MODELS for each in workloads_of(op, model)]


def largest_sizes(op: Op, elements: int, rows: int | None) -> dict[str, int]:
    """The largest size of each axis."""
    most = {each.name: each.most or elements for each in op.axes}
    leading = op.of_role("input")[0].axes[:1]
    return most | {axis: min(most[axis], rows) for axis in leading if rows is not None}


def dtypes_of(op: Op, base: Workload) -> list[torch.dtype]:
    """Of activations: what the op's inputs may be drawn in."""
    floats = [spec.dtypes for spec in op.of_role("input") if spec.dtypes[0].is_floating_point]
    return [each for each in (*floats, (base.dtype,))[0] if each.itemsize > 1] or [base.dtype]


def single_options(op: Op) -> list[dict[str, Any]]:
    """Each option that the op's cases have, alone, as each of its values."""
    return [{name: value} for name, known in values_of_options(op).items() for value in known]


def values_of_options(op: Op) -> dict[str, list[Any]]:
    """Each option that the op's cases have, and what they have it as."""
    found = dict[str, list[Any]]()
    for case in op.cases:
        for name, value in case.options.items():
            known = found.setdefault(name, [])
            if value not in known:
                known.append(value)
    return found


def known_options(op: Op) -> set[str]:
    """Every option that the op's cases, defaults or calls in production have."""
    calls = {name for each in bases_of(op) for name in each.options}
    return {*op.defaults, *values_of_options(op), *calls}


def takes_kinds(op: Op) -> bool:
    """Whether the op's inputs are drawn in kinds of values."""
    return op.inputs is not None and "kind" in inspect.signature(op.inputs).parameters


def kinds_of(op: Op, dtype: torch.dtype) -> tuple[str, ...]:
    """The kinds of the op's own cases; the largest numbers only where those hold them.

    Squares or sums of them may be beyond float32, and then the op promises nothing.
    """
    known = [(word, case) for case in op.cases for word in case.name.split("-") if word in KINDS]
    largest = any(
        isinstance(value, Tensor) and value.dtype == dtype
        for kind, case in known
        if kind == "largest"
        for value in case.make(0).values()
    )
    kinds = {kind for kind, _ in known if kind != "largest" or largest}
    kinds |= {"small", "positive"} if kinds else set()
    kinds |= {"lowest"} if "subnormal" in kinds else set()
    kinds |= {"outlier"} if "mixed" in kinds else set()
    return tuple(each for each in KINDS if each in kinds)


def fits(op: Op, sizes: Mapping[str, int], elements: int) -> bool:
    """Whether the tensors, and what a reference may make of any two axes, are small enough."""
    longest = sorted(sizes.values())[-2:]
    return elements_of(op, sizes) <= elements and prod(longest) <= _BETWEEN * elements


def elements_of(op: Op, sizes: Mapping[str, int]) -> int:
    """Of all tensors together."""
    return sum(prod(sizes.get(axis, 1) for axis in spec.axes) for spec in op.tensors)


def float_of(value: Any) -> torch.dtype | None:
    """Of a tensor's numbers, or of the scales of packed weights; None where they are no floats."""
    if isinstance(value, tuple):
        several = cast("tuple[Any, ...]", value)
        return float_of(several[0]) if several else None
    if isinstance(value, PackedTensor):
        return float_of(value.scale)
    return value.dtype if isinstance(value, Tensor) and value.dtype in FLOATS else None


def free_floats(op: Op, arguments: Mapping[str, Any]) -> list[str]:
    """Names of tensors of floats that are tied to no others: they may hold anything."""
    tied = tied_arguments(op, arguments)
    return [
        name
        for name, value in arguments.items()
        if name not in tied and isinstance(value, Tensor) and value.dtype in FLOATS
    ]


def packed_elements(value: Any) -> int:
    """Of a packed weight, or of several."""
    if isinstance(value, PackedTensor):
        return prod(value.shape)
    if isinstance(value, tuple):
        return sum(map(packed_elements, cast("tuple[Any, ...]", value)))
    return 0
