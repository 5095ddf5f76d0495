"""A rank of tensor parallelism: `python rank_worker.py DEVICE RANK RANKS FOLDER` is one of them.

DEVICE is cuda or cpu; FOLDER holds the models of `save_sources` and gets what the rank makes of
them.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.formats import PackedTensor
from tercet.models import Decoder
from tercet.models.decoder.tensor_parallel.group import RankGroup, open_rank_group
from tercet.runtime.generate import stream
from tercet.runtime.settings import GenerationSettings

PROMPT = [5, 60, 33, 7, 81, 12, 9]
IDS = torch.randint(3, 96, (2, 19), generator=torch.Generator().manual_seed(3))
TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class StoredSource:
    """The weights of a model, in memory."""

    config: dict[str, Any]
    plain: dict[str, Tensor]
    modules: dict[str, PackedModule]
    packed: dict[str, PackedTensor]

    def names(self) -> list[str]:
        return list(self.plain)

    def tensor(self, name: str) -> Tensor:
        return self.plain[name]

    def read_packed(self, module: str) -> PackedTensor:
        return self.packed[module]

    def input_scale(self, module: str) -> Tensor:
        raise KeyError(module)


def save_sources(sources: dict[str, Any], folder: Path) -> None:
    """Writes sources of tests/models/conftest.py where ranks read them."""
    parts = {
        name: {
            "config": source.config,
            "plain": source.plain,
            "modules": source.modules,
            "packed": {module: source.read_packed(module) for module in source.modules},
        }
        for name, source in sources.items()
    }
    torch.save(parts, folder / "sources.pt")


def run(source: Any, device: torch.device, group: RankGroup | None) -> dict[str, Any]:
    """Everything that a decoder gives; the second of two prompts of a shape is a graph's."""
    decoder = Decoder.from_checkpoint(source, torch.float32, device, group=group)
    greedy = GenerationSettings(max_new_tokens=TOKENS, ignore_stop=True)
    drawn = GenerationSettings(max_new_tokens=TOKENS, ignore_stop=True, temperature=1.5)
    return {
        "logits": [decoder.logits(IDS).cpu() for _ in range(3)],
        "greedy": [list(stream(decoder, PROMPT, greedy)) for _ in range(2)],
        "drawn": list(stream(decoder, PROMPT, drawn)),
    }


def work(kind: str, rank: int, ranks: int, folder: Path) -> None:
    """All models, as one of the ranks."""
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        device_id=device if kind == "cuda" else None,
    )
    group = open_rank_group(dist.group.WORLD, device)
    found = dict[str, Any]()
    sources = torch.load(folder / "sources.pt", weights_only=False)
    for name, parts in sources.items():
        found[name] = run(StoredSource(**parts), device, group)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
