"""RankGroup: the processes that run one decoder together, each with a part of its products."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class RankGroup:
    """What the ranks of tensor parallelism tell each other; all of it can be captured.

    Every rank gets the same bits of a sum, so the residual stream, and with it the scores, are the
    same on all of them.

    Attributes:
        process_group: of torch.distributed; NCCL's on GPUs, gloo's on a CPU.
        device: of this rank's tensors.
        rank: which one it is.
        world_size: how many there are.
    """

    process_group: dist.ProcessGroup
    device: torch.device
    rank: int
    world_size: int

    def sum_(self, x: Tensor) -> Tensor:
        """x, of one shape on all ranks, becomes its sum over them, in its own dtype.

        A product has rounded its part to that dtype already; sums in float32 would save less than
        that cost, and twice the bytes of a prompt would travel.
        """
        dist.all_reduce(x, group=self.process_group)
        return x

    def copy_first_(self, x: Tensor) -> Tensor:
        """x becomes what it is on rank 0."""
        dist.broadcast(x, group=self.process_group, group_src=0)
        return x

    def lowest(self, number: int) -> int:
        """The lowest number that a rank has."""
        found = torch.tensor(number, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MIN, group=self.process_group)
        return int(found)


def open_rank_group(process_group: dist.ProcessGroup, device: torch.device) -> RankGroup | None:
    """The group of this process; None where it is the only one."""
    count = dist.get_world_size(process_group)
    if count == 1:
        return None
    return RankGroup(
        process_group=process_group,
        device=device,
        rank=dist.get_rank(process_group),
        world_size=count,
    )
