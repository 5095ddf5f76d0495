"""What the launches of experts_launch.cuh and experts_wide.cuh are told."""

import ctypes


class Task(ctypes.Structure):
    """Mirrors `struct Task` of experts_task.cuh, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scale", "offsets", "x", "x_scale")),
        *((name, ctypes.c_void_p) for name in ("row_weight", "bias", "y")),
        ("x_pitch", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("count", "experts", "n", "k", "blocks", "units")),
        *((name, ctypes.c_int) for name in ("scale_type", "bias_type", "y_type")),
        ("factor", ctypes.c_float),
    )


class Cut(ctypes.Structure):
    """Mirrors `struct Cut` of experts_task.cuh."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("bits", "rows", "most_tiles", "part_blocks", "slots", "shared", "ahead")
    )
