"""The search for each group's scale in C++; `formats.fit.mse` is its definition."""

import ctypes

import torch
from torch import Tensor

from tercet.compress.ptq.native.library import address, best_isa, loops
from tercet.formats import Scheme
from tercet.formats.chunks import chunk_rows
from tercet.formats.encode import store_scale
from tercet.formats.fit import Fitted, absmax, search_factors, shrink_zero
from tercet.formats.fit import mse as search_in_torch

_TRIALS_AT_ONCE = 1 << 22
_P, _I32, _I64, _F32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class _Search(ctypes.Structure):
    """Mirrors `struct Search` of loops.cpp, field by field."""

    _fields_ = (
        ("columns", _I64),
        ("group", _I64),
        ("groups", _I64),
        ("steps", _I32),
        ("lowest", _F32),
        ("highest", _F32),
        ("importance", _P),
    )


def mse(weight: Tensor, scheme: Scheme, importance: Tensor | None = None) -> Fitted:
    """The shrunken absmax scale of least squared error, as `formats.fit.mse` finds it.

    Sums of squared errors are taken in another order, so of two factors whose errors agree to the
    last bits the other one may win.

    Args:
        weight: W [N, K], floating point.
        scheme: the number format.
        importance: [K] weights of the squared error per column; None counts all columns alike.
    """
    library = loops() if _applies(weight, scheme) else None
    if library is None:
        return search_in_torch(weight, scheme, importance)
    scale, zero = absmax(weight, scheme)
    work = weight.float().contiguous()
    weights = None if importance is None else importance.float().contiguous()
    columns, group = work.shape[1], scheme.scaling.block((work.shape[0], work.shape[1]))[1]
    factors = search_factors()
    search = _Search(
        columns=columns,
        group=group,
        groups=scale.shape[1],
        steps=len(factors),
        lowest=scheme.element.lowest,
        highest=scheme.element.highest,
        importance=address(weights),
    )
    rows_at_once = max(_TRIALS_AT_ONCE // (scale.shape[1] * len(factors)), 1)
    for part in chunk_rows(len(work), rows_at_once):
        trial = store_scale(scale[part, :, None] * factors, scheme, None).float()
        wanted = None if zero is None else zero[part, :, None]
        trial_zero = shrink_zero(wanted, factors, scheme)
        trial_zero = None if trial_zero is None else trial_zero.float().contiguous()
        best = torch.empty(trial.shape[:2], dtype=torch.int32)
        library.tercet_search_scale(
            ctypes.byref(search),
            *(work[part].data_ptr(), trial.data_ptr(), address(trial_zero), best.data_ptr()),
            *(len(best), best_isa(), torch.get_num_threads()),
        )
        scale[part] = _pick(trial, best, scale[part])
        if zero is not None and trial_zero is not None:
            zero[part] = _pick(trial_zero, best, zero[part])
    return scale, zero


def _pick(trials: Tensor, best: Tensor, otherwise: Tensor) -> Tensor:
    """trials [R, G, F] at best [R, G]; `otherwise` [R, G] where that is -1."""
    found = trials.gather(2, best.long().clamp_min(0)[..., None])[..., 0]
    return torch.where(best < 0, otherwise, found)


def _applies(weight: Tensor, scheme: Scheme) -> bool:
    rows, columns = weight.shape
    return (
        scheme.element.integer
        and scheme.scaling.block((rows, columns))[0] == 1
        and not scheme.scaling.second_level
        and weight.device.type == "cpu"
        and weight.numel() > 0
    )
