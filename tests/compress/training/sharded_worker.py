"""One of several processes that train a sharded model; run by test_sharded.py."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from test_sharded import STEPS, batch, plan
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import LlamaForCausalLM

from tercet.compress.qat.parallel import clip_gradients, reduce_outside, shard
from tercet.compress.qat.sharded import ShardedWeight
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import finish_gradients, refresh, swap
from tercet.compress.training.cross_entropy import next_token_loss

warnings.simplefilter("ignore")


def count_bytes(sizes: list[int]) -> None:
    gather = ShardedWeight.fsdp_pre_all_gather

    def counted(self: ShardedWeight, mesh: Any) -> Any:
        inputs, metadata = gather(self, mesh)
        sizes.append(sum(t.numel() * t.element_size() for t in inputs))
        return inputs, metadata

    ShardedWeight.fsdp_pre_all_gather = counted


def train(student: Student, mesh: DeviceMesh | None, rank: int, ranks: int) -> list[float]:
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    losses: list[float] = []
    for step in range(STEPS):
        refresh(student.quantized, step=step)
        total = torch.zeros(())
        for ids in batch(step).chunk(ranks)[rank].chunk(2):
            loss = next_token_loss(student.hidden(ids), student.head(), ids) / 2
            loss.backward()
            total += loss.detach()
        if mesh is None:
            finish_gradients(student.quantized)
            torch.nn.utils.clip_grad_norm_(student.parameters(), 0.3)
        else:
            reduce_outside(student, mesh)
            finish_gradients(student.quantized)
            clip_gradients(student, mesh, 0.3)
            dist.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total) / ranks)
    return losses


def main(model_directory: str, out: str, rank: int, ranks: int, method: str) -> None:
    model: Any = LlamaForCausalLM.from_pretrained(model_directory).train()
    student = Student(model, swap(model, plan(method)), torch.float32)
    sizes: list[int] = []
    mesh = None
    if ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{out}.store", rank=rank, world_size=ranks
        )
        mesh = init_device_mesh("cpu", (ranks,))
        shard(student, mesh)
        count_bytes(sizes)
    losses = train(student, mesh, rank, ranks)
    layer = [m for n, m in student.quantized.items() if "layers" in n]
    report = {
        "losses": losses,
        "sent_bytes": sum(sizes[: len(layer)]),
        "weights": sum(module.codes.numel() for module in layer),
        "rows": sum(module.codes.shape[0] for module in layer),
    }
    Path(f"{out}.{rank}.json").write_text(json.dumps(report))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
