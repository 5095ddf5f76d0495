"""The real client: mlx-lm in a process of its own, and mlx's own decoding."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tercet.checkpoints.imports.mlx import SECTION, module_settings
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.child_process import Child, ChildError
from tercet.errors import UnsupportedError
from tercet.export.mlx import run_model
from tercet.export.target import Target, client_module

_SECONDS = 3600.0  # which end a hang


def dequantize(target: Target, out: Path) -> Iterator[tuple[str, Tensor]]:
    """(module, float32 [N, K]) of every packed module, by mlx's function, in float32."""
    mx = client_module(target, "mlx.core")
    section = read_json(out / "config.json")[SECTION]
    _, stored = open_weights(out)
    for module in [n.removesuffix(".scales") for n in stored if n.endswith(".scales")]:
        bits, group, mode = module_settings(section, module)
        parts = {
            part: stored[f"{module}.{part}"].read()
            for part in ("weight", "scales", "biases")
            if f"{module}.{part}" in stored
        }
        wide = {k: v.float() if v.is_floating_point() else v for k, v in parts.items()}
        arrays = [mx.array(tensor.numpy()) for tensor in wide.values()]
        values = mx.dequantize(*arrays, group_size=group, bits=bits, mode=mode)
        yield module, torch.from_numpy(np.array(values.astype(mx.float32)))


def logits(target: Target, out: Path, tokens: list[int]) -> Tensor:
    """Scores float32 [T, V]."""
    return _ask(target, out, "scores", {"tokens": tokens})


def greedy(target: Target, out: Path, tokens: list[int], count: int) -> list[int]:
    """The likeliest continuation."""
    return _ask(target, out, "greedy", {"tokens": tokens, "count": count})


def _ask(target: Target, out: Path, function: str, arguments: dict[str, Any]) -> Any:
    client_module(target, "mlx_lm")
    try:
        return _process().request(
            f"{run_model.__file__}:{function}", {"model": str(out), **arguments}
        )
    except ChildError as error:
        if not _process().alive:
            _process.cache_clear()
        raise UnsupportedError(f"mlx-lm failed on {out}: {error.message}") from error


@cache
def _process() -> Child:
    """One for all questions: mlx-lm and what it imports take seconds to start."""
    return Child(seconds=_SECONDS)
