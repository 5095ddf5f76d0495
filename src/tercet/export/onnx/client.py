"""Runs an exported decoder in ONNX Runtime, with its key-value cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.export.onnx.graph import GRAPH_NAME

Cache = dict[str, Any]
"""past_key_values.* of one or more sequences, as ONNX Runtime returned them."""


class OnnxSession:
    """A loaded model; it computes on as many threads as torch does.

    Args:
        runtime: the module `onnxruntime`.
        out: the exported directory.
    """

    def __init__(self, runtime: Any, out: Path) -> None:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = runtime.InferenceSession(
            str(out / GRAPH_NAME), options, providers=["CPUExecutionProvider"]
        )
        self._outputs = [entry.name for entry in self._session.get_outputs()]
        self._past = {
            entry.name: entry.shape
            for entry in self._session.get_inputs()
            if entry.name.startswith("past_key_values.")
        }

    def empty(self, batch: int = 1) -> Cache:
        """A cache without positions."""
        return {
            name: torch.zeros(batch, shape[1], 0, shape[3]).numpy()
            for name, shape in self._past.items()
        }

    def extend(self, ids: Tensor, cache: Cache, mask: Tensor | None = None) -> tuple[Tensor, Cache]:
        """Appends ids [B, T] to a cache of P positions.

        Args:
            ids: int64.
            cache: of the same sequences.
            mask: int64 [B, P + T], 0 where there is padding; None for no padding.

        Returns:
            Scores [B, T, V], and the cache of P + T positions.
        """
        past = next(iter(cache.values())).shape[2]
        mask = torch.ones(ids.shape[0], past + ids.shape[1]).long() if mask is None else mask
        feeds = {"input_ids": ids.numpy(), "attention_mask": mask.numpy(), **cache}
        found = dict(zip(self._outputs, self._session.run(None, feeds), strict=True))
        scores = torch.from_numpy(found.pop("logits"))
        return scores, {
            name.replace("present.", "past_key_values."): value for name, value in found.items()
        }

    def logits(self, tokens: list[int]) -> Tensor:
        """Scores [T, V] after each token."""
        return self.extend(torch.tensor([tokens]), self.empty())[0][0]

    def stream(self, tokens: list[int], count: int) -> Iterator[int]:
        """The next `count` tokens, always the most likely, as they come."""
        given, cache = tokens, self.empty()
        for _ in range(count):
            scores, cache = self.extend(torch.tensor([given]), cache)
            given = [int(scores[0, -1].argmax())]
            yield given[0]
