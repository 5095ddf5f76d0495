"""What an embedding of transformers does to its rows besides looking them up."""

import torch
from torch import nn

from tercet.errors import UnsupportedError


def knows_factor(module: nn.Embedding) -> bool:
    """Whether `embedding_factor` knows what it does."""
    plain = type(module).forward is nn.Embedding.forward
    return plain or isinstance(getattr(module, "scalar_embed_scale", None), int | float)


def embedding_factor(module: nn.Embedding, dtype: torch.dtype) -> float:
    """What the rows are multiplied by, rounded to `dtype` as transformers does; 1 for most models.

    Gemma's embedding multiplies by the root of its width. Whoever puts another module in its place
    must, too.

    Raises:
        UnsupportedError: it is an embedding that does something else.
    """
    if type(module).forward is nn.Embedding.forward:
        return 1.0
    factor = getattr(module, "scalar_embed_scale", None)
    if not isinstance(factor, int | float):
        raise UnsupportedError(
            f"{type(module).__name__} is an embedding that does more than look rows up, and does "
            f"not say what: a multiple of its rows (scalar_embed_scale) is known; keep it "
            f"unpacked by a rule of the plan"
        )
    return float(torch.tensor(factor, dtype=dtype, device="cpu"))
