"""StepGraph: a step of training, captured on a GPU once its first batches have been run.

A step of a small layer is some two hundred kernels of a few microseconds each, that the host cannot
launch as fast as they run.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tercet.kernel.device.captured import Captured

# what a first step allocates, compiles and chooses must not be captured; the second is watched
_WARM_UP = 2


class StepGraph:
    """Runs `step` on batches; on a GPU, from the third whole batch on, as a CUDA graph.

    A layer that waits for its device, as a router does that counts the tokens of each expert, is
    not captured.

    Args:
        step: takes the places [size] of a batch's sequences; may be run anew if it raises.
        size: of a whole batch; a smaller one is not captured.
        device: of the layer.
    """

    def __init__(self, step: Callable[[Tensor], None], size: int, device: torch.device) -> None:
        self._step, self._device = step, device
        self._batch = torch.zeros(size, dtype=torch.int64, device=device)
        self._captures = device.type == "cuda"
        self._runs = 0
        self._graph: Captured[None] | None = None

    def __call__(self, batch: Tensor) -> None:
        """One step."""
        if not self._captures or batch.shape != self._batch.shape:
            self._step(batch)
            return
        if self._graph is None:
            self._warm_up(batch)
            return
        self._batch.copy_(batch)
        self._graph.replay()

    def _warm_up(self, batch: Tensor) -> None:
        self._runs += 1
        if self._runs < _WARM_UP:
            self._step(batch)
        elif _waits(partial(self._step, batch)):
            self._captures = False
        else:
            self._graph = Captured(partial(self._step, self._batch), self._device)


def _waits(step: Callable[[], None]) -> bool:
    """Runs a step; if the host waits for the device in it, a second time."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
        return False
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
    finally:
        torch.cuda.set_sync_debug_mode(before)
    step()
    return True
