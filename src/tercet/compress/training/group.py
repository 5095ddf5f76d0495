"""Group: the processes of a run: one, or as many as torchrun started, one a device."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tercet.compress.qat.fsdp import clip_gradients, gather, reduce_outside, shard
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import finish_gradients
from tercet.environment import check_launched, local_rank, rank, world_size
from tercet.models.device import resolve_device

# while one process tokenizes, or lets a teacher write, the others wait
_PATIENCE = timedelta(hours=12)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The processes that train one student together.

    Attributes:
        device: of this process.
        rank: which one it is; 0 writes what is written.
        world_size: how many there are.
        mesh: of their devices; None for one process.
    """

    device: torch.device
    rank: int = 0
    world_size: int = 1
    mesh: DeviceMesh | None = None

    @property
    def first(self) -> bool:
        """Whether this process writes what is written."""
        return self.rank == 0

    def barrier(self) -> None:
        """Waits until all processes have reached this call."""
        if self.mesh is not None:
            dist.barrier()

    def shard(self, student: Student, *, keep_codes: bool) -> None:
        """Shards the student's layers over the devices.

        Args:
            student: whose layers.
            keep_codes: of `shard`.

        Raises:
            PlanError: they cannot be sharded.
        """
        if self.mesh is not None:
            shard(student, self.mesh, keep_codes=keep_codes)

    def gather(self, student: Student) -> None:
        """Gathers the student's weights: every one is whole on each device again."""
        if self.mesh is not None:
            gather(student)

    def finish(self, student: Student, limit: float) -> Tensor:
        """Gradients of all devices, through the quantizer, scaled down to a norm of `limit`.

        Returns:
            The norm before.
        """
        if self.mesh is None:
            finish_gradients(student.quantized)
            return nn.utils.clip_grad_norm_(student.parameters(), limit)
        reduce_outside(student, self.mesh)
        finish_gradients(student.quantized)
        return clip_gradients(student, self.mesh, limit)

    def mean(self, values: list[Tensor]) -> Tensor:
        """Scalars on the device, averaged over processes: float64 [number of values] there."""
        together = torch.stack([value.detach().double() for value in values])
        if self.mesh is not None:
            dist.all_reduce(together)
            together /= self.world_size
        return together


@contextmanager
def open_group(device: str | None) -> Generator[Group]:
    """The group of this process, for the time of the block.

    Args:
        device: "cpu" or "cuda"; None for a GPU where there is one. Under torchrun each process
            takes the GPU of its local rank.

    Raises:
        UnsupportedError: for another kind of device, or a GPU that is not there.
    """
    where, count = resolve_device(device), world_size()
    if count == 1:
        yield Group(device=where)
        return
    check_launched()
    on_gpu = where.type == "cuda"
    here = torch.device("cuda", local_rank()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(here)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", timeout=_PATIENCE, device_id=here if on_gpu else None
    )
    try:
        mesh = init_device_mesh(here.type, (count,))
        yield Group(device=here, rank=rank(), world_size=count, mesh=mesh)
    finally:
        dist.destroy_process_group()
