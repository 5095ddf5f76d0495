"""Select: which implementation of an op runs, and why."""

import pkgutil
import warnings
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

import torch

from tercet.errors import BuildError, UnsupportedError
from tercet.kernel.contract import Context, Op, Run


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


_chosen: dict[tuple[str, str, torch.dtype], Run] = {}


def choose(op: Op, device: str, dtype: torch.dtype) -> Run:
    """The best implementation that may run; the choice is kept for the life of the process.

    Warns once when only a slow one may, and says what the faster ones miss. UnsupportedError where
    none may run.
    """
    key = (op.name, device, dtype)
    if key not in _chosen:
        _chosen[key] = _first_that_runs(op, Context(device, dtype))
    return _chosen[key]


def forget() -> None:
    """Forgets every choice: the next calls choose (and warn) anew."""
    _chosen.clear()


def explain(op: Op, device: str, dtype: torch.dtype) -> tuple[Verdict, ...]:
    """A verdict on each implementation, best first."""
    context, verdicts, found = Context(device, dtype), list[Verdict](), False
    for implementation in op.implementations:
        missing = _missing(op, implementation.name, context)
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


def load(op: Op, name: str) -> Run:
    """The implementation of that name, whether or not it would win."""
    for implementation in op.implementations:
        if implementation.name == name:
            return implementation.load()
    known = ", ".join(implementation.name for implementation in op.implementations)
    raise UnsupportedError(f"op {op.name!r} has no implementation {name!r}: it has {known}")


def _missing(op: Op, name: str, context: Context) -> str | None:
    requirement = next(i.requirement for i in op.implementations if i.name == name)
    missing = requirement.unmet(context)
    if missing is not None:
        return missing
    try:
        load(op, name)
    except BuildError as error:
        return str(error)
    return None


def _first_that_runs(op: Op, context: Context) -> Run:
    misses: list[str] = []
    for implementation in op.implementations:
        missing = _missing(op, implementation.name, context)
        if missing is not None:
            misses.append(f"{implementation.name}: {missing}")
            continue
        if implementation.slow and misses:
            warnings.warn(
                f"op {op.name!r} runs on its slow path {implementation.name!r}, because "
                f"{'; '.join(misses)}",
                stacklevel=4,
            )
        return implementation.load()
    raise UnsupportedError(
        f"op {op.name!r} has no implementation that may run: {'; '.join(misses)}"
    )


@lru_cache(maxsize=1)
def discover() -> dict[str, Op]:
    """Every op by name: each folder of `tercet.ops` has an op.py that exports OP."""
    folder = import_module("tercet.ops")
    modules = (
        import_module(f"tercet.ops.{m.name}.op") for m in pkgutil.iter_modules(folder.__path__)
    )
    return {module.OP.name: module.OP for module in modules}
