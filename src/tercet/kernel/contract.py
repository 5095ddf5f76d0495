"""The op contract: what the generic tests, the harness and the selector read of an operation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from tercet.errors import UnsupportedError
from tercet.kernel.compile import find_compiler

Arguments = Mapping[str, Any]
Run = Callable[..., torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A named axis and what runs along it."""

    name: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """A tensor of the op over named axes; an optional one may be None."""

    name: str
    axes: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one call must do at least: floating-point operations and bytes moved."""

    flops: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """|result - reference| <= relative * magnitude for results of this dtype, and why."""

    dtype: torch.dtype
    relative: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input to check the op on; `make` builds the arguments of the reference, seeded."""

    name: str
    make: Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Context:
    """Where a call runs."""

    device: str
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """What an implementation needs.

    Attributes:
        devices: device types it runs on; empty means any.
        dtypes: dtypes of the activations it takes.
        compiler: whether a C++ compiler has to be present.
    """

    devices: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...]
    compiler: bool = False

    def unmet(self, context: Context) -> str | None:
        """The first thing that is missing, in words; None when the implementation may run."""
        if self.devices and context.device not in self.devices:
            return f"runs on {' or '.join(self.devices)}, the tensors are on {context.device}"
        if context.dtype not in self.dtypes:
            allowed = ", ".join(str(dtype) for dtype in self.dtypes)
            return f"takes {allowed}, the input is {context.dtype}"
        if self.compiler and find_compiler() is None:
            return "no C++ compiler was found: run `apt install g++` or set CXX"
        return None


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One way to run an op.

    Attributes:
        name: its name within the op.
        requirement: what it needs.
        path: "module:function", imported on first use; that function takes nothing, builds what it
            has to and returns the implementation, which takes the torch.library op's arguments.
        slow: True for the path that is there so that the op runs at all.
    """

    name: str
    requirement: Requirement
    path: str
    slow: bool = False

    def load(self) -> Run:
        """The implementation. BuildError where its native code cannot be built."""
        module, function = self.path.split(":")
        return getattr(import_module(module), function)()


@dataclass(frozen=True, kw_only=True)
class Op:
    """An operation, whole.

    Attributes:
        name: also the name of its folder and of its torch.library op (tercet::name).
        axes, tensors: the typed signature; every axis of a tensor is declared.
        run: the torch.library op; takes prepared arguments.
        reference: the meaning, in float64; takes a case's arguments.
        magnitude: like reference, with absolute values: the size of what is summed into each
            element, which a rounding error is relative to.
        prepare: a case's arguments to prepared ones.
        cost: of a call with prepared arguments.
        cases, tolerances: what the generic suite checks.
        differentiable: names of arguments that have a gradient.
        implementations: best first.
    """

    name: str
    axes: tuple[Axis, ...]
    tensors: tuple[TensorSpec, ...]
    run: Run
    reference: Run
    magnitude: Run
    prepare: Callable[[Arguments], dict[str, Any]]
    cost: Callable[[Arguments], Cost]
    cases: tuple[Case, ...]
    tolerances: tuple[Tolerance, ...]
    differentiable: tuple[str, ...]
    implementations: tuple[Implementation, ...]

    def __post_init__(self) -> None:
        declared = {axis.name for axis in self.axes}
        for tensor in self.tensors:
            if unknown := set(tensor.axes) - declared:
                raise UnsupportedError(
                    f"op {self.name!r}: tensor {tensor.name!r} has axes {sorted(unknown)} that are "
                    f"not declared: declared are {sorted(declared)}"
                )

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """The tolerance for results of that dtype."""
        for tolerance in self.tolerances:
            if tolerance.dtype == dtype:
                return tolerance
        raise UnsupportedError(
            f"op {self.name!r} has no tolerance for {dtype}: it has "
            f"{', '.join(str(tolerance.dtype) for tolerance in self.tolerances)}"
        )
