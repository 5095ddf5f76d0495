"""Onto: a copy to a device that the host does not wait for."""

import torch
from torch import Tensor


def copy_async(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device.

    From memory that is not pinned a GPU's copy waits, and the host with it, until all is done that
    was queued before.
    """
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
