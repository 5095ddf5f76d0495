"""The arguments of a launch, as launch.cuh takes them."""

import ctypes


class SharedMemory(ctypes.Structure):
    """Mirrors `struct SharedMemory` of task.cuh; the launch fills it in."""

    _fields_ = tuple(
        (name, ctypes.c_int) for name in ("x", "row_stride", "slots", "x_sums", "scales", "end")
    )


class Task(ctypes.Structure):
    """Mirrors `struct Task` of task.cuh, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scale", "zero", "x", "x_scale", "bias")),
        *((name, ctypes.c_void_p) for name in ("residual", "y")),
        *((name, ctypes.c_int64) for name in ("x_pitch", "residual_pitch")),
        *((name, ctypes.c_int) for name in ("m", "n", "k", "units", "groups")),
        *(
            (name, ctypes.c_int)
            for name in ("group_steps_log2", "scale_type", "zero_type", "x_type")
        ),
        *((name, ctypes.c_int) for name in ("bias_type", "residual_type", "y_type")),
        *((name, ctypes.c_int) for name in ("warp_units", "warps_all")),
        *((name, ctypes.c_int) for name in ("rows_each", "rows_more", "rows_most")),
        ("rows_inverse", ctypes.c_uint),
        *((name, ctypes.c_int) for name in ("pdl", "multicast")),
        ("factor", ctypes.c_float),
        ("shared", SharedMemory),
    )


class Launch(ctypes.Structure):
    """Mirrors `struct Launch` of task.cuh."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in (
            "bits",
            "clusters",
            "cluster_size",
            "warps_k",
            "warps_n",
            "multicast",
            "digits",
        )
    )
