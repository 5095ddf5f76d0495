"""A training loop of a user's own; `python own_loop.py RANK MODEL OUT` is one of two processes."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaForCausalLM

from tercet.compress.qat.swap import Quantized, finish_gradients, refresh, swap

IDS = (torch.arange(48).view(4, 12) * 7) % 64
PARALLEL = ["nonary", "ternary-a8"]


def opened(model: Path, form: str) -> tuple[Any, Quantized]:
    found = LlamaForCausalLM.from_pretrained(model)
    return found, swap(found, form)


def take_gradients(model: Any, quantized: Quantized, ids: Tensor = IDS) -> dict[str, Tensor]:
    model(input_ids=ids, labels=ids).loss.backward()
    finish_gradients(quantized)
    return {name: p.grad for name, p in find_parameters(model) if p.grad is not None}


def find_parameters(model: Any) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name.removeprefix("module."), p) for name, p in model.named_parameters()]


def take_step(model: Any, gradients: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in find_parameters(model):
            p -= 0.1 * gradients[name]
            p.grad = None


def work(rank: int, model: Path, out: Path) -> None:
    """Three steps of each format."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    found: dict[str, list[dict[str, Tensor]]] = {}
    for form in PARALLEL:
        network, quantized = opened(model, form)
        network.train()
        parallel = DistributedDataParallel(network)
        for _ in range(3):
            refresh(quantized)
            gradients = take_gradients(parallel, quantized, IDS.chunk(2)[rank])
            found.setdefault(form, []).append(gradients)
            take_step(network, gradients)
    torch.save(found, out / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    work(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
