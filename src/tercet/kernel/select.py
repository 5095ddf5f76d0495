"""Select: which implementation of an op runs, and why."""

import importlib.util
import pkgutil
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import torch

from tercet.errors import BuildError, UnsupportedError, unknown_name
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
        if len(_by_call) >= _CALLS:
            _by_call.clear()
        found = _by_call[call] = _chosen[key]
    return found


def choose_gradient(op: Op, device: str, dtype: torch.dtype, sizes: Sizes | None = None) -> Run:
    """The gradient of the chosen implementation, or of the first that may run and has one."""
    kernels = choose(op, device, dtype, sizes)
    if kernels.gradient is not None:
        return kernels.gradient
    context = Context(device, dtype, sizes or {})
    for implementation in op.implementations:
        if implementation.requirement.unmet(context) is None:
            gradient = implementation.load().gradient
            if gradient is not None:
                return gradient
    raise UnsupportedError(f"op {op.name!r} has no gradient that may run on {device} in {dtype}")


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


def _fits(op: Op, context: Context) -> tuple[bool, ...]:
    return tuple(
        implementation.requirement.unfit(context.sizes, context.options) is None
        for implementation in op.implementations
    )


def _missing(implementation: Implementation, context: Context) -> str | None:
    missing = implementation.requirement.unmet(context)
    if missing is not None:
        return missing
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


def names() -> tuple[str, ...]:
    """Every op's name: each folder of `tercet.ops` has an op.py that exports OP."""
    folder = import_module("tercet.ops")
    return tuple(module.name for module in pkgutil.iter_modules(folder.__path__))


@lru_cache(maxsize=1)
def discover() -> dict[str, Op]:
    """Every op by name."""
    return {name: import_module(f"tercet.ops.{name}.op").OP for name in names()}


def find(name: str) -> Op:
    """The op of that name, or the one in the folder that `name` is the path of.

    A folder outside of the package is imported as `tercet.ops.<folder's name>`. UnsupportedError
    for a name that is neither, with the names that come near.
    """
    if name in names():
        return import_module(f"tercet.ops.{name}.op").OP
    folder = Path(name).resolve()
    if not (folder / "op.py").is_file():
        raise UnsupportedError(
            f"{unknown_name('op', name, names())}; or give the path of a folder with an op.py"
        )
    package = f"tercet.ops.{folder.name}"
    if package not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[package] = module
        spec.loader.exec_module(module)
    return import_module(f"{package}.op").OP
