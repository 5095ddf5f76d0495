"""What fine-tuning has in memory at the least, before any of it is read."""

from math import prod

import torch

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.compress.finetune.settings import FineTuning
from tercet.compress.finetune.student import trained_modules
from tercet.compress.memory import free_bytes
from tercet.compress.skeleton import Skeleton
from tercet.errors import UnsupportedError

_FLOAT = 4
# of a weight that is trained, in floats: its latent level and the weight that it gives; with levels
# also the gradient, two moments of the optimizer and the best epoch's copy
_LATENT, _OF_LEVELS = 2, 4


def least_bytes(teacher: Skeleton, checkpoint: PackedCheckpoint, settings: FineTuning) -> int:
    """The bytes of weights that are on the device at once: teacher's, student's and optimizer's.

    Activations and what belongs to scales come on top.
    """
    weights = sum(one.numel() for one in teacher.model.parameters())
    modules = trained_modules(teacher, checkpoint, settings)
    trained = sum(prod(checkpoint.modules[name].shape) for name in modules)
    floats = _LATENT + _OF_LEVELS * settings.levels
    return _FLOAT * (weights + (weights - trained) + floats * trained)


def check_memory(
    teacher: Skeleton, checkpoint: PackedCheckpoint, settings: FineTuning, device: torch.device
) -> None:
    """Refuses what cannot fit, before minutes are spent on reading it.

    Args:
        teacher: whose weights are not in memory yet.
        checkpoint: made from it.
        settings: what is trained.
        device: that is to train.

    Raises:
        UnsupportedError: less than `least_bytes` of the device's memory is free.
    """
    least, free = least_bytes(teacher, checkpoint, settings), free_bytes(device)
    if least <= free:
        return
    without = settings.model_copy(update={"levels": False})
    fewer = least_bytes(teacher, checkpoint, without)
    advice = (
        f"levels=false takes at least {_gigabytes(fewer)}"
        if settings.levels and fewer <= free
        else "`tercet compress --blockwise` trains one layer at a time"
    )
    raise UnsupportedError(
        f"{checkpoint.directory}: teacher, student and optimizer take at least "
        f"{_gigabytes(least)}, of {device} {_gigabytes(free)} are free: {advice}"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
