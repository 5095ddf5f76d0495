"""Runner: where an implementation runs while it is judged: in this process or another."""

from typing import Any, Protocol

from tercet.errors import UnsupportedError
from tercet.harness import integration
from tercet.harness.execute import execute, hide_reference, load_candidate
from tercet.harness.isolate import MEMORY_BYTES, SECONDS, Worker, WorkerError
from tercet.kernel.contract import Kernels, Op
from tercet.kernel.select import find

_loaded: dict[tuple[str, str, str | None], tuple[Op, Kernels]] = {}
_FUNCTIONS = {
    "opcheck": integration.opcheck,
    "compiled": integration.compiled,
    "captured": integration.captured,
    "streamed": integration.streamed,
    "execute": execute,
}
_RESTARTS = 4


class Runner(Protocol):
    """Runs `execute` or one of the functions of `integration` on one implementation."""

    def run(self, function: str, **arguments: Any) -> Any:
        """The function's result. WorkerError where the implementation raised or ended."""
        ...

    def close(self) -> None:
        """Frees what it holds."""
        ...


class LocalRunner:
    """In this process: fast, for code that is trusted."""

    def __init__(self, op: Op, kernels: Kernels, device: str) -> None:
        self._op, self._kernels, self._device = op, kernels, device

    def run(self, function: str, **arguments: Any) -> Any:
        """As Runner.run."""
        try:
            return _FUNCTIONS[function](self._op, self._kernels, device=self._device, **arguments)
        except Exception as error:
            raise WorkerError("raised", f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing to free."""


class IsolatedRunner:
    """In a child process that is started again after a crash, a few times."""

    def __init__(
        self,
        op: str,
        implementation: str,
        module: str | None,
        device: str,
        seconds: float = SECONDS,
        memory_bytes: int | None = MEMORY_BYTES,
        prefix: tuple[str, ...] = (),
        paths: tuple[str, ...] = (),
    ) -> None:
        self._names = {"op": op, "implementation": implementation, "module": module}
        self._device, self._seconds, self._memory = device, seconds, memory_bytes
        self._prefix, self._paths, self._starts = prefix, paths, 0
        self._worker: Worker | None = None

    def run(self, function: str, **arguments: Any) -> Any:
        """As Runner.run."""
        if self._worker is None or not self._worker.alive:
            if self._starts > _RESTARTS:
                raise WorkerError("crashed", f"it ended its process {_RESTARTS} times before")
            self._starts += 1
            if self._worker is not None:
                self._worker.close()
            self._worker = Worker(
                self._device, self._seconds, self._memory, self._prefix, self._paths
            )
        return self._worker.call(
            "tercet.harness.runner:run_in_child",
            name=function,
            names=self._names,
            device=self._device,
            **arguments,
        )

    @property
    def said(self) -> str:
        """The end of what the child wrote to standard error."""
        return self._worker.said if self._worker is not None else ""

    def close(self) -> None:
        """Ends the child."""
        if self._worker is not None:
            self._worker.close()


def run_in_child(name: str, names: dict[str, Any], device: str, **arguments: Any) -> Any:
    """In the child: loads the candidate once, without the reference, and runs the function."""
    key = (names["op"], names["implementation"], names["module"])
    if key not in _loaded:
        hide_reference(find(names["op"]))
        _loaded[key] = load_candidate(*key)
    if name not in _FUNCTIONS:
        raise UnsupportedError(f"no function {name!r}: there are {', '.join(_FUNCTIONS)}")
    return _FUNCTIONS[name](*_loaded[key], device=device, **arguments)


def fault_kind(error: WorkerError, otherwise: str = "forward") -> str:
    """Which check a call that failed is a finding of."""
    if "out of a candidate's reach" in str(error) or error.kind in ("crashed", "time"):
        return "isolation"
    return "memory" if error.kind == "memory" else otherwise


def fault_message(error: WorkerError) -> str:
    """What it said, on one line."""
    return " ".join(str(error).split())[:600]
