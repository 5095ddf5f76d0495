"""The op contract: what the generic tests, the harness and the selector read of an operation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import isfinite
from typing import Any, Literal, cast

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.model_shape import ModelShape
from tercet.kernel.requirement import Context, Options, Requirement, Sizes

Arguments = Mapping[str, Any]
Run = Callable[..., Any]
Role = Literal["input", "output", "saved"]
Language = Literal["torch", "cpp", "triton", "gluon", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A named axis and what runs along it.

    Attributes:
        name, meaning: what the op calls it, and what runs along it.
        most: the largest size that a check draws, where a large one would take minutes.
    """

    name: str
    meaning: str
    most: int | None = None


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """A tensor of the op over named axes.

    Attributes:
        name: the argument's name; for outputs, what the README calls it.
        axes: its axes, in order; leading axes of an input may be several, flattened into the first.
        dtypes: what it may be.
        optional: whether an input may be None (an absent output has no elements).
        role: "input"; "output" of `run`; or "saved": an output of `run` that only the gradient
            reads, and that has none itself. Outputs are declared in the order of `run`.
        chooses: of integers, the axis whose rows they are indices of, any of them in any order.
    """

    name: str
    axes: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    optional: bool = False
    role: Role = "input"
    chooses: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one call must do at least: floating-point operations and bytes moved."""

    flops: int
    bytes_read: int
    bytes_written: int

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """|result - reference| <= relative * magnitude for results of this dtype, and why.

    Integer results must be equal unless the op declares otherwise. A gradient may be off by
    `gradient` times the largest magnitude of its row (it is a sum over what the forward computed
    once); default: four times `relative`. With `inner`, a result may be off by relative * |result|
    + inner * magnitude: for ops that are float32 inside and round once at the end.
    """

    dtype: torch.dtype
    relative: float
    reason: str
    gradient: float | None = None
    inner: float | None = None

    @property
    def gradient_relative(self) -> float:
        """What a gradient of this dtype may be off by."""
        return 4 * self.relative if self.gradient is None else self.gradient


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input to check the op on.

    Attributes:
        name: unique within the op.
        make: seed -> the arguments of the reference, on the CPU; fresh values for every seed, equal
            ones for equal seeds.
        gradient: whether the gradient is defined and checked here (not at inf and NaN).
        options: of the workload that it was made from: cases that are drawn combine them anew.
        incoming: changes the random incoming gradient of the output of that number; None leaves it.
        refusable: whether UnsupportedError is as right as the reference's result: of inputs that
            only an implementation on a CPU can refuse without waiting for them.
    """

    name: str
    make: Callable[[int], dict[str, Any]]
    gradient: bool = True
    refusable: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    incoming: Callable[[Tensor, int], Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A call as it occurs in production: the size of each axis, a dtype and the op's options."""

    name: str
    sizes: Sizes
    dtype: torch.dtype = torch.bfloat16
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        sizes = " ".join(f"{axis}={size}" for axis, size in self.sizes.items())
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        return " ".join(part for part in (sizes, str(self.dtype)[6:], options) if part)


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """A loaded implementation.

    Attributes:
        forward: takes what the torch.library op takes, in its order, or the one value that the op
            builds of it (a PackedCall, say: the op's own implementations show which); returns its
            outputs.
        gradient: likewise takes what the op's gradient takes; None where it has none of its own.
    """

    forward: Run
    gradient: Run | None = None


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One way to run an op.

    Attributes:
        name: its name within the op.
        requirement: what it needs.
        module: imported on first use; it has a function `forward`, may have `gradient`, and may
            have `build`, which is called once before and raises BuildError where it cannot build.
        language: what it is written in; decides how it is cross-compiled and interpreted.
        slow: True for the path that is there so that the op runs at all.
        capturable: whether a CUDA graph may hold it; False where it reads values on the host.
        arrange: "module:function" from prepared arguments to those in the layout that it takes;
            None where it takes them as they are. For whoever prepares on one device what runs on
            another, as a check does.
        tolerances: of its results, in place of the op's of the same dtype, where the hardware's
            arithmetic bounds what its sums can keep: derived, each with its reason.
        space, gradient_space: the configurations of forward and gradient that the tuner may choose
            from: option -> values.
        small_space: further values of these options that only a check draws, where kernels are
            interpreted: with them a small input takes several tiles or chunks, as production's do.
        former_names: that records of the same kernel carry from before it was renamed.
    """

    name: str
    requirement: Requirement
    module: str
    language: Language
    slow: bool = False
    capturable: bool = True
    arrange: str | None = None
    tolerances: tuple[Tolerance, ...] = ()
    space: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    gradient_space: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]]
    )
    small_space: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    former_names: tuple[str, ...] = ()

    def has_gradient(self, context: Context) -> bool:
        """Whether it may run there and has a gradient of its own; builds nothing."""
        if self.requirement.unmet(context) is not None:
            return False
        return hasattr(import_module(self.module), "gradient")

    def load(self) -> Kernels:
        """The implementation. BuildError where its native code cannot be built."""
        module = import_module(self.module)
        if build := getattr(module, "build", None):
            build()
        return Kernels(forward=module.forward, gradient=getattr(module, "gradient", None))


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a user would call instead, for the benchmark.

    Attributes:
        name: as the table shows it.
        path: "module:function"; takes the op's prepared arguments by name, returns its outputs
            (without the saved ones); differentiable by autograd.
        package: the distribution it needs, as pip names it; None for torch alone.
        prepare: "module:function" from the arguments of the reference to those that `path` takes
            instead of the op's own: a weight in the peer's layout, say. Runs once for each set of
            inputs, untimed. None for `Op.prepare`.
        tolerance: its outputs may be this far from the reference, as the norm of the difference
            over the norm of the reference; what is further off computes something else, and its
            time does not count. None: not compared.
    """

    name: str
    path: str
    package: str | None = None
    prepare: str | None = None
    tolerance: float | None = None

    def load(self) -> Run:
        """The function. ImportError where the package is missing."""
        return _import_run(self.path)

    def preparation(self, op: "Op") -> Callable[[Arguments], dict[str, Any]]:
        """What makes its arguments of the reference's."""
        return op.prepare if self.prepare is None else _import_run(self.prepare)


def _import_run(path: str) -> Run:
    module, function = path.split(":")
    return getattr(import_module(module), function)


def _pass_arguments(arguments: Arguments) -> dict[str, Any]:
    return dict(arguments)


def _pass_options(options: Options) -> Options:
    return options


def _no_workloads(model: ModelShape) -> tuple[Workload, ...]:
    del model
    return ()


@dataclass(frozen=True, kw_only=True)
class Op:
    """An operation, whole.

    Attributes:
        name: also the name of its folder and of its torch.library op (tercet::name).
        axes, tensors: the typed signature; every axis of a tensor is declared.
        run: the torch.library op; takes prepared arguments, in order.
        reference: the meaning, in float64; takes a case's arguments; plain differentiable torch.
        magnitude: like reference, with absolute values: the size of what is summed into each
            element, which a rounding error is relative to; NaN where an infinite result may be
            NaN, too. None: the size of the result itself.
        gradient_magnitude: (directions, **arguments) -> name -> the size of what is summed into
            each element of that gradient, where terms cancel; a gradient's rounding is otherwise
            taken relative to the largest element of its row.
        prepare: a case's arguments to prepared ones.
        defaults: options of a workload that names none of them, as `inputs` takes them.
        traits: a call's options to what requirements speak of: a scheme's name to its element and
            group, say.
        describe: prepared arguments to the workload that they are, which requirements judge;
            None where every implementation takes every case.
        cost, gradient_cost: of a call with prepared arguments (meta tensors will do), forward and
            backward.
        cases, tolerances: what the check runs and judges by.
        differentiable: names of arguments that have a gradient.
        implementations: best first.
        inputs: (workload, seed, device) -> the arguments of the reference for it.
        shapes: the op's calls in a model, from the model's published shape.
        derived: of an argument that is made of others (codes of a tensor, its transpose), which:
            a check that changes an argument's contents leaves these alone.
        unread: of an argument that only carries a gradient, the argument whose presence makes it
            so, or None where it always is: its numbers are not read, and may be anything.
        independent: an axis along which calls are independent of each other, so that a check at
            scale may compare some of its rows; None where there is none.
        baselines: what the benchmark compares with; the first is plain torch.
    """

    name: str
    axes: tuple[Axis, ...]
    tensors: tuple[TensorSpec, ...]
    run: Run
    reference: Run
    magnitude: Run | None = None
    gradient_magnitude: Callable[..., dict[str, Tensor]] | None = None
    prepare: Callable[[Arguments], dict[str, Any]] = _pass_arguments
    defaults: Options = field(default_factory=dict[str, Any])
    traits: Callable[[Options], Options] = _pass_options
    describe: Callable[[Arguments], Workload] | None = None
    cost: Callable[[Arguments], Cost]
    gradient_cost: Callable[[Arguments], Cost] | None = None
    cases: tuple[Case, ...]
    tolerances: tuple[Tolerance, ...]
    differentiable: tuple[str, ...] = ()
    implementations: tuple[Implementation, ...]
    inputs: Callable[[Workload, int, str], dict[str, Any]] | None = None
    shapes: Callable[[ModelShape], tuple[Workload, ...]] = _no_workloads
    derived: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    unread: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    independent: str | None = None
    baselines: tuple[Baseline, ...] = ()

    def __post_init__(self) -> None:
        self._check_tuples()
        declared = {axis.name for axis in self.axes}
        for tensor in self.tensors:
            if unknown := set(tensor.axes) - declared:
                raise UnsupportedError(
                    f"op {self.name!r}: tensor {tensor.name!r} has axes {sorted(unknown)} that are "
                    f"not declared: declared are {sorted(declared)}"
                )
        if self.independent is not None and self.independent not in declared:
            raise UnsupportedError(
                f"op {self.name!r}: independent axis {self.independent!r} is not declared: "
                f"declared are {sorted(declared)}"
            )
        self._check_names()
        self._check_tolerances()

    def _check_tuples(self) -> None:
        """UnsupportedError for axes or dtypes of a tensor that are no tuple of them.

        One in brackets without a comma is none, and a word would count as its letters.
        """
        for tensor in self.tensors:
            for name, kind, example in (
                ("axes", str, '("M", "N")'),
                ("dtypes", torch.dtype, "(torch.float32,)"),
            ):
                value: Any = getattr(tensor, name)
                each = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else ()
                if not isinstance(value, tuple) or not all(isinstance(one, kind) for one in each):
                    raise UnsupportedError(
                        f"op {self.name!r}: tensor {tensor.name!r} has {name}={value!r}: write a "
                        f"tuple, as in {example}"
                    )

    def _check_names(self) -> None:
        """UnsupportedError where a gradient is none of an input's, or two cases share a name."""
        inputs = [tensor.name for tensor in self.of_role("input")]
        if unknown := sorted(set(self.differentiable) - set(inputs)):
            raise UnsupportedError(
                f"op {self.name!r}: differentiable names {', '.join(unknown)}, which is no input: "
                f"inputs are {', '.join(inputs)}"
            )
        names = [case.name for case in self.cases]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UnsupportedError(
                f"op {self.name!r}: several cases are named {', '.join(map(repr, twice))}: give "
                "each a name of its own"
            )

    def _check_tolerances(self) -> None:
        for each in self.tolerances:
            for word in ("relative", "gradient", "inner"):
                limit = getattr(each, word)
                if limit is not None and not (isfinite(limit) and limit >= 0):
                    raise UnsupportedError(
                        f"op {self.name!r}: the tolerance for {each.dtype} has {word}={limit}: it "
                        "must be 0 or a positive number"
                    )

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """The tolerance for results of that dtype; integers are exact unless one is declared."""
        for tolerance in self.tolerances:
            if tolerance.dtype == dtype:
                return tolerance
        if not dtype.is_floating_point:
            return Tolerance(dtype=dtype, relative=0.0, reason="integers are exact")
        raise UnsupportedError(
            f"op {self.name!r} has no tolerance for {dtype}: it has "
            f"{', '.join(str(tolerance.dtype) for tolerance in self.tolerances)}"
        )

    def implementation(self, name: str) -> Implementation:
        """The implementation of that name."""
        for implementation in self.implementations:
            if implementation.name == name:
                return implementation
        known = ", ".join(implementation.name for implementation in self.implementations)
        raise UnsupportedError(f"op {self.name!r} has no implementation {name!r}: it has {known}")

    def options_of(self, workload: Workload) -> Options:
        """The workload's options, and the op's defaults where it names none."""
        return {**self.defaults, **workload.options}

    def context(self, workload: Workload, device: str) -> Context:
        """What a requirement is asked about for that workload on that device."""
        options = self.traits(self.options_of(workload))
        return Context(device, workload.dtype, workload.sizes, options)

    def unfit(self, implementation: Implementation, prepared: Arguments) -> str | None:
        """Which size or option of these arguments the implementation cannot take, in words."""
        if self.describe is None:
            return None
        call, needs = self.describe(prepared), implementation.requirement
        if needs.dtypes and call.dtype not in needs.dtypes:
            return f"takes {', '.join(map(str, needs.dtypes))}, the input is {call.dtype}"
        return needs.unfit(call.sizes, self.traits(call.options))

    def in_layout_of(self, implementation: Implementation) -> "Op":
        """The op whose `prepare` gives the layout that the implementation takes."""
        if implementation.arrange is None:
            return self
        module, function = implementation.arrange.split(":")
        arrange, given = getattr(import_module(module), function), self.prepare

        def prepare(arguments: Arguments) -> dict[str, Any]:
            return arrange(given(arguments))

        return replace(self, prepare=prepare)

    def held_to(self, implementation: Implementation) -> "Op":
        """The op with the tolerances that one of its own implementations has in place of the op's.

        Any other, a candidate say, is held to the op's, whatever it asks for.
        """
        own = implementation.tolerances if implementation in self.implementations else ()
        if not own:
            return self
        replaced = {tolerance.dtype for tolerance in own}
        kept = (each for each in self.tolerances if each.dtype not in replaced)
        return replace(self, tolerances=(*own, *kept))

    def of_role(self, *roles: Role) -> tuple[TensorSpec, ...]:
        """The declared tensors of these roles, in order."""
        return tuple(tensor for tensor in self.tensors if tensor.role in roles)


def outputs_of(result: Any) -> tuple[Tensor, ...]:
    """What an op or its reference returned, as a tuple of tensors."""
    return (result,) if isinstance(result, Tensor) else tuple(result)
