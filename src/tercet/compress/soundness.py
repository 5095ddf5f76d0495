"""Is the source fit to be compressed? Asked of every weight before anything is written."""

from math import prod

import torch

from tercet.compress.skeleton import Skeleton
from tercet.errors import CheckpointError
from tercet.formats import first_broken

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_source(skeleton: Skeleton, keep_bytes: int = 0) -> None:
    """Reads every weight once, in the order of the files; they are hashed on the way.

    Args:
        skeleton: the model.
        keep_bytes: how many bytes of weights the skeleton keeps, so that work need not read them
            again.

    Raises:
        CheckpointError: names a weight whose shape is not the one that config.json calls for, that
            is stored as integers or in 8 bits, or the first one that holds NaN or inf.
    """
    source = skeleton.source
    stored: list[str] = []
    for parameter, value in skeleton.model.named_parameters():
        name = skeleton.stored_name(parameter)
        assert name is not None
        stored.append(name)
        wanted = tuple(skeleton.as_stored(parameter, value).shape)
        if source.shape(name) != wanted:
            raise CheckpointError(
                f"{source.reference}: {name} has shape {list(source.shape(name))}, config.json "
                f"calls for {list(wanted)}: check that config.json belongs to these weights"
            )
        if source.dtype(name) not in _DTYPES:
            raise CheckpointError(
                f"{source.reference}: {name} is stored as {_said(source.dtype(name))}, allowed "
                f"are {', '.join(map(_said, _DTYPES))}: its values mean nothing without the scales "
                f"of whatever quantized it; pass the model it was made from"
            )
    size = sum(prod(source.shape(name)) * source.dtype(name).itemsize for name in stored)
    for name, weight in source.read_all(stored, behind=keep_bytes >= size):
        # a GPU is through with the weight in a tenth of the time that a processor takes
        found = first_broken(weight.to(skeleton.device))
        if found is not None:
            count, place = found
            raise CheckpointError(
                f"{source.reference}: {name}: {count} of {weight.numel()} values are NaN or inf, "
                f"the first at {list(place)}: repair the source weights before compressing"
            )
        if weight.nbytes <= keep_bytes:
            keep_bytes -= weight.nbytes
            skeleton.kept[name] = weight


def _said(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
