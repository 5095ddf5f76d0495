"""Guest: the side of a judged call that calls the kernels, and nothing else.

It is given places of inputs in the judge's memory, runs the op on one implementation, and tells
where results lie. It holds no reference, makes no comparison and knows no verdict. In a process of
its own it is asked through `serve`; code that is trusted runs in a `Guest` of the judge's process.
"""

import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tercet import environment
from tercet.child_process.confine import confine
from tercet.errors import UnsupportedError
from tercet.harness.sandbox import integration
from tercet.harness.sandbox.arena import Memory, attach
from tercet.harness.sandbox.candidate import import_candidate
from tercet.harness.sandbox.guard import (
    FailingOperation,
    GuardedAllocations,
    Placement,
    Zones,
    view,
)
from tercet.harness.sandbox.other_settings import (
    deterministic,
    other_settings,
    temporary_folder,
)
from tercet.harness.sandbox.state import State, changes, looks, modes, settings
from tercet.harness.workloads.gradients import make_leaves, vjp
from tercet.kernel.contract import Implementation, Kernels, Op, Requirement, outputs_of
from tercet.kernel.interpreter.corrections import correct, interpreting
from tercet.kernel.interpreter.grid import backwards
from tercet.kernel.select import using
from tercet.kernel.tuned import force
from tercet.ops.discover import find

Values = dict[str, Any]
# what importing a module may change: imported packages add filters of their own, and authors the
# folder that their own modules lie in
_AT_IMPORT = {"warning filters", "module search path"}
_OVERWRITTEN = 77.0
_TURN_SECONDS = 1e-5
# failing calls of one case: at the first operation, at the last, and between
_INTERRUPTED = 5


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call that ran: what its backward pass needs."""

    arguments: Values
    outputs: list[Tensor]
    gradients: dict[str, Tensor | None]


class Guest:
    """One implementation of an op, and the calls of it that are not forgotten yet.

    Attributes:
        op, kernels: what it calls.
        memory: where its tensors lie, the judge's.
    """

    def __init__(
        self,
        op: Op,
        kernels: Kernels,
        memory: Memory,
        at_import: list[str],
        temporary: Path | None = None,
    ) -> None:
        # its first import would change settings in a judged call
        import_module("torch._dynamo")
        self.op, self.kernels, self.memory = op, kernels, memory
        self._zones = Zones(memory)
        self._calls, self._seen = dict[str, _Call](), dict[str, tuple[Values, Tensor]]()
        self._at_import, self._before = at_import, dict[str, Any]()
        self._left, self._temporary = list[str](), temporary

    def ask(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """One of these methods, with a folder of its own for what it calls temporary."""
        if self._temporary is None:
            return getattr(self, method)(**arguments)
        with temporary_folder(self._temporary):
            return getattr(self, method)(**arguments)

    def begin(self) -> None:
        """Forgets all calls and frees their memory; settings are compared with those of now."""
        self._calls.clear()
        self._seen.clear()
        self._zones.clear()
        self._left.clear()
        self._temporary_files(remove=True)
        self._before: State = settings()

    def forward(
        self,
        call: str,
        arguments: Mapping[str, Any],
        wanted: Sequence[str],
        context: Mapping[str, Any],
    ) -> Values:
        """Calls the op; `read` gives the results again, `backward` their gradients.

        Args:
            call: what to remember it as.
            arguments: of the op, by name; descriptions of tensors (`guard.describe`) or values.
            wanted: the arguments that may want a gradient.
            context: see `_set`.

        Returns:
            As `read`, and `promises`: results unlike those of the op's fake.
        """
        inference = context.get("made_in") == "inference"
        with torch.inference_mode() if inference else nullcontext():
            values = self._views(arguments, "made in inference mode" if inference else "")
        leaves = make_leaves(values, wanted)
        run = _compiled(self.op.run) if context.get("compiled") else self.op.run
        promises = list[str]()
        with self._as_it_was(leaves), self._watching(promises, context), self._within(context):
            outputs = list(outputs_of(run(*leaves.values())))
        if context.get("aliased"):
            outputs = [each.detach() for each in outputs]
        self._calls[call] = _Call(arguments=leaves, outputs=outputs, gradients={})
        return {**self.read(call), "promises": promises}

    def backward(
        self,
        call: str,
        grad_outputs: Sequence[Mapping[str, Any] | None],
        wanted: Sequence[str],
        context: Mapping[str, Any],
    ) -> Values:
        """The gradients of one call: `gradients`, as `read`; None for one that is not there."""
        held, promises = self._calls[call], list[str]()
        grads = [None if each is None else view(self.memory, each) for each in grad_outputs]
        with (
            self._as_it_was(held.arguments),
            self._watching(promises, context),
            self._within({**context, "mode": "grad"}),
        ):
            gradients = vjp(held.outputs, grads, held.arguments, wanted, keep=True)
        held.gradients.update(gradients)
        return {**self.read(call), "promises": promises}

    def overwrite(self, call: str, gradients: Sequence[str]) -> Values:
        """Writes to these gradients of a call, as whoever was given them may; else as `read`."""
        with torch.no_grad():
            for name in gradients:
                cast(Tensor, self._calls[call].gradients[name]).fill_(_OVERWRITTEN)
        return self.read(call)

    def together(self, calls: Sequence[Mapping[str, Any]]) -> list[Values]:
        """Several forwards, each in a thread of its own, all begun at once, in many small turns."""
        gate, results = threading.Barrier(len(calls)), dict[int, Any]()
        usual = sys.getswitchinterval()

        def one(at: int) -> None:
            try:
                gate.wait()
                results[at] = self.forward(**calls[at])
            except Exception as error:  # noqa: BLE001 raised again where it is waited for
                results[at] = error

        threads = [threading.Thread(target=one, args=(at,)) for at in range(len(calls))]
        sys.setswitchinterval(_TURN_SECONDS)
        try:
            with using(self.op, self.kernels):
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        finally:
            sys.setswitchinterval(usual)
        for result in results.values():
            if isinstance(result, Exception):
                raise result
        return [results[at] for at in range(len(calls))]

    def again(
        self,
        call: str,
        count: int,
        grad_outputs: Sequence[Mapping[str, Any] | None],
        wanted: Sequence[str],
    ) -> list[list[Values]]:
        """The same call so many times: its outputs, or the gradients that are wanted."""
        held, found = self._calls[call], list[list[Values]]()
        grads = [None if each is None else view(self.memory, each) for each in grad_outputs]
        for _ in range(count):
            with torch.set_grad_enabled(bool(wanted)), self._watching(None, {}):
                results = list(outputs_of(self.op.run(*held.arguments.values())))
                if wanted:
                    gradients = vjp(results, grads, held.arguments, wanted)
                    results = [each for each in gradients.values() if each is not None]
            _wait()
            found.append([self._copied("a result", each) for each in results])
        return found

    def interrupt(
        self,
        arguments: Mapping[str, Any],
        grad_outputs: Sequence[Mapping[str, Any] | None],
        wanted: Sequence[str],
    ) -> None:
        """Calls of which each fails at another operation of torch's, as where memory ends."""
        values = self._views(arguments)
        grads = [None if each is None else view(self.memory, each) for each in grad_outputs]

        def run(names: Sequence[str], failing: FailingOperation) -> None:
            leaves = make_leaves(values, names)
            with using(self.op, self.kernels), self._as_it_was(leaves), self._within({}), failing:
                outputs = outputs_of(self.op.run(*leaves.values()))
                if names:
                    vjp(outputs, grads, leaves, names)

        # last without gradients: there autograd puts no mode back
        for names in dict.fromkeys((tuple(wanted), ())):
            run(names, counted := FailingOperation())
            last = counted.count - 1
            some = {last * part // (_INTERRUPTED - 1) for part in range(_INTERRUPTED)}
            for at in sorted(some, reverse=True):
                # a kernel may have another way where one fails
                with suppress(Exception):
                    run(names, FailingOperation(at))

    def keep(
        self,
        arguments: Mapping[str, Any],
        grad_outputs: Sequence[Mapping[str, Any] | None],
        wanted: Sequence[str],
    ) -> list[str]:
        """What of a call is in memory when its caller has let go of it, arguments and results.

        Of two calls after each other: what a first one sets up, the second might keep.
        """
        held = dict[str, StorageWeakRef]()
        for at in range(2):
            self._call_and_forget(f"call {at}: ", arguments, grad_outputs, wanted, held)
        gc.collect()
        return [name for name, storage in held.items() if not storage.expired()]

    def _call_and_forget(
        self,
        label: str,
        arguments: Mapping[str, Any],
        grad_outputs: Sequence[Mapping[str, Any] | None],
        wanted: Sequence[str],
        held: dict[str, StorageWeakRef],
    ) -> None:
        """In memory of its own: the judge's is never free."""
        values: Values = {
            name: view(self.memory, cast("Any", each)).clone() if isinstance(each, dict) else each
            for name, each in arguments.items()
        }
        grads = [None if each is None else view(self.memory, each).clone() for each in grad_outputs]
        leaves = make_leaves(values, wanted)
        with using(self.op, self.kernels), self._within({}):
            outputs = list(outputs_of(self.op.run(*leaves.values())))
            gradients = vjp(outputs, grads, leaves, wanted, keep=False) if wanted else {}
        _wait()
        for name, each in (
            *values.items(),
            *((f"output {at}", each) for at, each in enumerate(outputs)),
            *((f"the gradient of {name}", each) for name, each in gradients.items()),
        ):
            if isinstance(each, Tensor) and each.numel():
                held[label + name] = StorageWeakRef(each.untyped_storage())

    def read(self, call: str) -> Values:
        """The results of a call as they are now, and every tensor that was placed until now."""
        _wait()
        held = self._calls[call]
        return self._tell(held.outputs, held.gradients)

    def changed(self) -> Values:
        """Settings that are not as before: `state`; and that importing it changed: `imported`."""
        files = ["the folder for temporary files"] if self._temporary_files() else []
        found = dict.fromkeys([*changes(self._before, settings()), *self._left, *files])
        return {"state": list(found), "imported": self._at_import}

    def _temporary_files(self, *, remove: bool = False) -> list[str]:
        """What is left in the folder; nobody ever looks for it there."""
        if self._temporary is None:
            return []
        names = os.listdir(self._temporary)
        for name in names if remove else ():
            path = self._temporary / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return names

    def integrate(self, check: str, device: str, **arguments: Any) -> str:
        """What one of the functions of `integration` objects to; empty where nothing."""
        known: dict[str, Callable[..., str]] = {
            "opcheck": integration.opcheck,
            "compare_captured": integration.compare_captured,
            "compare_streamed": integration.compare_streamed,
        }
        return known[check](self.op, self.kernels, device=device, **arguments)

    def _views(self, arguments: Mapping[str, Any], made: str = "") -> Values:
        """The same objects for new contents of the same memory, as callers have them."""
        found: Values = {}
        for name, each in arguments.items():
            if isinstance(each, dict):
                described = cast("dict[str, Any]", each)
                known = self._seen.get(name + made)
                if known is None or known[0] != described:
                    known = self._seen[name + made] = (described, view(self.memory, described))
                each = known[1]
            found[name] = each
        return found

    def _tell(self, outputs: Sequence[Tensor], gradients: Mapping[str, Tensor | None]) -> Values:
        return {
            "outputs": [self._copied("an output", each) for each in outputs],
            "gradients": {
                name: None if each is None else self._copied(f"the gradient of {name}", each)
                for name, each in gradients.items()
            },
            "placed": list(self._zones.placed),
        }

    def _copied(self, name: str, result: Tensor) -> Values:
        """A copy of a result as it is on the current stream, where it lies, and how."""
        plain = result.detach()
        size = plain.numel() * plain.element_size()
        block = self.memory.take(size)
        whole: Placement = {"name": name, "offset": block.offset, "whole": size, "start": 0}
        flat = plain.flatten()
        copy = {**whole, "shape": [len(flat)], "stride": [1], "dtype": plain.dtype}
        view(self.memory, copy).copy_(flat)
        _wait()
        return {
            "copy": copy,
            "shape": list(plain.shape),
            "stride": list(plain.stride()),
            "dtype": plain.dtype,
            "lies": self.memory.find(plain) if plain.numel() else None,
            "requires_grad": result.requires_grad,
        }

    @contextmanager
    def _watching(self, promises: list[str] | None, context: Mapping[str, Any]) -> Generator[None]:
        with ExitStack() as stack:
            stack.enter_context(using(self.op, self.kernels))
            # a mode of ours is nothing that torch.compile could trace
            if not context.get("compiled"):
                stack.enter_context(GuardedAllocations(self._zones, promises))
            yield

    @contextmanager
    def _within(self, context: Mapping[str, Any]) -> Generator[None]:
        """As a caller might run it; notes what was left of the caller's settings."""
        with _set(context):
            looked_at = settings if context.get("other_settings") else modes
            before = looked_at()
            try:
                yield
            finally:
                # a call that fails, too: its caller may catch what it raises, and goes on
                self._left += changes(before, looked_at())

    @contextmanager
    def _as_it_was(self, arguments: Mapping[str, Any]) -> Generator[None]:
        """Notes what was changed about the arguments themselves."""
        before = looks(arguments)
        try:
            yield
        finally:
            self._left += changes(before, looks(arguments))


@contextmanager
def _set(context: Mapping[str, Any]) -> Generator[None]:
    """Runs what is inside as a caller might.

    `mode`: "grad" (default), "no_grad", "inference"; `made_in`: "inference", where its arguments
    are tensors of that mode; `autocast`: a dtype, on the arguments' device
    `device`; `threads`: of torch; `default_dtype`: of torch, as while a model is loaded;
    `default_device`: of torch; `numpy_errors`: what numpy does at an overflow and a division by 0,
    as "raise"; a NaN or a subnormal number may be a right result, and is read from there;
    `deterministic`: torch refuses operations whose order is left to chance;
    `other_settings`: all others are at another value than by default;
    `aliased`: what is kept of the outputs are other tensors in their memory;
    `configurations`: (op, implementation, direction, options) that its launches take;
    `backwards`: the last program of a launch runs first, in the interpreter.
    """
    with ExitStack() as stack:
        if context.get("backwards") and interpreting():
            stack.enter_context(backwards())
        match context.get("mode", "grad"):
            case "no_grad":
                stack.enter_context(torch.no_grad())
            case "inference":
                stack.enter_context(torch.inference_mode())
            case _:
                stack.enter_context(torch.enable_grad())
        if context.get("autocast") is not None:
            stack.enter_context(torch.autocast(context["device"], dtype=context["autocast"]))
        if context.get("threads") is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(context["threads"])
        if context.get("default_dtype") is not None:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(context["default_dtype"])
        if context.get("default_device") is not None:
            stack.enter_context(torch.device(context["default_device"]))
        if context.get("numpy_errors") is not None:
            kind = context["numpy_errors"]
            stack.enter_context(np.errstate(over=kind, divide=kind))
        if context.get("deterministic"):
            stack.enter_context(deterministic())
        if context.get("other_settings"):
            stack.enter_context(other_settings())
        for each in context.get("configurations", ()):
            stack.enter_context(force(*each))
        yield


def _compiled(run: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(run, backend="aot_eager", fullgraph=True)


def _wait() -> None:
    """Until the current stream is done: work elsewhere is not waited for, nor by a user."""
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


def load(op: str, implementation: str, module: str | None) -> tuple[Op, Kernels, list[str]]:
    """The op, the kernels to run (its own, or those of a module), and what importing changed."""
    if interpreting():
        correct()
    found = find(op)
    before = settings()
    if module is None:
        kernels = found.implementation(implementation).load()
    else:
        kernels = Implementation(
            name=implementation,
            requirement=Requirement(dtypes=()),
            module=import_candidate(module),
            language="torch",
        ).load()
    changed = [name for name in changes(before, settings()) if name not in _AT_IMPORT]
    return found, kernels, changed if module is not None else []


def hide_reference(op: Op) -> None:
    """Puts the op's reference out of reach of what runs in this process, for good."""

    def out_of_reach(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(f"the reference of {op.name!r} is out of a candidate's reach")

    home = op.reference.__module__
    for name in (home, home.rpartition(".")[0] + ".op"):
        module = import_module(name)
        functions: dict[str, Any] = {**vars(module)}
        for attribute, value in functions.items():
            if callable(value) and getattr(value, "__module__", None) == home:
                setattr(module, attribute, out_of_reach)
    object.__setattr__(op, "reference", out_of_reach)
    object.__setattr__(op, "magnitude", None)


_guest: list[Guest] = []


def get_ready() -> None:
    """In the child, ahead of a start: imports and begins what takes seconds."""
    import_module("torch._dynamo")
    if torch.cuda.is_available():
        torch.cuda.init()


def import_first(modules: Sequence[str]) -> None:
    """In the child: imports what the guest's code must not have changed before."""
    for name in modules:
        import_module(name)


def spin(us: float) -> float:
    """In the child: keeps its core busy for that long; says how long, in microseconds."""
    begin = time.perf_counter_ns()
    while (took := (time.perf_counter_ns() - begin) / 1e3) < us:
        pass
    return took


def start(
    op: str,
    implementation: str,
    module: str | None,
    folders: Mapping[str, str],
    arena: dict[str, Any],
    confined: dict[str, Any] | None,
    temporary: str,
) -> list[str]:
    """In the child: maps the arena, closes itself in, then loads the implementation.

    Args:
        op, implementation, module: see `load`.
        folders: variables of the environment that name folders of its own.
        arena: see `attach`.
        confined: the arguments of `confine`; None leaves the process open.
        temporary: an empty folder, for temporary files of judged calls.

    Returns:
        The guarantees that this platform cannot give (see `confine`).
    """
    environment.set_folders(folders)
    memory = attach(arena)
    hide_reference(find(op))
    missing = confine(**confined) if confined is not None else []
    _guest.append(Guest(*_loaded(op, implementation, module, memory), Path(temporary)))
    return missing


def stop() -> None:
    """In the child: lets go of the judge's memory, which a GPU's driver counts."""
    _guest.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.ipc_collect()


def current() -> Guest:
    """In the child: the guest that was started."""
    return _guest[-1]


def serve(method: str, arguments: dict[str, Any]) -> Any:
    """In the child: one of the Guest's methods."""
    return current().ask(method, arguments)


def _loaded(
    op: str, implementation: str, module: str | None, memory: Memory
) -> tuple[Op, Kernels, Memory, list[str]]:
    found, kernels, changed = load(op, implementation, module)
    return found, kernels, memory, changed
