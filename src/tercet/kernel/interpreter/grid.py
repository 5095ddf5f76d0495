"""Grid: the programs of a launch run together, as one pass over arrays of all of them.

One program after the other costs some ten microseconds an operation each, nearly all of it
Python's. Together they give the same numbers and leave the same memory as one after the other:

- Where control flow needs a value that differs between programs, those of each value run again by
  themselves, after what was stored is taken back.
- Where a program reads what another one writes, or two write to one place by different
  statements, and where there is no rule for many (atomics), the launch runs one after the other.
"""

import inspect
import traceback
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.amd.compiler import HIPOptions
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from tercet.errors import unknown_name
from tercet.kernel.interpreter.extents import Extents

# of one value of all programs together: more falls out of a core's caches
_ELEMENTS, _MOST_ELEMENTS = 1 << 15, 1 << 18
_FEWEST_PROGRAMS, _MOST_PROGRAMS = 8, 1 << 12
# that programs fall into before they had better run one after the other
_FEW_PARTS = 4
# elements of a tensor that is written to
_LONGEST = 1 << 26
_MOST_KEPT = 1 << 12

# what a launch may name beside its kernel's arguments; where Triton compiles, it refuses all else
_OPTIONS = frozenset(CUDAOptions.__dataclass_fields__) | frozenset(HIPOptions.__dataclass_fields__)
_USUAL_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl"})
_WARPS = (1, 2, 4, 8, 16, 32)

Ids = tuple[Any, Any, Any]


class Apart(Exception):
    """These programs cannot run together."""


class _Crowded(Exception):
    """Blocks are wider than those that the number of programs was chosen for."""


class _Divided(Exception):
    """Programs would take different ways: `values` has each one's."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = values


@dataclass(frozen=True)
class _Access:
    """The addresses that a statement reads or writes.

    Attributes:
        first, last: address of the first byte, and behind the last one.
        width: bytes of an element.
        at, taken: addresses, and which of them are meant.
        programs: by which programs, along the first axis.
    """

    first: int
    last: int
    width: int
    at: Any
    taken: Any
    programs: Any

    def flat(self) -> tuple[Any, Any]:
        """Addresses and programs, one of each for each place."""
        shape = self.at.shape
        each = self.programs.reshape(-1, *(1,) * (len(shape) - 1))
        at = np.broadcast_to(self.at, (len(each), *shape[1:]))
        taken = np.broadcast_to(self.taken, at.shape)
        return at[taken], np.broadcast_to(each, at.shape)[taken]


class _Region:
    """Memory of one argument, and which programs of a part of the grid read and write each place.

    A place holds the number of the program, or one below 0 where there are several.
    """

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self._width = 0
        self._waiting = list[_Access]()
        self._readers: Any = None
        self._writers: Any = None

    def begin(self) -> None:
        """Another part of the grid: what is waiting belongs to the one before."""
        self._waiting.clear()

    def read(self, access: _Access, part: int) -> None:
        """Apart where another program of the part has written there."""
        if self._writers is None:
            self._waiting.append(access)
            return
        elements, by = self._elements_of(access)
        writers = self._writers[elements]
        if (_is_of(writers, part) & (writers != by)).any():
            raise Apart
        self._add_readers(elements, by, part)

    def write(self, access: _Access, part: int) -> None:
        """Apart where another program of the part has read, or written by another statement."""
        if self._writers is None:
            self._width = access.width
            size = -(-(self.last - self.first) // access.width)
            if size > _LONGEST:
                raise Apart
            self._readers, self._writers = (np.full(size, -1, dtype=np.int32) for _ in range(2))
        for one in self._waiting:
            self._add_readers(*self._elements_of(one), part)
        self._waiting.clear()
        elements, by = self._elements_of(access)
        for earlier in (self._readers[elements], self._writers[elements]):
            if (_is_of(earlier, part) & (earlier != by)).any():
                raise Apart
        self._writers[elements] = by
        twice = self._writers[elements] != by
        if twice.any():
            self._writers[elements[twice]] = _several(part)

    def _add_readers(self, elements: Any, by: Any, part: int) -> None:
        before = self._readers[elements]
        self._readers[elements] = by
        shared = (self._readers[elements] != by) | (_is_of(before, part) & (before != by))
        if shared.any():
            self._readers[elements[shared]] = _several(part)

    def _elements_of(self, access: _Access) -> tuple[Any, Any]:
        at, by = access.flat()
        offsets = (at - np.uint64(self.first)).astype(np.int64)
        if access.width != self._width or (offsets & (access.width - 1)).any():
            raise Apart
        return offsets // access.width, by


def _several(part: int) -> int:
    return -2 - part


def _is_of(programs: Any, part: int) -> Any:
    """Where a place was last touched in that part of the grid, named by its first program."""
    return (programs >= part) | (programs == _several(part))


class _Programs:
    """Programs that run now, and what they have read and written.

    Attributes:
        ids: of each, by axis.
        count: how many.
        widest: elements of the largest block that one had until now.
    """

    def __init__(self, ids: Ids, numbers: Any, log: "_Log | None") -> None:
        self.ids, self.count, self.widest = ids, len(ids[0]), 1
        self._numbers, self._log = numbers, log

    def agreed(self, values: Any) -> Any:
        """The one value [P] of all programs, which control flow follows."""
        if len(values) == 1:
            return values[0]
        if (values == values[0]).all():
            return values[0]
        raise _Divided(values)

    def note_block(self, elements: int) -> None:
        """A program has a block of so many elements."""
        self.widest = max(self.widest, elements)
        if self.count > 1 and self.widest * self.count > _MOST_ELEMENTS:
            raise _Crowded

    def note_load(self, at: Any, taken: Any, width: int) -> None:
        """Some addresses are read."""
        self.note_block(at.size // len(at))
        access = self._access("reads", at, taken, width)
        if access is not None and self._log is not None:
            self._log.read(access)

    def note_store(self, at: Any, taken: Any, dtype: Any) -> None:
        """Some addresses are written, next."""
        self.note_block(at.size // len(at))
        access = self._access("writes", at, taken, dtype.itemsize)
        if access is not None and self._log is not None:
            self._log.write(access, dtype)

    def note_atomic(self, at: Any, taken: Any, width: int) -> None:
        """Some addresses are read and written at once, by one program."""
        self._access("writes", at, taken, width)

    def _access(self, does: str, at: Any, taken: Any, width: int) -> _Access | None:
        # a mask may be numbers, which would pick by place
        taken = taken.astype(np.bool_, copy=False)
        some = at if taken.all() else at[taken]
        if not some.size:
            return None
        first, last = _extents[-1].check(does, some, width)
        return _Access(first, last, width, at, taken, self._numbers)


class _Log:
    """What the programs of a grid have read and written; the stores of a part can be taken back.

    Args:
        memory: address of the first byte, and behind the last one, of all arguments of a launch.
    """

    def __init__(self, memory: Iterable[tuple[int, int]]) -> None:
        self._regions, self._part = list[_Region](), 0
        for first, last in sorted(memory):
            if self._regions and first < self._regions[-1].last:
                self._regions[-1].last = max(self._regions[-1].last, last)
            else:
                self._regions.append(_Region(first, last))
        self._firsts = [region.first for region in self._regions]
        self._stores = list[tuple[_Access, Any]]()

    def begin(self, part: int) -> None:
        """Another part of the grid begins, with that program."""
        self._part = part
        self._stores.clear()
        for region in self._regions:
            region.begin()

    def read(self, access: _Access) -> None:
        """Apart where another program writes there."""
        self._region(access).read(access, self._part)

    def write(self, access: _Access, dtype: Any) -> None:
        """Apart where another program reads there, or writes by another statement."""
        self._region(access).write(access, self._part)
        nothing = np.zeros(access.at.shape, dtype=dtype)
        before = interpreter._interpreter.load(access.at, access.taken, nothing, dtype)
        self._stores.append((access, before))

    @property
    def stores(self) -> int:
        """How many there are."""
        return len(self._stores)

    def take_back(self, stores: int = 0) -> None:
        """Memory is as it was when there were so many."""
        for access, before in reversed(self._stores[stores:]):
            interpreter._interpreter.store(access.at, before, access.taken)
        del self._stores[stores:]

    def _region(self, access: _Access) -> _Region:
        at = bisect_right(self._firsts, access.first) - 1
        if at < 0 or access.last > self._regions[at].last:
            raise Apart
        return self._regions[at]


# of the launch that runs
_extents = [Extents({})]
# the last ones run; what is converted ahead of a launch meets the first one
_now = [_Programs((np.zeros(1, np.int32),) * 3, np.zeros(1, np.int32), None)]


_backwards = [False]


@contextmanager
def backwards() -> Generator[None]:
    """Within the block the last program of a launch runs first: on a GPU it may, too."""
    _backwards.append(True)
    try:
        yield
    finally:
        _backwards.pop()


def allow_any_address() -> None:
    """From here on nothing that the launch reads or writes is refused."""
    _extents[-1].anywhere = True


def running() -> _Programs:
    """The programs that run now."""
    return _now[-1]


@dataclass
class _Known:
    """What earlier launches of a kernel with the same constants have shown."""

    widest: int = 0
    apart: bool = False


_known: dict[Any, _Known] = {}


def run_grid(
    call: Callable[[], object],
    grid: Sequence[int],
    key: Any,
    memory: Iterable[tuple[int, int]],
    *,
    together: bool = True,
) -> None:
    """Runs all programs of a grid.

    Args:
        call: runs those that are `running`.
        grid: how many there are along each of three axes.
        key: the kernel and its constants: equal ones behave alike.
        memory: see _Log.
        together: whether they may run together.
    """
    total = grid[0] * grid[1] * grid[2]
    if key not in _known and len(_known) == _MOST_KEPT:
        _known.clear()
    known = _known.setdefault(key, _Known())
    numbers, done = np.arange(total, dtype=np.int32), 0
    together, log = together and total > 2, None
    while done < total:
        count = min(_ELEMENTS // max(known.widest, 1), _MOST_PROGRAMS)
        if known.apart or not together or not known.widest or count < _FEWEST_PROGRAMS:
            _run_one(call, grid, numbers[done : done + 1], known)
            done += 1
            continue
        log = log or _Log(memory)
        log.begin(done)
        some = numbers[done : done + count]
        try:
            if _run_together(call, grid, some, log, known) > max(_FEW_PARTS, len(some) // 2):
                known.apart = True
        except Exception as error:  # noqa: BLE001 what is wrong in one program is raised by it alone
            log.take_back()
            if isinstance(_cause(error), _Crowded):
                continue
            known.apart = True
            for at in range(len(some)):
                _run_one(call, grid, some[at : at + 1], known)
        done += len(some)


def _run_together(
    call: Callable[[], object], grid: Sequence[int], numbers: Any, log: _Log, known: _Known
) -> int:
    """Runs some programs; how many parts they fell into."""
    programs, before = _Programs(_ids(numbers, grid), numbers, log), log.stores
    values = _enter(programs, call, known)
    if values is None:
        return 1
    log.take_back(before)
    parts = (numbers[values == value] for value in np.unique(values))
    return sum(_run_together(call, grid, some, log, known) for some in parts)


def _run_one(call: Callable[[], object], grid: Sequence[int], number: Any, known: _Known) -> None:
    ids = _ids(number, grid)
    interpreter.interpreter_builder.set_grid_idx(*(int(each[0]) for each in ids))
    _enter(_Programs(ids, number, None), call, known)


def _enter(programs: _Programs, call: Callable[[], object], known: _Known) -> Any:
    """Runs programs; each one's value where control flow needs one of them all."""
    _now.append(programs)
    try:
        call()
    except (_Divided, InterpreterError) as error:
        cause = _cause(error)
        if isinstance(cause, _Divided):
            return cause.values
        raise
    finally:
        _now.pop()
        known.widest = max(known.widest, programs.widest)
    return None


def _cause(error: BaseException) -> BaseException:
    """What was raised first: each device function on the way wraps it."""
    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _ids(numbers: Any, grid: Sequence[int]) -> Ids:
    """Of programs by their turns; of the axes of the grid the last one runs fastest."""
    along_x, along_y, along_z = grid
    if _backwards[-1]:
        numbers = along_x * along_y * along_z - 1 - numbers
    return (
        numbers // (along_y * along_z),
        numbers // along_z % along_y,
        numbers % along_z,
    )


def launch(self: Any, *args: Any, **kwargs: Any) -> None:
    """A launch, as Triton's executor does it; tensors of a CPU stay where they are."""
    names = _parameters(self.fn)
    if unknown := [name for name in kwargs if name not in names | _OPTIONS]:
        what = f"argument of {self.fn.__name__}, or launch option,"
        raise TypeError(unknown_name(what, unknown[0], names | _USUAL_OPTIONS))
    if kwargs.get("num_warps", 1) not in _WARPS:
        raise ValueError(
            f"launch option num_warps={kwargs['num_warps']!r} of {self.fn.__name__}: a GPU takes "
            f"{', '.join(map(str, _WARPS))}: a block has at most 1024 threads, 32 a warp"
        )
    options = {name: value for name, value in kwargs.items() if name in names}
    moved = not all(map(_stays, (*args, *options.values())))
    args_here, options_here = self._init_args_hst(args, options) if moved else (args, options)
    for hook in self.pre_run_hooks:
        hook(*args_here, **options_here)
    scope = interpreter._patch_lang(self.fn)
    try:
        bound = inspect.getcallargs(self.fn, *args_here, **options_here)
        constants = tuple((name, bound[name]) for name in self.constexprs)
        converted = {
            name: value if name in self.constexprs else interpreter._implicit_cvt(value)
            for name, value in bound.items()
        }
        grid = self.grid(converted) if callable(self.grid) else self.grid
        assert len(grid) <= 3, "grid must have at most 3 dimensions"
        grid = (*map(int, grid), *(1,) * (3 - len(grid)))
        interpreter.interpreter_builder.set_grid_dim(*grid)
        try:
            key, memory = _key(self.fn, constants), _memory(bound.values())
            _extents.append(Extents(bound))
            try:
                run_grid(lambda: self.fn(**converted), grid, key, memory)
            finally:
                _extents.pop()
        except Exception as error:
            if triton.knobs.compilation.front_end_debugging:
                raise
            raise InterpreterError(_message(error, self.fn.__code__.co_filename)) from error
    finally:
        scope.restore()
    if moved:
        self._restore_args_dev(args, args_here, options, options_here)


def _message(error: BaseException, file: str) -> str:
    """What was raised first, and by which line of the kernel's file; the launch's is no help."""
    cause, lines = _cause(error), list[int | None]()
    while True:
        frames = traceback.extract_tb(error.__traceback__)
        lines += [frame.lineno for frame in frames if frame.filename == file]
        if error is cause or error.__cause__ is None:
            break
        error = error.__cause__
    return f"{cause!r} in {Path(file).name}, line {lines[-1]}" if lines else repr(cause)


def _memory(values: Iterable[Any]) -> list[tuple[int, int]]:
    """From where to where each tensor's storage lies."""
    storages = [each.untyped_storage() for each in values if isinstance(each, torch.Tensor)]
    return [(each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages]


@cache
def _parameters(fn: Any) -> frozenset[str]:
    return frozenset(inspect.signature(fn).parameters)


def _stays(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu"
    if isinstance(value, tuple):
        return all(map(_stays, value))
    return not hasattr(value, "data_ptr") and not hasattr(value, "base")


def _key(fn: Any, constants: tuple[Any, ...]) -> Any:
    key = fn, constants
    try:
        hash(key)
    except TypeError:
        return fn, repr(constants)
    return key
