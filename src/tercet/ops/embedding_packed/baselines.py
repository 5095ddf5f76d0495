"""What a user would call instead of embedding_packed."""

from typing import Any

from torch import Tensor
from torch.nn import functional


def prepare_eager(arguments: dict[str, Any]) -> dict[str, Any]:
    """The table [N, K] dense, in the dtype of the result."""
    ids = arguments["ids"]
    return {
        "ids": ids,
        "table": arguments["weight"].dequantize().to(ids.device, arguments["dtype"]),
    }


def eager(ids: Tensor, table: Tensor) -> Tensor:
    """torch's embedding of the dense table."""
    return functional.embedding(ids, table)
