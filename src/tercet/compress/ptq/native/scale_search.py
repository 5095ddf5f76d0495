"""The search for each group's scale in C++ or Triton; `formats.fit.mse` is its definition."""

import ctypes
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tercet.compress.ptq.native.library import address, best_isa, loops
from tercet.formats import Scheme
from tercet.formats.chunks import chunk_rows
from tercet.formats.encode import store_scale
from tercet.formats.fit import Fitted, absmax, search_factors, shrink_zero
from tercet.formats.fit import mse as search_in_torch

# scales to try: what lies near the cores there, launches here
_TRIALS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 26}
_LONGEST_GROUP_ON_GPU = 1 << 14
_P, _I32, _I64, _F32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float

_Best = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Of W [R, K], scales [R, G, F] and zero points to try, the best of each group [R, G]; or -1."""


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
    search = _search_of(weight, scheme, importance)
    if search is None:
        return search_in_torch(weight, scheme, importance)
    scale, zero = absmax(weight, scheme)
    work = weight.float().contiguous()
    factors = search_factors().to(weight.device)
    rows_at_once = max(_TRIALS_AT_ONCE[weight.device.type] // (scale.shape[1] * len(factors)), 1)
    for part in chunk_rows(len(work), rows_at_once):
        candidate = store_scale(scale[part, :, None] * factors, scheme, None).float()
        wanted = None if zero is None else zero[part, :, None]
        candidate_zero = shrink_zero(wanted, factors, scheme)
        candidate_zero = None if candidate_zero is None else candidate_zero.float().contiguous()
        best = search(work[part], candidate, candidate_zero)
        scale[part] = _pick(candidate, best, scale[part])
        if zero is not None and candidate_zero is not None:
            zero[part] = _pick(candidate_zero, best, zero[part])
    return scale, zero


def _pick(trials: Tensor, best: Tensor, otherwise: Tensor) -> Tensor:
    """trials [R, G, F] at best [R, G]; `otherwise` [R, G] where that is -1."""
    found = trials.gather(2, best.long().clamp_min(0)[..., None])[..., 0]
    return torch.where(best < 0, otherwise, found)


def _search_of(weight: Tensor, scheme: Scheme, importance: Tensor | None) -> _Best | None:
    """The search that takes such a weight, or None: torch's."""
    shape = (weight.shape[0], weight.shape[1])
    by_row = scheme.scaling.block(shape)[0] == 1 and not scheme.scaling.second_level
    if not (scheme.element.integer and by_row and weight.numel()):
        return None
    weights = None if importance is None else importance.float().contiguous()
    group = min(scheme.scaling.block(shape)[1], shape[1])
    if weight.device.type == "cuda":
        return partial(_on_gpu, scheme, group, weights) if group <= _LONGEST_GROUP_ON_GPU else None
    library = loops() if weight.device.type == "cpu" else None
    return None if library is None else partial(_on_cpu, library, scheme, group, weights)


def _on_gpu(
    scheme: Scheme,
    group: int,
    importance: Tensor | None,
    weight: Tensor,
    candidate: Tensor,
    candidate_zero: Tensor | None,
) -> Tensor:
    # imported here: a CPU needs none of it
    from tercet.compress.ptq.native import scale_search_triton

    bounds = (scheme.element.lowest, scheme.element.highest)
    return scale_search_triton.search(weight, candidate, candidate_zero, importance, group, bounds)


def _on_cpu(
    library: ctypes.CDLL,
    scheme: Scheme,
    group: int,
    importance: Tensor | None,
    weight: Tensor,
    candidate: Tensor,
    candidate_zero: Tensor | None,
) -> Tensor:
    search = _Search(
        columns=weight.shape[1],
        group=group,
        groups=candidate.shape[1],
        steps=candidate.shape[2],
        lowest=scheme.element.lowest,
        highest=scheme.element.highest,
        importance=address(importance),
    )
    best = torch.empty(candidate.shape[:2], dtype=torch.int32)
    library.tercet_search_scale(
        ctypes.byref(search),
        *(weight.data_ptr(), candidate.data_ptr(), address(candidate_zero), best.data_ptr()),
        *(len(best), best_isa(), torch.get_num_threads()),
    )
    return best
