"""Session: the judge's side of judged calls. It owns their memory, and reads results from there.

A guest, here or in a process of its own, calls the kernels and says where results lie. What they
are, what was written to and what changed between calls is seen from here.
"""

import shutil
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any, Protocol, cast

import psutil
import torch
from torch import Tensor

from tercet import environment
from tercet.child_process import ChildError
from tercet.errors import UnsupportedError
from tercet.harness.sandbox.arena import Arena, Memory, OwnMemory
from tercet.harness.sandbox.bits import same_bits, same_numbers
from tercet.harness.sandbox.early import arena_bytes_of_cpu, take_early
from tercet.harness.sandbox.guard import Placement, Zones, broken_zones, describe, is_sparse, view
from tercet.harness.sandbox.guest import Guest
from tercet.harness.sandbox.isolate import MEMORY_BYTES, SECONDS, Worker
from tercet.kernel.contract import Kernels, Op

_RESTARTS = 4
_STOP_SECONDS = 10.0
_REQUESTS, _SPIN_US = 15, 2000.0
_TEMPORARY = Path(gettempdir())
_CUDA_BYTES = 8 * 2**30
_NEEDED = {"outputs", "gradients", "placed"}
_GUEST = "tercet.harness.sandbox.guest"


@dataclass(frozen=True, kw_only=True)
class Result:
    """A tensor that a call gave.

    Attributes:
        value: its elements, contiguous, copied in the order of the caller's stream.
        stride, requires_grad: of the tensor itself.
        lies: where it lies in the judge's memory; None elsewhere.
    """

    value: Tensor
    stride: tuple[int, ...]
    requires_grad: bool
    lies: int | None

    def meta(self) -> Tensor:
        """A tensor without elements of its dtype, shape and strides."""
        return torch.empty_strided(
            self.value.shape, self.stride, dtype=self.value.dtype, device="meta"
        )


def same_results(a: Result | None, b: Result | None, *, any_nan: bool = False) -> bool:
    """Whether two results are equal to the bit, NaN or not; or so that any NaN equals another."""
    if a is None or b is None:
        return a is b
    return (same_numbers if any_nan else same_bits)(a.value, b.value)


@dataclass(kw_only=True)
class Outcome:
    """What one call gave: outputs in order, gradients by name (None: there is none)."""

    outputs: list[Result]
    gradients: dict[str, Result | None] = field(default_factory=dict[str, Result | None])
    promises: list[str] = field(default_factory=list[str])

    def unlike(self, other: "Outcome", *, any_nan: bool = False) -> list[str]:
        """Which results differ, in any bit, or in any but those of a NaN."""
        found = [
            f"output {at}"
            for at, (one, two) in enumerate(zip(self.outputs, other.outputs, strict=True))
            if not same_results(one, two, any_nan=any_nan)
        ]
        return found + [
            f"gradient of {name}"
            for name, one in self.gradients.items()
            if not same_results(one, other.gradients.get(name), any_nan=any_nan)
        ]


class Place(Protocol):
    """How a session talks to its guest."""

    @property
    def memory(self) -> Memory:
        """What the judge takes memory from."""
        ...

    def ask(self, function: str, **arguments: Any) -> Any:
        """A method of the guest. ChildError where it raised, or ended."""
        ...

    def close(self) -> None:
        """Frees what it holds."""
        ...


class Here:
    """A guest in this process: fast, for code that is trusted."""

    missing: tuple[str, ...] = ()
    said = ""

    def __init__(self, op: Op, kernels: Kernels, device: str) -> None:
        self.memory: Memory = OwnMemory(device)
        self._folder = Path(mkdtemp(prefix="tercet-judged-"))
        self._guest = Guest(op, kernels, _Both(self.memory), [], self._folder)

    def ask(self, function: str, **arguments: Any) -> Any:
        """As Place.ask."""
        try:
            return self._guest.ask(function, arguments)
        except Exception as error:
            raise ChildError(
                "raised",
                f"{type(error).__name__}: {error}",
                message=str(error),
                classes=[each.__name__ for each in type(error).__mro__],
            ) from error

    def close(self) -> None:
        """As Place.close."""
        self.memory.reset()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Both:
    """The judge's memory as a guest in the same process takes from it: only the judge frees it."""

    def __init__(self, memory: Memory) -> None:
        self.device, self.take, self.at, self.find = (
            memory.device, memory.take, memory.at, memory.find,
        )  # fmt: skip

    def reset(self) -> None:
        """The judge does."""


class Apart:
    """A guest in a process that is closed in; started again after a crash, a few times.

    Args:
        op, implementation, module: what it calls (see `guest.load`).
        device: "cpu" or "cuda".
        seconds, memory_bytes, prefix: as Worker's.
        arena_bytes: of the memory that both sides compute in; None for the usual.
        threads: of OpenMP, for calls that are timed.
        first: modules to import there before any of the guest's code.

    Attributes:
        name: the implementation's.
        missing: guarantees that this platform cannot give.
        request_us: for calls that are timed, how much longer than the work in it a request takes,
            in microseconds, and one after a stop: measured before any of the guest's code ran.
    """

    def __init__(
        self,
        op: str,
        implementation: str,
        module: str | None,
        device: str,
        seconds: float = SECONDS,
        memory_bytes: int | None = MEMORY_BYTES,
        prefix: tuple[str, ...] = (),
        arena_bytes: int | None = None,
        threads: int | None = None,
        first: Sequence[str] = (),
    ) -> None:
        self._what: dict[str, Any] = {
            "op": op, "implementation": implementation, "module": module,
        }  # fmt: skip
        self.name, self._first = implementation, tuple(first)
        self._device, self._seconds, self._limit = device, seconds, memory_bytes
        self._prefix, self._starts, self._threads = prefix, 0, threads
        self._fresh = False
        self._worker: Worker | None = None
        self._not_imported: ChildError | None = None
        usual = not (prefix or arena_bytes or threads)
        early = take_early(device, seconds, memory_bytes) if usual else None
        self._early = None if early is None else early.worker
        if early is not None and early.file is not None:
            self._arena = Arena(device, early.file_bytes, early.file)
        else:
            self._arena = Arena(device, arena_bytes or _arena_bytes(device))
        self.memory: Memory = self._arena.memory
        self._folder = Path(mkdtemp(prefix="tercet-judged-"))
        self._temporary = self._folder / "temporary"
        self._temporary.mkdir()
        self.missing: tuple[str, ...] = ()
        self.request_us = (0.0, 0.0)

    def ask(self, function: str, **arguments: Any) -> Any:
        """As Place.ask."""
        return self.call(f"{_GUEST}:serve", method=function, arguments=arguments)

    def call(self, function: str, **arguments: Any) -> Any:
        """A function of the package, "module:name", in the guest's process; as Place.ask."""
        return self._started().call(function, **arguments)

    def start(self) -> None:
        """Starts the guest, unless it runs. ChildError where its module cannot be imported."""
        self._started()

    def stopped(self) -> AbstractContextManager[None]:
        """Nothing of the guest's process runs in the block."""
        return self._started().stopped()

    def queued_us(self) -> float:
        """How long both processes have waited for a core until now, in microseconds."""
        return self._started().queued_us()

    def _started(self) -> Worker:
        if self._not_imported is not None:
            # its process is alive, with no guest in it
            raise self._not_imported
        if self._worker is None or not self._worker.alive:
            self._start()
        assert self._worker is not None
        return self._worker

    def renew(self) -> None:
        """The next call is in a new process, that has nothing in common with the one before."""
        self._end()
        self._fresh = True

    @property
    def said(self) -> str:
        """The end of what the child wrote to standard error."""
        return self._worker.said if self._worker is not None else ""

    def close(self) -> None:
        """As Place.close."""
        self._end()
        if self._early is not None:
            self._early.close()
        self._arena.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> None:
        if self._worker is None:
            return
        if self._worker.alive:
            with suppress(ChildError):
                self._worker.call(f"{_GUEST}:stop", seconds=_STOP_SECONDS)
            if self._device != "cpu":
                # a process that is killed does not give a GPU's shared memory back
                self._worker.finish(_STOP_SECONDS)
        self._worker.close()

    def _start(self) -> None:
        if self._starts > _RESTARTS:
            raise ChildError("crashed", f"it ended its process {_RESTARTS} times before")
        self._starts += 1
        self._end()
        descriptor = self._arena.descriptor
        self._worker, self._early = self._early, None
        if self._worker is None or not self._worker.alive:
            self._worker = Worker(
                self._device,
                self._seconds,
                self._limit,
                self._prefix,
                descriptors=() if descriptor is None else (descriptor,),
                threads=self._threads,
                fresh=self._fresh,
            )
        self._worker.call(f"{_GUEST}:import_first", modules=list(self._first))
        if self._threads is not None:
            self.request_us = _cost_of_request(self._worker)
        writable = [self._folder]
        if self._what["module"] is None:
            # an op's own implementation keeps what it compiles, as everywhere; a candidate does not
            writable += [environment.cache_dir(), environment.triton_cache_dir(), _TEMPORARY]
            for folder in writable:
                folder.mkdir(parents=True, exist_ok=True)
        confined = {
            "writable": list(map(str, writable)),
            "file_bytes": self._limit or psutil.virtual_memory().total,
        }
        try:
            missing = self._worker.call(
                f"{_GUEST}:start",
                **self._what,
                folders=private_folders(self._folder) if self._what["module"] else {},
                arena=self._arena.handle,
                # compute-sanitizer watches its child from outside
                confined=None if self._prefix else confined,
                temporary=str(self._temporary),
            )
        except ChildError as error:
            self._not_imported = error if error.kind == "raised" else None
            raise
        self.missing = tuple(missing)


def _arena_bytes(device: str) -> int:
    if device == "cpu":
        return arena_bytes_of_cpu()
    return min(_CUDA_BYTES, torch.cuda.mem_get_info()[0] // 2)


def _cost_of_request(worker: Worker) -> tuple[float, float]:
    """Microseconds that a request takes beside its work, and one after a stop.

    The work lasts long enough for the judge's core to go to sleep meanwhile.
    """
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(_REQUESTS):
        for each, stopped in zip(took, (False, True), strict=True):
            with worker.stopped() if stopped else nullcontext():
                pass
            begin = time.perf_counter_ns()
            worked = worker.call(f"{_GUEST}:spin", us=_SPIN_US)
            each.append((time.perf_counter_ns() - begin) / 1e3 - worked)
    return statistics.median(took[0]), statistics.median(took[1])


def private_folders(folder: Path) -> dict[str, str]:
    """Variables that name folders of a judged process's own for what it compiles and keeps.

    What is in this user's caches is linked to, so that it can be used and not be changed.
    """
    kept = {
        "TERCET_CACHE": (environment.cache_dir() / "build", folder / "cache" / "build"),
        "TRITON_CACHE_DIR": (environment.triton_cache_dir(), folder / "triton"),
    }
    for shared, own in kept.values():
        own.mkdir(parents=True, exist_ok=True)
        if shared.is_dir():
            for entry in shared.iterdir():
                if not (own / entry.name).is_symlink():
                    (own / entry.name).symlink_to(entry)
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    return {
        "TERCET_CACHE": str(folder / "cache"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TMPDIR": str(temporary),
    }


class Session:
    """One case after another: places inputs, calls, reads results, looks at what was left alone."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._inputs = Zones(place.memory)
        self._now = dict[str, tuple[Tensor, Placement, Tensor]]()
        self._guests: list[Placement] = []
        self._incoming = set[int]()

    def begin(self) -> None:
        """A new case: nothing of the one before is kept."""
        self._inputs.clear()
        self._now.clear()
        self._guests.clear()
        self._incoming.clear()
        self._place.ask("begin")

    def put(self, values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Places tensors, in their layouts; gives what the guest takes for the values."""
        return {name: self._put(prefix + name, value) for name, value in values.items()}

    def put_incoming(self, grad_outputs: Sequence[Tensor | None]) -> list[Any]:
        """Places the incoming gradients of outputs, in order."""
        first = len(self._inputs.placed)
        named = {
            f"the incoming gradient of output {at}": each for at, each in enumerate(grad_outputs)
        }
        placed = list(self.put(named).values())
        self._incoming |= {each["offset"] for each in self._inputs.placed[first:]}
        return placed

    def write(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """New contents for tensors that were placed."""
        for name, value in values.items():
            if isinstance(value, Tensor):
                placed, placement, _ = self._now[prefix + name]
                _copy(placed, value)
                self._now[prefix + name] = (placed, placement, self._octets(placed, placement))

    def forward(
        self,
        call: str,
        arguments: Mapping[str, Any],
        wanted: Sequence[str] = (),
        **context: Any,
    ) -> Outcome:
        """Calls the op: the outputs as they are right after."""
        reply = self._ask(
            "forward", call=call, arguments=dict(arguments), wanted=list(wanted), context=context
        )
        return self._outcome(reply)

    def backward(
        self,
        call: str,
        grad_outputs: Sequence[Any],
        wanted: Sequence[str],
        **context: Any,
    ) -> Outcome:
        """The results of a call with its gradients."""
        reply = self._ask(
            "backward",
            call=call,
            grad_outputs=list(grad_outputs),
            wanted=list(wanted),
            context=context,
        )
        found = self._outcome(reply)
        if set(found.gradients) != set(wanted):
            raise _no_reply("gradients")
        return found

    def overwrite(self, call: str, gradients: Sequence[str]) -> None:
        """As Guest.overwrite."""
        self._ask("overwrite", call=call, gradients=list(gradients))

    def together(self, calls: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
        """Several forwards at once, by their names."""
        asked: list[dict[str, Any]] = [
            {"call": name, "arguments": dict(arguments), "wanted": [], "context": {}}
            for name, arguments in calls.items()
        ]
        found: Any = self._place.ask("together", calls=asked)
        self._guests = list(found[-1]["placed"])
        return [self._outcome(each) for each in found]

    def again(
        self, call: str, count: int, grad_outputs: Sequence[Any] = (), wanted: Sequence[str] = ()
    ) -> list[list[Result]]:
        """The outputs of so many equal calls, or the gradients that are wanted."""
        found: Any = self._place.ask(
            "again", call=call, count=count, grad_outputs=list(grad_outputs), wanted=list(wanted)
        )
        return [[self._read(each) for each in one] for one in found]

    def keep(
        self,
        arguments: Mapping[str, Any],
        grad_outputs: Sequence[Any] = (),
        wanted: Sequence[str] = (),
    ) -> list[str]:
        """What a call with these arguments leaves in memory, as Guest.keep."""
        found: Any = self._place.ask(
            "keep", arguments=dict(arguments), grad_outputs=list(grad_outputs), wanted=list(wanted)
        )
        if not isinstance(found, list):
            raise _no_reply("what a call keeps in memory")
        return [str(each) for each in cast("list[object]", found)]

    def interrupt(
        self, arguments: Mapping[str, Any], grad_outputs: Sequence[Any], wanted: Sequence[str]
    ) -> None:
        """As Guest.interrupt."""
        self._place.ask(
            "interrupt",
            arguments=dict(arguments),
            grad_outputs=list(grad_outputs),
            wanted=list(wanted),
        )

    def read(self, call: str) -> Outcome:
        """The results of a call as they are now."""
        return self._outcome(self._ask("read", call=call))

    def changed(self) -> dict[str, list[str]]:
        """As Guest.changed."""
        reply = self._place.ask("changed")
        return {"state": list(reply["state"]), "imported": list(reply["imported"])}

    def integrate(self, check: str, device: str, **arguments: Any) -> str:
        """As Guest.integrate."""
        return str(self._place.ask("integrate", check=check, device=device, **arguments))

    def written(self) -> list[str]:
        """The placed tensors that are not what was put there, byte for byte."""
        found: list[str] = []
        for name, (placed, placement, before) in self._now.items():
            if not same_bits(self._octets(placed, placement), before):
                found.append(name)
        return found

    def broken(self) -> list[str]:
        """As guard.broken_zones, of inputs and of what the guest placed."""
        memory = self._place.memory
        return broken_zones(memory, self._inputs.placed) + broken_zones(memory, self._guests)

    def shares(self, result: Result) -> bool:
        """Whether a result lies in an input's memory; that of an incoming gradient it may take."""
        return self._lies_in(result, incoming=False)

    def is_incoming(self, result: Result) -> bool:
        """Whether a result lies in the memory of an incoming gradient."""
        return self._lies_in(result, incoming=True)

    def _lies_in(self, result: Result, *, incoming: bool) -> bool:
        at = result.lies
        return at is not None and any(
            each["offset"] <= at < each["offset"] + each["whole"]
            for each in self._inputs.placed
            if (each["offset"] in self._incoming) == incoming
        )

    def _put(self, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        placed, placement = self._inputs.described(name, value)
        _copy(placed, value)
        self._now[name] = (placed, placement, self._octets(placed, placement))
        return describe(placed, placement)

    def _octets(self, placed: Tensor, placement: Placement) -> Tensor:
        """A copy of a placed tensor's bytes, gaps between its rows included if they are small."""
        if is_sparse(placement["size"]):
            return placed.contiguous()
        octets = self._place.memory.at(placement["offset"], placement["whole"])
        return octets[placement["start"] : placement["start"] + placement["size"]].clone()

    def _ask(self, function: str, **arguments: Any) -> dict[str, Any]:
        reply = self._place.ask(function, **arguments)
        if not isinstance(reply, dict) or not set(cast(Iterable[str], reply)) >= _NEEDED:
            raise _no_reply("a result")
        found = cast("dict[str, Any]", reply)
        self._guests = list(found["placed"])
        return found

    def _outcome(self, reply: dict[str, Any]) -> Outcome:
        return Outcome(
            outputs=[self._read(each) for each in reply["outputs"]],
            gradients={
                name: None if each is None else self._read(each)
                for name, each in reply["gradients"].items()
            },
            promises=list(reply.get("promises", ())),
        )

    def _read(self, reply: Mapping[str, Any]) -> Result:
        try:
            copied = view(self._place.memory, reply["copy"])
            return Result(
                value=copied.clone().reshape(reply["shape"]),
                stride=tuple(reply["stride"]),
                requires_grad=bool(reply["requires_grad"]),
                lies=reply["lies"],
            )
        except (KeyError, TypeError, ValueError, RuntimeError, UnsupportedError) as error:
            raise _no_reply(f"a result ({error})") from error


def _copy(placed: Tensor, value: Tensor) -> None:
    """Copies to a tensor that may be expanded: along such an axis the first element is all."""
    for axis, (size, step) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if size > 1 and not step:
            placed, value = placed.narrow(axis, 0, 1), value.narrow(axis, 0, 1)
    placed.copy_(value)


def _no_reply(what: str) -> ChildError:
    return ChildError("crashed", f"its process did not say where {what} lies")
