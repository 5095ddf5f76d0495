"""Runs a directory in mlx-lm; a program of its own, started by `client`.

Reads one JSON object from standard input: model, and
    tokens, scores   -> writes the scores float32 [tokens, vocabulary] to that file, as .npy
    tokens, count    -> prints the next `count` tokens as JSON, always the most likely one
It imports nothing of Tercet's: mlx-lm lowers how many files its process may open, for good.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    modules = ("mlx.core", "mlx_lm.models.cache", "mlx_lm.utils")
    mx, caches, loading = (_module(name) for name in modules)
    request: dict[str, Any] = json.load(sys.stdin)
    model, _ = loading.load_model(Path(request["model"]))
    # in float32, so that nothing but sums is rounded
    model.set_dtype(mx.float32)
    ids = mx.array([request["tokens"]])
    if "scores" in request:
        np.save(request["scores"], np.array(model(ids)[0].astype(mx.float32)))
        return
    cache, found = caches.make_prompt_cache(model), list[int]()
    for _ in range(request["count"]):
        ids = model(ids, cache=cache)[:, -1:].argmax(-1)
        found.append(int(ids.item()))
    print(json.dumps(found))


def _module(name: str) -> Any:
    """One whose types a checker cannot follow."""
    return import_module(name)


if __name__ == "__main__":
    main()
