"""Is the source fit to be compressed? Asked of every weight before anything is written."""

import torch

from tercet.compress.skeleton import Skeleton
from tercet.errors import CheckpointError


def check_source(skeleton: Skeleton) -> None:
    """Reads every weight once, one at a time.

    Raises:
        CheckpointError: names the first weight whose shape is not the one that config.json calls
            for, or that holds NaN or inf.
    """
    source = skeleton.source
    stored = {name: skeleton.stored_name(name) for name, _ in skeleton.model.named_parameters()}
    for parameter, name in stored.items():
        assert name is not None
        wanted = tuple(skeleton.model.get_parameter(parameter).shape)
        if source.shape(name) != wanted:
            raise CheckpointError(
                f"{source.reference}: {name} has shape {list(source.shape(name))}, config.json "
                f"calls for {list(wanted)}: check that config.json belongs to these weights"
            )
    for name in stored.values():
        assert name is not None
        broken = ~torch.isfinite(source.read(name))
        if bool(broken.any()):
            first = [int(i) for i in broken.nonzero()[0]]
            raise CheckpointError(
                f"{source.reference}: {name}: {int(broken.sum())} of {broken.numel()} values are "
                f"NaN or inf, the first at {first}: repair the source weights before compressing"
            )
