"""Memory: what a call takes, what is free, and how large the caches are."""

import gc
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from torch import Tensor

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL_CACHE_BYTES = 32 << 20
_SHARE = 0.8


def peak_bytes(call: Callable[[], Any], device: str) -> int | None:
    """Runs the call: the most memory that it allocates beyond what is allocated already.

    None on a CPU, which does not tell.
    """
    if device == "cpu":
        call()
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak


def kept_bytes(call: Callable[[], Any], device: str) -> int:
    """Runs the call: what of the memory that it allocates is still in use after it. 0 on a CPU."""
    if device == "cpu":
        call()
        return 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return max(0, torch.cuda.memory_allocated() - before)


def tensor_bytes(values: Iterable[Any]) -> int:
    """Bytes of the elements of those that are tensors."""
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))


def give_back(device: str) -> None:
    """Memory that nobody uses becomes free: a reference, or the next timing, may need it.

    That is what the allocator keeps, and what only a cycle of references keeps alive.
    """
    if device != "cpu":
        gc.collect()
        torch.cuda.empty_cache()


def free_bytes(device: str) -> int:
    """What a benchmark may take: 80 % of what is free."""
    if device == "cpu":
        return int(_SHARE * psutil.virtual_memory().available)
    give_back(device)
    return int(_SHARE * torch.cuda.mem_get_info()[0])


def cache_bytes(device: str) -> int:
    """The last-level cache: a GPU's L2; of a CPU, the largest one, 32 MiB where it is unknown."""
    if device != "cpu":
        properties = cast(Any, torch.cuda.get_device_properties(torch.cuda.current_device()))
        return int(properties.L2_cache_size)
    sizes = [_USUAL_CACHE_BYTES]
    for file in _CACHES.glob("index*/size"):
        with suppress(OSError, ValueError):
            sizes.append(int(file.read_text(encoding="utf-8").strip().rstrip("K")) * 1024)
    return max(sizes)
