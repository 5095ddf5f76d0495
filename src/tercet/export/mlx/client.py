"""The real client: mlx-lm in a process of its own, and mlx's own decoding."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tercet.checkpoints.imports.mlx import SECTION, module_settings
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.errors import UnsupportedError
from tercet.export.mlx import run_model
from tercet.export.target import Target, client_module


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
    with TemporaryDirectory() as folder:
        scores = Path(folder) / "scores.npy"
        _run(target, out, {"tokens": tokens, "scores": str(scores)})
        return torch.from_numpy(np.load(scores))


def greedy(target: Target, out: Path, tokens: list[int], count: int) -> list[int]:
    """The likeliest continuation."""
    return json.loads(_run(target, out, {"tokens": tokens, "count": count}))


def _run(target: Target, out: Path, request: dict[str, Any]) -> str:
    client_module(target, "mlx_lm")
    # -P: modules of this folder must not stand in for others of the same name
    command = [sys.executable, "-P", run_model.__file__]
    content = json.dumps({"model": str(out), **request})
    done = subprocess.run(command, input=content, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise UnsupportedError(f"mlx-lm failed on {out}: {' | '.join(lines[-2:]) or 'crashed'}")
    return done.stdout
