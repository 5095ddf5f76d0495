"""The device that a model runs on, and the dtype of its activations, from what a user says."""

import torch

from tercet.errors import UnsupportedError


def resolve_device(device: torch.device | str | None) -> torch.device:
    """The device of that name; None for the first GPU where there is one, else the CPU.

    Raises:
        UnsupportedError: for another kind of device, or a GPU that is not there.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"device {device!s}: allowed are cpu, cuda and cuda:N")
    count = torch.cuda.device_count() if found.type == "cuda" else 0
    if found.type == "cuda" and (found.index or 0) >= count:
        raise UnsupportedError(
            f"device {device!s}: there are {count} CUDA devices here; use cpu, or leave it out"
        )
    return found


_DTYPES = {str(dtype)[6:]: dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}


def resolve_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """The dtype of activations of that name.

    Raises:
        UnsupportedError: for another dtype.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedError(f"dtype {dtype!s}: activations may be {', '.join(_DTYPES)}")
    return _DTYPES[name]
