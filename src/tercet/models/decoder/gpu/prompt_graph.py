"""PromptGraphs: passes over whole prompts as CUDA graphs, of the shapes that come again.

Its kernels take the host 30 to 55 ms to launch, whatever the prompt's length, and the GPU 8 ms to
run for 512 tokens of an 8B. So a pass is captured when its shape comes for the second time,
and replayed from then on. That shapes come again, prompts are run with a few positions more, up
to the next of four lengths an octave: no position sees those behind it, and the cache forgets them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.kernel.device.captured import Captured
from tercet.models.decoder.config import DecoderConfig
from tercet.models.decoder.gpu.prompt_step import PromptStep
from tercet.models.decoder.kv_cache import CHUNK, KeyValueCache
from tercet.models.decoder.tensor_parallel.group import RankGroup

Capture = Callable[[], "PromptGraph"]

# of the memory of all graphs together, and so of one
MOST_BYTES = 2**29
# shapes that are remembered, whether captured or not
_MOST_SHAPES = 64
# so many tokens and fewer are multiplied by other kernels, which take each count as it is
_FEW = 16


def padded(count: int) -> int:
    """The positions that a prompt of `count` is run with."""
    if count <= _FEW:
        return count
    step = max(_FEW, 1 << ((count - 1).bit_length() - 3))
    return -(-count // step) * step


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pass:
    """From ids [B, T] as they are to what leaves the last layer [B T, hidden]."""

    embed: Callable[[Tensor], Tensor]
    step: PromptStep
    ids: Tensor
    cache: KeyValueCache

    def __call__(self) -> Tensor:
        return self.step(self.embed(self.ids.reshape(-1)), self.cache)


class PromptGraph:
    """The pass over the first T positions of B sequences, captured with a cache of its own.

    Args:
        embed: ids [N] to rows [N, hidden].
        step: of T positions, all of those that the cache holds.
        cache: of B sequences; nobody else's.
        size: bytes that it takes, by `graph_bytes`.
    """

    def __init__(
        self, embed: Callable[[Tensor], Tensor], step: PromptStep, cache: KeyValueCache, size: int
    ) -> None:
        self.size = size
        shape, device = (cache.batch, cache.length), cache.held.device
        self._ids = torch.zeros(shape, dtype=torch.int64, device=device)
        self._cache = cache
        self._graph = Captured(_Pass(embed=embed, step=step, ids=self._ids, cache=cache), device)

    def run(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        """What leaves the last layer [B, t, hidden]; the next run's overwrites it.

        Args:
            ids: [B, t], t at most T.
            cache: empty; gets the t positions.
        """
        count = ids.shape[1]
        self._ids[:, :count].copy_(ids)
        self._graph.replay()
        cache.copy_from(self._cache, count)
        return self._graph.result.view(*self._ids.shape, -1)[:, :count]


class PromptGraphs:
    """The graphs of a decoder's prompts, by shape; the oldest give way to new ones.

    Args:
        group: the ranks that run the decoder together, which capture together or not at all.
    """

    def __init__(self, group: RankGroup | None = None) -> None:
        self._group = group
        self._graphs = dict[tuple[int, int], PromptGraph | None]()

    def find(
        self, shape: tuple[int, int], size: int, device: torch.device, capture: Capture
    ) -> PromptGraph | None:
        """The graph of prompts [B, T]; None where the shape is new, or memory is short.

        Args:
            shape: B and T.
            size: bytes that the graph takes, by `graph_bytes`; at most MOST_BYTES.
            device: that it is captured on.
            capture: makes it; the pass has run with that shape before.
        """
        if shape not in self._graphs:
            self._remember(shape, None)
            return None
        graph = self._graphs.pop(shape)
        if graph is None:
            self._make_room(MOST_BYTES - size)
            free = _free_bytes(device)
            free = free if self._group is None else self._group.lowest(free)
            if free >= 2 * size:
                graph = capture()
        self._remember(shape, graph)
        return graph

    def _remember(self, shape: tuple[int, int], graph: PromptGraph | None) -> None:
        """As the newest."""
        self._graphs[shape] = graph
        if len(self._graphs) > _MOST_SHAPES:
            del self._graphs[next(iter(self._graphs))]

    def _make_room(self, size: int) -> None:
        """Frees the oldest graphs until the others take no more than so many bytes."""
        held = {shape: graph.size for shape, graph in self._graphs.items() if graph is not None}
        left = sum(held.values())
        for shape, freed in held.items():
            if left <= size:
                return
            self._graphs[shape] = None
            left -= freed


def _free_bytes(device: torch.device) -> int:
    """Of a GPU's memory, with what torch holds and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def graph_bytes(config: DecoderConfig, dtype: torch.dtype, cache: KeyValueCache, count: int) -> int:
    """What a graph of so many positions takes: a cache like that one, and what is alive in a layer.

    Args:
        config: the decoder's sizes.
        dtype: of activations.
        cache: of as many sequences.
        count: positions of each.
    """
    mixture, inner = config.mixture, config.intermediate
    if mixture is not None:
        inner = max(inner, mixture.per_token * mixture.inner + (mixture.shared or 0))
    heads = (config.heads + 2 * config.key_value_heads) * config.head_dim
    alive = (heads + 4 * config.hidden + 3 * inner) * dtype.itemsize
    return cache.batch * (-(-count // CHUNK) * CHUNK * cache.position_bytes + count * alive)
