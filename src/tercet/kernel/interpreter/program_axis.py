"""Program axis: every interpreted value has one more axis, the first, along which programs differ.

It is as long as the programs that run together, or 1 where they all have the same value: a scalar
is [P], a block [P, ...]. Operations on elements need nothing for it; those here would take it for
an axis of the block. Of triton 3.6.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core, standard
from triton.runtime import interpreter

from tercet.kernel.interpreter.grid import Apart, allow_any_address, running

_CUMULATIVE = {standard._sum_combine: np.cumsum, standard._prod_combine: np.cumprod}
# combine function -> of a block along an axis: values, and where they are
_REDUCED: dict[Any, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    standard._argmin_combine_tie_break_left: (np.min, np.argmin),
    standard._argmax_combine_tie_break_left: (np.max, np.argmax),
    standard._elementwise_max: (np.fmax.reduce, None),
    standard._elementwise_min: (np.fmin.reduce, None),
}
# what has no rule here runs one program at a time, on blocks without the axis
_ONE_BY_ONE = (
    "create_tensor_pointer_load", "create_tensor_pointer_store", "create_descriptor_load",
    "create_descriptor_store", "create_descriptor_gather", "create_descriptor_scatter",
    "create_histogram", "create_make_block_ptr", "create_advance", "create_make_tensor_descriptor",
    "create_atomic_cas", "create_atomic_rmw", "create_print",
)  # fmt: skip
_ATOMIC = ("create_atomic_cas", "create_atomic_rmw")


def add_program_axis() -> None:
    """Puts the axis into the interpreter's builder, its reductions and its scans."""
    builder: Any = interpreter.InterpreterBuilder
    for name in _ONE_BY_ONE:
        setattr(builder, name, _one_by_one(name, getattr(builder, name)))
    for function in (
        create_get_program_id, create_load, create_store, create_masked_load, create_masked_store,
        create_make_range, create_splat, create_broadcast, create_unsplat, create_expand_dims,
        create_reshape, create_trans, create_cat, create_join, create_gather,
    ):  # fmt: skip
        setattr(builder, function.__name__, function)
    builder.create_int_to_ptr = create_int_to_ptr
    reduce: Any = interpreter.ReduceOps
    scan: Any = interpreter.ScanOps
    interpreter.ReduceScanOpInterface.to_tensor = _to_tensor
    reduce.apply_impl = _reducing(reduce.generic_reduce)
    scan.apply_impl = _scanning(scan.generic_scan)
    _patch_tensor()
    _patch_range()


def align(data: Any, rank: int) -> Any:
    """The data of an operand for a block of that rank: new axes come behind the programs'."""
    missing = rank + 1 - data.ndim
    return data if missing <= 0 else data.reshape(data.shape[0], *(1,) * missing, *data.shape[1:])


def _handle(data: Any, kind: Any) -> Any:
    return interpreter.TensorHandle(data, kind)


def create_get_program_id(self: Any, axis: int) -> Any:
    """The ids of the programs that run."""
    del self
    return _handle(running().ids[axis], tl.int32)


def create_load(self: Any, ptr: Any, cache: Any, eviction: Any, volatile: Any) -> Any:
    """A load without a mask."""
    everywhere = _handle(np.ones(ptr.data.shape, dtype=np.bool_), tl.int1)
    return self.create_masked_load(ptr, everywhere, None, cache, eviction, volatile)


def create_store(self: Any, ptr: Any, val: Any, cache: Any, eviction: Any) -> Any:
    """A store without a mask."""
    everywhere = _handle(np.ones(ptr.data.shape, dtype=np.bool_), tl.int1)
    return self.create_masked_store(ptr, val, everywhere, cache, eviction)


def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *hints: Any) -> Any:
    """A load; what it reads must not be what another program writes."""
    del self, hints
    kind = ptrs.get_element_ty()
    dtype = interpreter._get_np_dtype(kind)
    at, taken = _broadcast(ptrs.data, mask.data)
    if other is None:
        rest = np.zeros(at.shape, dtype=dtype)
    elif other.data.shape == at.shape:
        rest = other.data
    else:
        at, taken, rest = _broadcast(at, taken, other.data)
    running().note_load(at, taken, dtype.itemsize)
    return _handle(interpreter._interpreter.load(at, taken, rest, dtype), kind)


def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *hints: Any) -> Any:
    """A store, which can be taken back."""
    del self, hints
    dtype = interpreter._get_np_dtype(ptrs.get_element_ty())
    at, values, taken = _broadcast(ptrs.data, value.data, mask.data)
    running().note_store(at, taken, dtype)
    return interpreter._interpreter.store(at, values, taken)


def create_int_to_ptr(self: Any, source: Any, kind: Any) -> Any:
    """An address that was a number may be of a tensor that is no argument."""
    allow_any_address()
    return self.create_bitcast(source, kind)


def create_make_range(self: Any, ret_ty: Any, start: int, stop: int) -> Any:
    """start .. stop, the same in all programs."""
    del self, ret_ty
    return _handle(np.arange(start, stop, dtype=np.int32)[None], tl.int32)


def create_splat(self: Any, kind: Any, arg: Any) -> Any:
    """A block of one number."""
    del self
    sizes = tuple(kind.kept.sizes)
    data = arg.data.reshape(arg.data.shape[0], *(1,) * len(sizes))
    filled = np.empty((data.shape[0], *sizes), dtype=interpreter._get_np_dtype(arg.dtype))
    filled[...] = data
    running().note_block(math.prod(sizes))
    return _handle(filled, arg.dtype.scalar)


def create_broadcast(self: Any, arg: Any, shape: Any) -> Any:
    """A block repeated along axes of length 1."""
    del self
    return _handle(np.broadcast_to(arg.data, (arg.data.shape[0], *shape)), arg.dtype.scalar)


def create_unsplat(self: Any, arg: Any) -> Any:
    """The number of a block of one."""
    del self
    return _handle(arg.data.reshape(arg.data.shape[0]), arg.dtype.scalar)


def create_expand_dims(self: Any, arg: Any, axis: int) -> Any:
    """A new axis of length 1."""
    del self
    shape, at = arg.data.shape, axis + 1
    return _handle(arg.data.reshape(*shape[:at], 1, *shape[at:]), arg.dtype.scalar)


def create_reshape(self: Any, arg: Any, shape: Any, allow_reorder: bool) -> Any:
    """The same elements in another shape."""
    del self, allow_reorder
    return _handle(arg.data.reshape(arg.data.shape[0], *shape), arg.dtype.scalar)


def create_trans(self: Any, arg: Any, perm: Any) -> Any:
    """Axes in another order."""
    del self
    return _handle(np.transpose(arg.data, (0, *(axis + 1 for axis in perm))), arg.dtype.scalar)


def create_cat(self: Any, lhs: Any, rhs: Any) -> Any:
    """One block behind the other."""
    del self
    one, other = _as_many(lhs.data, rhs.data)
    return _handle(np.concatenate([one, other], axis=1), lhs.dtype.scalar)


def create_join(self: Any, lhs: Any, rhs: Any) -> Any:
    """Two blocks along a new last axis."""
    del self
    one, other = _as_many(lhs.data, rhs.data)
    return _handle(np.stack([one, other], axis=-1), lhs.dtype.scalar)


def create_gather(self: Any, src: Any, indices: Any, axis: int) -> Any:
    """Elements of a block by their positions along an axis."""
    del self
    data, positions = _as_many(src.data, indices.data)
    axis = axis if axis < 0 else axis + 1
    return _handle(np.take_along_axis(data, positions, axis=axis), src.dtype.scalar)


def _broadcast(*values: Any) -> Any:
    arrays = [np.asarray(each) for each in values]
    first = arrays[0].shape
    if all(each.shape == first for each in arrays):
        return arrays
    return np.broadcast_arrays(*arrays)


def _as_many(*arrays: Any) -> Any:
    """All with as many programs as any has."""
    programs = max(len(each) for each in arrays)
    return [
        each if len(each) == programs else np.broadcast_to(each, (programs, *each.shape[1:]))
        for each in arrays
    ]


def _one_by_one(name: str, as_it_was: Any) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if running().count > 1:
            raise Apart
        plain = [_without_axis(each) for each in args]
        if name in _ATOMIC:
            _note_atomic(name, args)
        found = as_it_was(self, *plain, **{key: _without_axis(v) for key, v in kwargs.items()})
        if not isinstance(found, interpreter.TensorHandle):
            return found
        # an atomic gives a scalar where it takes one, all others a block
        of_block = any(one is not other for one, other in zip(args, plain, strict=True))
        return _handle(found.data[None], found.dtype) if of_block or name not in _ATOMIC else found

    return run


def _note_atomic(name: str, args: Any) -> None:
    """Both are read and written: (pointer, ...), and (operation, pointer, value, mask, ...)."""
    ptr, mask = (args[0], None) if name == "create_atomic_cas" else (args[1], args[3])
    taken = np.ones(ptr.data.shape, dtype=np.bool_) if mask is None else mask.data
    at, taken = _broadcast(ptr.data, taken)
    running().note_atomic(at, taken, interpreter._get_np_dtype(ptr.get_element_ty()).itemsize)


def _without_axis(value: Any) -> Any:
    """A block of one program as Triton's own functions take it; a scalar is [1] there too."""
    if isinstance(value, interpreter.TensorHandle) and value.data.ndim > 1:
        return _handle(value.data[0], value.dtype)
    return value


def _to_tensor(self: Any, found: Any, kind: Any) -> Any:
    """As Triton's, of an array with the axis of programs; of a number."""
    del self
    data = np.asarray(found).astype(interpreter._get_np_dtype(kind), copy=False)
    if data.ndim < 2:
        return core.tensor(_handle(data.reshape(-1), kind.scalar), kind)
    return core.tensor(_handle(data, kind.scalar), core.block_type(kind, list(data.shape[1:])))


def _reducing(generic: Any) -> Any:
    def reduce(self: Any, inputs: Any) -> Any:
        one = inputs[0]
        is_sum = self.combine_fn is standard._sum_combine
        known = _REDUCED.get(self.combine_fn)
        if not is_sum and known is None:
            return _generic(self, generic, inputs)
        data, rank = one.handle.data, one.handle.data.ndim - 1
        axis = 1 if self.axis is None else int(self.axis) % rank + 1
        flat = data.reshape(data.shape[0], -1) if self.axis is None else data

        def shaped(found: Any) -> Any:
            if self.keep_dims and self.axis is None:
                return found.reshape(-1, *(1,) * rank)
            return np.expand_dims(found, axis) if self.keep_dims else found

        if is_sum:
            # numpy adds in a tree along the last axis alone, as a GPU does along any
            along = np.ascontiguousarray(np.moveaxis(flat, axis, -1))
            return self.to_tensor(shaped(np.sum(along, axis=-1)), one.dtype)
        values, positions = known
        found = self.to_tensor(shaped(values(flat, axis=axis)), one.dtype)
        if positions is None:
            return found
        return found, self.to_tensor(shaped(positions(flat, axis=axis)), tl.int32)

    return reduce


def _scanning(generic: Any) -> Any:
    def scan(self: Any, inputs: Any) -> Any:
        known = _CUMULATIVE.get(self.combine_fn)
        if known is None:
            return _generic(self, generic, inputs, flip=self.reverse)
        data, kind = inputs[0].handle.data, inputs[0].dtype
        axis = int(self.axis) % (data.ndim - 1) + 1
        turned = np.flip(data, axis) if self.reverse else data
        found = known(turned, axis=axis)
        return [self.to_tensor(np.flip(found, axis) if self.reverse else found, kind)]

    return scan


def _generic(self: Any, as_it_was: Any, inputs: Any, *, flip: bool = False) -> Any:
    """Triton's own, which calls the combine function element by element, for one program."""
    if running().count > 1:
        raise Apart

    def turned(data: Any) -> Any:
        return np.flip(data, self.axis) if flip else data

    plain = tuple(
        core.tensor(_handle(turned(each.handle.data[0]), each.dtype), each.type) for each in inputs
    )
    interface: Any = interpreter.ReduceScanOpInterface
    interface.to_tensor = _triton_to_tensor
    try:
        found = as_it_was(self, plain)
    finally:
        interface.to_tensor = _to_tensor
    return [
        core.tensor(_handle(turned(each.handle.data)[None], each.dtype), each.type)
        if each.type.is_block()
        else each
        for each in found
    ]


_triton_to_tensor: Any = interpreter.ReduceScanOpInterface.to_tensor


def _patch_tensor() -> None:
    as_it_was: Any = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        as_it_was(tensor, scope)
        scope.set_attr(tensor, "__index__", _whole_number)
        scope.set_attr(tensor, "__bool__", _truth)
        scope.set_attr(tensor, "T", property(_transposed))

    interpreter._patch_lang_tensor = patch


def _whole_number(self: Any) -> int:
    return int(running().agreed(self.handle.data.reshape(-1)))


def _truth(self: Any) -> bool:
    if self.type.is_block() and self.type.numel > 1:
        return True
    return bool(running().agreed(self.handle.data.reshape(-1) != 0))


def _transposed(self: Any) -> Any:
    *rest, rows, columns = self.type.shape
    kind = core.block_type(self.dtype, [*rest, columns, rows])
    return core.tensor(_handle(np.swapaxes(self.handle.data, -1, -2), self.dtype), kind)


def _patch_range() -> None:
    as_it_was: Any = interpreter._patch_lang_core

    def patch(lang: Any, scope: Any) -> None:
        as_it_was(lang, scope)
        plain = lang.range

        def steps(arg1: Any, arg2: Any = None, step: Any = None, **options: Any) -> Any:
            start, end = (0, arg1) if arg2 is None else (arg1, arg2)
            if not isinstance(start, core.tensor):
                return plain(arg1, arg2, step, **options)
            return _steps(start, _number(end), 1 if step is None else _number(step))

        scope.set_attr(lang, "range", steps)

    interpreter._patch_lang_core = patch


def _number(value: Any) -> Any:
    return value.handle.data.astype(np.int64) if isinstance(value, core.tensor) else int(value)


def _steps(start: Any, end: Any, step: Any) -> Any:
    """A loop whose first value is a tensor: it may be another one in each program."""
    first = start.handle.data
    step = step if isinstance(step, int) else int(running().agreed(step))
    counts = np.maximum(-((first.astype(np.int64) - end) // step), 0)
    for at in range(int(running().agreed(np.atleast_1d(counts)))):
        yield core.tensor(_handle((first + at * step).astype(first.dtype), start.dtype), start.type)
