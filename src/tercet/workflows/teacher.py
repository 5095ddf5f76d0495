"""The uncompressed model in memory, and as a function from token ids to logits."""

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
def open_uncompressed(
    source: ModelSource, device: torch.device | str, purpose: str
) -> Generator[Any, None, None]:
    """Within the block, transformers' language model with its weights in float32 on the device.

    Args:
        source: the model.
        device: where it is put.
        purpose: what "language models only" are good for, in the error.

    Raises:
        UnsupportedError: the model gives no logits (an encoder without a head).
    """
    skeleton = Skeleton(source, torch.device(device))
    model = cast(Any, skeleton.model)
    if model.get_output_embeddings() is None:
        raise UnsupportedError(
            f"{source.reference} is a {type(skeleton.model).__name__}, which gives no logits: "
            f"{purpose} for language models only"
        )
    with skeleton.materialize([name for name, _ in skeleton.model.named_children()]):
        yield model


@contextmanager
def teacher(
    source: ModelSource, device: torch.device | str = "cpu"
) -> Generator[Logits, None, None]:
    """Within the block, a function from ids [B, T] to logits [B, T, V] on the device, in float32.

    Raises:
        UnsupportedError: the model gives no logits (an encoder without a head).
    """
    with open_uncompressed(source, device, "perplexity is defined") as model:

        def logits(ids: Tensor) -> Tensor:
            return model(input_ids=ids.to(device), use_cache=False).logits

        yield logits
