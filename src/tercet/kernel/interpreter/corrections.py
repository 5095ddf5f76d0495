"""Triton's interpreter, corrected: without a GPU a kernel gives the numbers that a GPU would give.

Of triton 3.6's interpreter these are put right: a conversion between float types truncates (a GPU
rounds to nearest even), a product of bfloat16 matrices multiplies bit patterns, a fused
multiply-add rounds twice, a maximum keeps NaN where a GPU drops it, a sum along any axis but the
last one adds one number after the other (a GPU adds in a tree), numpy warns of NaN and infinities,
and a loop over `tl.program_id` fails with numpy 2.4.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from tercet.kernel.interpreter.shortcuts import shorten

_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
# how the interpreter keeps what numpy has no type for
_KEPT_AS = {torch.bfloat16: np.uint16, torch.float8_e4m3fn: np.uint8, torch.float8_e5m2: np.uint8}


def interpreting() -> bool:
    """Whether kernels are interpreted: TRITON_INTERPRET=1 was set before they were defined."""
    return bool(triton.knobs.runtime.interpret)


@cache
def correct() -> None:
    """Puts the interpreter right, once in a process."""
    shortened = shorten()
    builder: Any = interpreter.InterpreterBuilder
    as_it_was = builder.cast_impl

    def cast(self: Any, source: Any, kind: Any) -> Any:
        names = source.dtype.scalar.name, kind.scalar.name
        before, after = (_DTYPES.get(name) for name in names)
        if before is None or after is None:
            return as_it_was(self, source, kind)
        if names in _BY_NUMPY:
            return interpreter.TensorHandle(_BY_NUMPY[names](source.data), kind.scalar)
        data = np.ascontiguousarray(source.data)
        values = torch.from_numpy(data).view(before).to(after).contiguous()
        kept = _KEPT_AS.get(after)
        rounded = values.view(_unsigned_dtype(kept)).numpy() if kept else values.numpy()
        return interpreter.TensorHandle(rounded, kind.scalar)

    builder.cast_impl = cast
    builder.create_fp_to_fp = lambda self, source, kind, mode: cast(self, source, kind)

    dot_as_it_was = builder.create_dot

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (cast(self, operand, tl.float32) for operand in (a, b))
        return dot_as_it_was(self, a, b, *rest)

    builder.create_dot = dot
    builder.create_fma = _fma
    builder.create_maxnumf = lambda self, x, y: self.binary_op(x, y, np.fmax)
    builder.create_minnumf = lambda self, x, y: self.binary_op(x, y, np.fmin)
    if not shortened:
        reduce: Any = interpreter.ReduceOps
        reduce.sum = _sum
        interpreter._patch_lang_tensor = _index_by_item(interpreter._patch_lang_tensor)
    executor: Any = interpreter.GridExecutor
    run = executor.__call__

    def run_quietly(self: Any, *arguments: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(self, *arguments, **options)

    executor.__call__ = run_quietly


def _index_by_item(patch: Any) -> Any:
    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch_tensor


def _fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    wide = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
    return interpreter.TensorHandle(wide.astype(z.data.dtype), z.dtype.scalar)


def _sum(self: Any, x: Any) -> Any:
    """numpy adds in a tree along the last axis alone."""
    data = x.handle.data
    along = data.reshape(-1) if self.axis is None else np.moveaxis(data, self.axis, -1)
    total = np.sum(np.ascontiguousarray(along), axis=-1)
    if self.keep_dims:
        kept = tuple(range(data.ndim)) if self.axis is None else self.axis
        total = np.expand_dims(total, kept)
    return self.to_tensor(total, x.dtype)


def _bfloat16_to_float32(bits: Any) -> Any:
    """The float32 values of bfloat16 bit patterns."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _float32_to_bfloat16(values: Any) -> Any:
    """The bfloat16 bit patterns of float32 values: to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


# what numpy rounds as a GPU does, at a tenth of the cost of a call of torch's
_BY_NUMPY = {
    ("bf16", "fp32"): _bfloat16_to_float32,
    ("fp32", "bf16"): _float32_to_bfloat16,
    ("fp16", "fp32"): lambda values: values.astype(np.float32),
    ("fp32", "fp16"): lambda values: values.astype(np.float16),
}


def _unsigned_dtype(kept: type) -> torch.dtype:
    return torch.uint16 if kept is np.uint16 else torch.uint8
