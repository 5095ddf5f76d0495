"""The uncompressed model, as a function from token ids to logits."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from tercet.checkpoints.sources.open import ModelSource
from tercet.compress.skeleton import Skeleton
from tercet.errors import UnsupportedError
from tercet.evaluate.compare import Logits


@contextmanager
def teacher(
    source: ModelSource, device: torch.device | str = "cpu"
) -> Generator[Logits, None, None]:
    """Within the block, a function from ids [B, T] to logits [B, T, V] on the device, in float32.

    Raises:
        UnsupportedError: the model gives no logits (an encoder without a head).
    """
    skeleton = Skeleton(source)
    model = cast(Any, skeleton.model)
    if model.get_output_embeddings() is None:
        raise UnsupportedError(
            f"{source.reference} is a {type(skeleton.model).__name__}, which gives no logits: "
            f"perplexity is defined for language models only"
        )

    def logits(ids: Tensor) -> Tensor:
        return model(input_ids=ids.to(device), use_cache=False).logits

    with skeleton.materialize([name for name, _ in skeleton.model.named_children()]):
        model.to(device)
        yield logits
