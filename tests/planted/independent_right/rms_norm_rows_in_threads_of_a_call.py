"""A right but unusual kernel; UNUSUAL says how."""

import threading

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
UNUSUAL = (
    "Right, but unusual: rows are dealt to three threads that live as long as the call, each with "
    "torch operators on slices of its own; nothing is shared but the results."
)
DEVICE = "any"

__all__ = ["forward", "gradient"]

_THREADS = 3


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    count, n = x.shape[:-1].numel(), x.shape[-1]
    rows = x.reshape(count, n)
    added = None if residual is None else residual.reshape(count, n)
    y = torch.empty((count, n), dtype=x.dtype, device=x.device)
    kept = torch.empty((count, n) if added is not None else (0,), dtype=x.dtype, device=x.device)
    rstd = torch.empty(count, dtype=torch.float32, device=x.device)

    # a thread has a mode of its own
    inferring = torch.is_inference_mode_enabled()

    def work(first: int) -> None:
        with torch.inference_mode(inferring), torch.no_grad():
            for row in range(first, count, _THREADS):
                total = rows[row].float()
                if added is not None:
                    total = total + added[row]
                    kept[row] = total
                rstd[row] = (total.double().square().mean() + eps).rsqrt()
                y[row] = total * rstd[row] * weight

    threads = [threading.Thread(target=work, args=(first,)) for first in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return y.reshape(x.shape), kept.reshape(x.shape) if added is not None else kept, rstd
