"""What a user would call instead of append_kv."""

from typing import Any

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path


def eager(
    *,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    **arguments: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same steps in plain torch, on copies of the blocks."""
    none = keys.new_empty(0, dtype=torch.float32)
    keys, values = keys.clone(), values.clone()
    of_keys = None if key_scales is None else key_scales.clone()
    of_values = None if value_scales is None else value_scales.clone()
    q = torch_path.forward(
        keys=keys, values=values, key_scales=of_keys, value_scales=of_values, **arguments
    )
    return (
        q,
        keys,
        values,
        none if of_keys is None else of_keys,
        none if of_values is None else of_values,
    )
