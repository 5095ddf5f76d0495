"""Linear layers of GPT-2's kind, whose files hold the weight as [K, N]: packed, it is [N, K]."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn


def is_transposed(module: nn.Module) -> bool:
    """Whether it is a Conv1D of transformers, which is a linear layer."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and hasattr(module, "nx")


def straighten(model: nn.Module) -> list[str]:
    """Puts a linear, its weights on the meta device, in the place of each such layer.

    Returns:
        Their names.
    """
    named = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    found = {name: cast(Any, module) for name, module in named if is_transposed(module)}
    for name, module in found.items():
        with torch.device("meta"):
            linear = nn.Linear(module.nx, module.nf, dtype=module.weight.dtype)
        model.set_submodule(name, linear.train(module.training))
    return list(found)
