"""What a captured step reads stays in memory as long as the graph: a GPU that only watches."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tercet.kernel.device.captured import Captured
from tercet.models import Decoder

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="pretends a GPU, which a real one does not stand"
)


class WatchedGraph:
    """A graph that keeps nothing, as CUDA's, and knows what was there before it and is read."""

    def __init__(self) -> None:
        self.read: list[StorageWeakRef] = []

    def replay(self) -> None:
        freed = sum(storage.expired() for storage in self.read)
        assert self.read
        assert not freed, f"{freed} of {len(self.read)} tensors that the graph reads were freed"


class Watch(TorchDispatchMode):
    def __init__(self, graph: WatchedGraph) -> None:
        super().__init__()
        self._graph, self._made = graph, set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor) and one.untyped_storage()._cdata not in self._made:
                self._graph.read.append(StorageWeakRef(one.untyped_storage()))
        found = func(*args, **kwargs or {})
        for one in tree_leaves(found):
            if isinstance(one, Tensor) and not any(
                one.untyped_storage()._cdata == read.cdata for read in self._graph.read
            ):
                self._made.add(one.untyped_storage()._cdata)
        return found


class Stream:
    def wait_stream(self, other: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def watching_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def graph(watched: WatchedGraph) -> Iterator[None]:
        with Watch(watched):
            yield

    for name, stub in {
        "CUDAGraph": WatchedGraph,
        "graph": graph,
        "device": lambda _: nullcontext(),
        "stream": lambda _: nullcontext(),
        "Stream": Stream,
        "current_stream": Stream,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stub)


def test_the_watch_sees_what_is_freed() -> None:
    kept, freed = torch.ones(3), torch.ones(3)
    out = torch.zeros(3)
    graph = WatchedGraph()
    with Watch(graph):
        out.copy_(kept * 2 + freed)
    graph.replay()
    del freed
    with pytest.raises(AssertionError, match="1 of 3 tensors"):
        graph.replay()


def test_what_a_function_reads_is_kept_with_the_graph() -> None:
    out = torch.zeros(3)

    def doubling() -> Callable[[], None]:
        inputs = torch.ones(3)

        def double() -> None:
            out.copy_(inputs * 2)

        return double

    captured = Captured(doubling(), torch.device("cpu"))
    assert out.tolist() == [2, 2, 2]
    captured.replay()


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_a_decoders_steps_read_what_is_there(
    kind: str, build: Callable[..., Any], source_of: Any
) -> None:
    source = source_of(build(kind, **({"head_dim": 32} if kind == "gemma3_text" else {})))
    source.pack("model.layers.0.mlp.down_proj", "ternary")
    decoder = Decoder.from_checkpoint(source)
    gone = weakref.ref(decoder)
    gc.collect()
    gc.disable()
    try:
        # the second is captured anew, as another batch is
        for batch in (1, 3):
            cache = decoder.cache(batch)
            for _ in range(3):
                with torch.inference_mode():
                    scores = decoder._replay(torch.full((batch,), 5), cache)
                assert scores.shape == (batch, 96)
        # freed with the last reference: its graph is in no cycle
        del decoder, cache, scores
        assert gone() is None
    finally:
        gc.enable()
