"""Prompts: new positions through all layers on a GPU, kernel by kernel or as a graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.models.decoder.config import DecoderConfig
from tercet.models.decoder.gpu.positions import angle_tables, own_blocks
from tercet.models.decoder.gpu.prompt_graph import (
    MOST_BYTES,
    PromptGraph,
    PromptGraphs,
    graph_bytes,
    padded,
)
from tercet.models.decoder.gpu.prompt_step import PromptStep
from tercet.models.decoder.kv_cache import KeyValueCache
from tercet.models.decoder.layer import Layer


@dataclass(frozen=True, kw_only=True, eq=False)
class Prompts:
    """What a decoder's prompts are run by.

    Attributes:
        config: its sizes.
        dtype: of its activations.
        embed: ids [N] to rows [N, hidden].
        layers: as the decoder has them.
        inverse: as the decoder has it: of each kind of rotation [R].
        graphs: of the shapes that came again.
    """

    config: DecoderConfig
    dtype: torch.dtype
    embed: Callable[[Tensor], Tensor]
    layers: Sequence[Layer]
    inverse: Sequence[Tensor]
    graphs: PromptGraphs = field(default_factory=PromptGraphs)

    def run(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        """Appends ids [B, T] to the cache; what leaves the last layer [B T, hidden]."""
        batch, count = ids.shape
        whole = padded(count)
        size = graph_bytes(self.config, self.dtype, cache, whole)
        if cache.length or size > MOST_BYTES:
            return self._run_each(ids, cache)
        graph = self.graphs.find(
            (batch, whole), size, ids.device, lambda: self._capture(cache, whole, size)
        )
        if graph is not None:
            return graph.run(ids, cache).reshape(batch * count, -1)
        hidden = self._run_each(pad(ids, (0, whole - count)), cache)
        cache.truncate(count)
        return hidden.view(batch, whole, -1)[:, :count].reshape(batch * count, -1)

    def _run_each(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        """Kernel by kernel."""
        cache.advance(ids.shape[1])
        return self.step(cache, ids.shape[1])(self.embed(ids.reshape(-1)), cache)

    def _capture(self, like: KeyValueCache, count: int, size: int) -> PromptGraph:
        cache = like.empty_like()
        cache.advance(count)
        return PromptGraph(self.embed, self.step(cache, count), cache, size)

    def step(self, cache: KeyValueCache, count: int) -> PromptStep:
        """The step of the last `count` positions of a cache, which are still to be written."""
        device = cache.held.device
        cos, sin = angle_tables(self.inverse, cache.length)
        return PromptStep(
            layers=self.layers,
            cos=cos,
            sin=sin,
            blocks=own_blocks(cache.batch, device),
            lengths=torch.full((cache.batch,), cache.length, dtype=torch.int32, device=device),
        )
