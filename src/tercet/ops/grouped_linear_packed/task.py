"""The arguments of a launch of either Hopper kernel, as hopper_decode/task.cuh has them."""

import ctypes


class Task(ctypes.Structure):
    """Mirrors `struct Task` of hopper_decode/task.cuh, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scale", "offsets", "x", "x_scale")),
        *((name, ctypes.c_void_p) for name in ("row_weight", "bias", "y")),
        ("x_pitch", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("count", "experts", "n", "k", "blocks", "units")),
        *((name, ctypes.c_int) for name in ("scale_type", "bias_type", "y_type")),
        ("factor", ctypes.c_float),
    )


class Cut(ctypes.Structure):
    """Mirrors `struct Cut` of hopper_decode/task.cuh."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("bits", "rows", "most_tiles", "slice_blocks", "slots", "shared", "ahead")
    )
