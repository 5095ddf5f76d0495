"""Runs a directory in mlx-lm; functions of a process of its own, which `client` asks.

It imports nothing of Tercet's: mlx-lm lowers how many files its process may open, for good.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


def scores(model: str, tokens: list[int]) -> Tensor:
    """float32 [tokens, vocabulary]."""
    mx = _module("mlx.core")
    found = _load(model)(mx.array([tokens]))[0]
    return torch.from_numpy(np.array(found.astype(mx.float32)))


def greedy(model: str, tokens: list[int], count: int) -> list[int]:
    """The next `count` tokens, always the most likely one."""
    mx, caches = _module("mlx.core"), _module("mlx_lm.models.cache")
    loaded, ids, found = _load(model), mx.array([tokens]), list[int]()
    cache = caches.make_prompt_cache(loaded)
    for _ in range(count):
        ids = loaded(ids, cache=cache)[:, -1:].argmax(-1)
        found.append(int(ids.item()))
    return found


def _load(model: str) -> Any:
    loaded, _ = _module("mlx_lm.utils").load_model(Path(model))
    # in float32, so that nothing but sums is rounded
    loaded.set_dtype(_module("mlx.core").float32)
    return loaded


def _module(name: str) -> Any:
    """One whose types a checker cannot follow."""
    return import_module(name)
