"""Roofline: how fast a call can be on this machine, and which side binds (Williams et al. 2009)."""

from dataclasses import dataclass
from typing import Literal

import torch

from tercet.harness.timing.ceilings import Ceilings
from tercet.kernel.contract import Cost

Binds = Literal["memory", "compute"]


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The floor of a call.

    Attributes:
        floor_us: the longer of the time to move its bytes at the copy bandwidth and the time to do
            its operations at the matrix rate of its dtype.
        binds: which of the two that is.
    """

    floor_us: float
    binds: Binds

    def fraction(self, time_us: float) -> float:
        """Which part of the roofline is reached; over 1 where the cache holds the inputs."""
        return self.floor_us / time_us


def roofline(cost: Cost, ceilings: Ceilings, dtype: torch.dtype) -> Roofline:
    """The floor of a call of that cost.

    The matrix rate is an upper bound for arithmetic of any kind: for an op without matrix products
    the memory side is the one that counts.

    Args:
        cost: of the call.
        ceilings: of the device.
        dtype: of the activations.
    """
    memory_us = cost.bytes / ceilings.copy_bytes_per_second * 1e6
    rate = flops_per_second(ceilings, dtype)
    compute_us = cost.flops / rate * 1e6 if rate else 0.0
    if compute_us > memory_us:
        return Roofline(floor_us=compute_us, binds="compute")
    return Roofline(floor_us=memory_us, binds="memory")


def flops_per_second(ceilings: Ceilings, dtype: torch.dtype) -> float | None:
    """The matrix rate for that dtype; float32's where the device has no rate of its own for it."""
    own = {
        torch.bfloat16: ceilings.bf16_flops_per_second,
        torch.float16: ceilings.fp16_flops_per_second,
        torch.float8_e4m3fn: ceilings.fp8_flops_per_second,
        torch.float8_e5m2: ceilings.fp8_flops_per_second,
        torch.int8: ceilings.int8_flops_per_second,
    }.get(dtype)
    return own or ceilings.fp32_flops_per_second
