"""Select: which implementation of an op runs, and why."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tercet.errors import BuildError, UnsupportedError
from tercet.kernel.contract import Implementation, Kernels, Op, Run
from tercet.kernel.requirement import Context, Options, Sizes


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What selection thinks of one implementation: whether it may run, whether it won, and why."""

    implementation: str
    allowed: bool
    chosen: bool
    reason: str

    def __str__(self) -> str:
        mark = "chosen" if self.chosen else "may run" if self.allowed else "may not"
        return f"{self.implementation:12} {mark:8} {self.reason}"


_CALLS = 65536
_chosen: dict[tuple[object, ...], Kernels] = {}
_by_call: dict[tuple[object, ...], Kernels] = {}
_forced: dict[str, Kernels] = {}


def choose(
    op: Op,
    device: str,
    dtype: torch.dtype,
    sizes: Sizes | None = None,
    options: Options | None = None,
) -> Kernels:
    """The best implementation that may run; the choice is kept for the life of the process.

    Warns once when only a slow one may, and says what the faster ones miss. UnsupportedError where
    none may run. A call of known sizes and options (hashable, in one order) is one lookup.
    """
    if _forced and op.name in _forced:
        return _forced[op.name]
    call = (op.name, device, dtype, *(sizes or {}).values(), *(options or {}).values())
    found = _by_call.get(call)
    if found is None:
        context = Context(device, dtype, sizes or {}, op.traits(options or {}))
        key = (op.name, device, dtype, *_fits(op, context))
        if key not in _chosen:
            _chosen[key] = _first_that_runs(op, context)
        found = _keep(call, _chosen[key])
    return found


def choose_gradient(op: Op, device: str, dtype: torch.dtype, sizes: Sizes | None = None) -> Run:
    """The gradient of the best implementation that may run and has one; only that one is built.

    UnsupportedError where none has.
    """
    forced = _forced.get(op.name)
    if forced is not None and forced.gradient is not None:
        return forced.gradient
    call = (op.name, "gradient", device, dtype, *(sizes or {}).values())
    if call not in _by_call:
        context = Context(device, dtype, sizes or {})
        misses = list[str]()
        for each in op.implementations:
            missing = _missing(each, context, gradient=True)
            if missing is None:
                break
            misses.append(f"{each.name}: {missing}")
        else:
            raise UnsupportedError(
                f"op {op.name!r} has no gradient that may run on {device} in {dtype}: "
                f"{'; '.join(misses)}"
            )
        found = each
        _keep(call, found.load())
    gradient = _by_call[call].gradient
    assert gradient is not None
    return gradient


@contextmanager
def using(op: Op, kernels: Kernels) -> Generator[None, None, None]:
    """Every call of the op runs on these kernels: for judging and timing one implementation."""
    before = _forced.get(op.name)
    _forced[op.name] = kernels
    try:
        yield
    finally:
        if before is None:
            del _forced[op.name]
        else:
            _forced[op.name] = before


def forget() -> None:
    """Forgets every choice: the next calls choose (and warn) anew."""
    _chosen.clear()
    _by_call.clear()


def explain(
    op: Op,
    device: str,
    dtype: torch.dtype,
    sizes: Sizes | None = None,
    options: Options | None = None,
) -> tuple[Verdict, ...]:
    """A verdict on each implementation, best first; sizes and options not given are not judged."""
    context = Context(device, dtype, sizes or {}, op.traits(options or {}))
    verdicts, found = list[Verdict](), False
    for implementation in op.implementations:
        missing = _missing(implementation, context)
        chosen = missing is None and not found
        found = found or chosen
        reason = missing or ("the best that may run" if chosen else "a better one may run")
        verdicts.append(
            Verdict(
                implementation=implementation.name,
                allowed=missing is None,
                chosen=chosen,
                reason=reason,
            )
        )
    return tuple(verdicts)


def load(op: Op, name: str) -> Kernels:
    """The implementation of that name, whether or not it would win."""
    return op.implementation(name).load()


def _keep(call: tuple[object, ...], kernels: Kernels) -> Kernels:
    """Remembers what a call is answered with."""
    if len(_by_call) >= _CALLS:
        _by_call.clear()
    _by_call[call] = kernels
    return kernels


def _fits(op: Op, context: Context) -> tuple[bool, ...]:
    return tuple(
        implementation.requirement.unfit(context.sizes, context.options) is None
        for implementation in op.implementations
    )


def _missing(
    implementation: Implementation, context: Context, *, gradient: bool = False
) -> str | None:
    missing = implementation.requirement.unmet(context)
    if missing is not None:
        return missing
    # before it is loaded: one without a gradient is not built for it
    if gradient and not implementation.has_gradient(context):
        return f"{implementation.module} defines no function gradient"
    try:
        implementation.load()
    except BuildError as error:
        return str(error)
    return None


def _first_that_runs(op: Op, context: Context) -> Kernels:
    misses: list[str] = []
    for implementation in op.implementations:
        missing = _missing(implementation, context)
        if missing is not None:
            misses.append(f"{implementation.name}: {missing}")
            continue
        if implementation.slow and _worth_a_warning(op, context):
            warnings.warn(
                f"op {op.name!r} runs on its slow path {implementation.name!r}, because "
                f"{'; '.join(misses)}",
                stacklevel=4,
            )
        return implementation.load()
    raise UnsupportedError(
        f"op {op.name!r} has no implementation that may run: {'; '.join(misses)}"
    )


def _worth_a_warning(op: Op, context: Context) -> bool:
    """Whether a fast path was meant for this device; on a GPU one always is."""
    return context.device == "cuda" or any(
        context.device in implementation.requirement.devices
        for implementation in op.implementations
        if not implementation.slow
    )
