"""Shortcuts: what Triton's interpreter works out anew at every operation is worked out once.

The same numbers in a third of the time. Of triton 3.6: a tensor's shape and type are built of
wrapped constants for each intermediate result, types are compared and promoted by name, the
language is patched again at each call of a device function, and each sum of integers is done a
second time in 64 bits for an overflow check whose answer is dropped (`options.debug` is off).
"""

import inspect
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from tercet.kernel.interpreter.grid import launch
from tercet.kernel.interpreter.program_axis import add_program_axis, align

_NUMPY = {
    "int1": np.bool_, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64,
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
    "bf16": np.uint16, "fp8e5": np.uint8, "fp8e5b16": np.uint8, "fp8e4nv": np.uint8,
    "fp8e4b8": np.uint8, "fp8e4b15": np.uint8,
}  # fmt: skip
_DTYPES = {name: np.dtype(kind) for name, kind in _NUMPY.items()}
_POINTER = np.dtype(np.uint64)


@cache
def shorten() -> bool:
    """Puts the shortcuts in, once in a process that interprets; other versions go the long way.

    Returns whether they are in.
    """
    if not triton.__version__.startswith("3.6."):
        return False
    _keep_shapes()
    _keep_operands()
    _answer_once()
    _patch_the_language_once_a_launch()
    for package in (tl, tl.tensor, tl.math, core, core.tensor_descriptor_base):
        _builtins(package)  # before a launch has patched them
    interpreter.interpreter_builder.options = replace(
        interpreter.interpreter_builder.options, sanitize_overflow=False
    )
    interpreter._get_np_dtype = _numpy_dtype
    add_program_axis()
    executor: Any = interpreter.GridExecutor
    executor.__call__ = launch
    return True


class _Shape:
    """What a block's shape is to Triton, once for all blocks of that shape."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.of_type: Any = core.tuple(sizes)
        self.of_tensor: Any = core.tuple([core.constexpr(size) for size in sizes])
        self.elements = core.validate_block_shape(sizes)
        self.numel: Any = core.constexpr(self.elements)


_SCALAR = _Shape(())
_shapes: dict[tuple[int, ...], _Shape] = {}


def _keep_shapes() -> None:
    """Tensors and types of the same shape share its wrapped sizes; a tuple's type waits for use."""
    block: Any = core.block_type

    def new_block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([s.value if isinstance(s, core.constexpr) else s for s in shape])
        kept = _shapes.get(sizes)
        if kept is None:
            if not sizes:
                raise TypeError("0d block_type is forbidden")
            kept = _shapes[sizes] = _Shape(sizes)
        self.element_ty = element_ty
        self.shape, self.numel, self.kept = kept.of_type, kept.elements, kept

    block.__init__ = new_block
    block.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")
    in_words: Any = block.to_ir
    block.to_ir = lambda self, builder: (
        self if isinstance(builder, interpreter.InterpreterBuilder) else in_words(self, builder)
    )

    def new_tensor(self: Any, handle: Any, type: Any) -> None:
        kept = type.kept if type.is_block() else _SCALAR
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = kept.of_tensor, kept.numel

    core.tensor.__init__ = new_tensor

    def new_tuple(self: Any, args: Any, type: Any = None) -> None:
        self.values = list(args)
        if type is not None:
            self.type = type if isinstance(type, core.tuple_type) else core.tuple_type(type)

    def type_of(self: Any) -> Any:
        kind = self.__dict__.get("type")
        return core._type_for_tuple_values(self.values) if kind is None else kind

    tupled: Any = core.tuple
    tupled.__init__ = new_tuple
    tupled.type = property(type_of, lambda self, kind: self.__dict__.__setitem__("type", kind))


def _keep_operands() -> None:
    """How the operands of a kind are converted is asked of Triton once.

    They keep their data where Triton would repeat it to the common shape: numpy does that as it
    computes.
    """
    as_it_was: Any = TritonSemantic.binary_op_type_checking_impl
    plans: dict[Any, tuple[Any, Any]] = {}

    def operands(self: Any, lhs: Any, rhs: Any, *rules: bool, **more: bool) -> Any:
        key = _sort(lhs), _sort(rhs), rules, *more.items()
        plan = plans.get(key)
        if plan is None:
            found = as_it_was(self, lhs, rhs, *rules, **more)
            if len(plans) == _MOST_PLANS:
                plans.clear()
            plans[key] = found[0].type, found[1].type
            return found
        return _as(self, lhs, plan[0]), _as(self, rhs, plan[1])

    TritonSemantic.binary_op_type_checking_impl = operands


_MOST_PLANS = 1 << 14


def _sort(operand: Any) -> Any:
    if isinstance(operand, core.tensor):
        kind = operand.type
        return (kind.kept if kind.is_block() else None), kind.scalar.name
    return type(operand), operand


def _as(semantic: Any, operand: Any, kind: Any) -> Any:
    """The operand as that type, its data not repeated."""
    if not isinstance(operand, core.tensor):
        operand = semantic.scalar_constant(operand, kind.scalar)
    elif operand.dtype.name != kind.scalar.name:
        operand = semantic.cast(operand, kind.scalar)
    same = operand.type is kind or (operand.type.is_block() and operand.type.kept is kind.kept)
    if same or not kind.is_block():
        return operand
    handle = operand.handle
    aligned = align(handle.data, len(kind.kept.sizes))
    if aligned is not handle.data:
        handle = interpreter.TensorHandle(aligned, handle.dtype)
    return core.tensor(handle, kind)


def _answer_once() -> None:
    """What a type is by its name, and what most values are: not a constant of the compiler's."""
    dtype: Any = core.dtype
    equal = dtype.__eq__
    dtype.__eq__ = lambda self, other: self is other or equal(self, other)
    for question in ("is_int", "is_floating", "is_int_signed", "is_int_unsigned", "kind"):
        setattr(dtype, question, _asked_once(getattr(dtype, question)))
    unwrap = core._unwrap_if_constexpr
    plain = {core.tensor, int, float, bool, str, type(None), dtype}
    core._unwrap_if_constexpr = lambda value: value if type(value) in plain else unwrap(value)

    def new_handle(self: Any, data: Any, kind: Any) -> None:
        self.data, self.dtype, self.attr = data, kind, {}
        if type(kind) is dtype and data.itemsize > (kind.itemsize or 1):
            raise ValueError(f"numpy's {data.dtype} is wider than triton's {kind}")

    interpreter.TensorHandle.__init__ = new_handle


def _asked_once(question: Any) -> Any:
    answers: dict[str, Any] = {}

    def answer(self: Any) -> Any:
        found = answers.get(self.name)
        if found is None:
            found = answers[self.name] = question(self)
        return found

    return answer


def _patch_the_language_once_a_launch() -> None:
    """A device function finds it patched by the kernel that calls it."""
    patched = set[Any]()
    semantic = TritonSemantic(interpreter.interpreter_builder)
    patch = interpreter._patch_lang

    def patch_for_kernel(fn: Any) -> Any:
        patched.clear()
        patched.update(_languages(fn))
        return patch(fn)

    def call_device_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        missing = _languages(self.fn) - patched
        if missing:
            patch(self.fn)
            patched.update(missing)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name, member in _builtins(package):
            if getattr(package, name) is member:
                scope.set_attr(package, name, _bind_semantic(member, semantic))

    interpreter._patch_lang = patch_for_kernel
    interpreter._patch_builtin = patch_builtin
    interpreter.InterpretedFunction.__call__ = call_device_function


@cache
def _languages(fn: Any) -> frozenset[Any]:
    """The modules of the language that a function's own module names."""
    return frozenset(value for value in fn.__globals__.values() if value is tl or value is core)


_CHECKED = core.to_tensor.__code__  # of the wrapper that every builtin of the language has


@cache
def _builtins(package: Any) -> list[tuple[str, Any]]:
    return [(n, member) for n, member in inspect.getmembers(package) if core.is_builtin(member)]


def _bind_semantic(member: Any, semantic: Any) -> Any:
    function = member.__wrapped__ if member.__code__ is _CHECKED else member

    def bound(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return function(*args, **kwargs)

    return bound


def _numpy_dtype(kind: Any) -> Any:
    if isinstance(kind, core.block_type):
        kind = kind.element_ty
    return _POINTER if isinstance(kind, core.pointer_type) else _DTYPES[kind.name]
