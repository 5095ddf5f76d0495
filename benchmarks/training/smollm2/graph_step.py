"""One step of distillation as CUDA graphs, its gradients averaged over processes between them."""

import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist
from recipe import Recipe
from torch import Tensor

from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import finish_gradients, refresh
from tercet.compress.training.group import Group
from tercet.compress.training.optimizer import make_optimizer
from tercet.compress.training.settings import TrainingSettings
from tercet.ops.linear_kl import linear_kl


class Step:
    """One step of training, as two CUDA graphs where there is a GPU: gradients, and their use.

    Each process has the whole student and reads windows of its own. All update alike: they begin
    with the first one's weights.

    Args:
        student, teacher: on one device, the teacher in eval mode.
        ids: [B, T] int64, overwritten before each step.
        recipe: the learning rate.
        group: the processes.
    """

    def __init__(
        self, student: Student, teacher: Student, ids: Tensor, recipe: Recipe, group: Group
    ) -> None:
        self.student, self.teacher, self.ids = student, teacher, ids
        self._together = group.mesh is not None
        settings = TrainingSettings(
            learning_rate=recipe.rate,
            embedding_rate_share=recipe.embedding_share,
            vector_rate_share=0.1,
        )
        self.optimizer = make_optimizer(student, settings)
        for each in self.optimizer.param_groups:
            if ids.is_cuda:
                each.update(lr=torch.zeros((), device=ids.device), capturable=True)
        self._parameters = student.parameters()
        if self._together:
            for parameter in self._parameters:
                dist.broadcast(parameter.data, 0)
        self._share = 1 / group.world_size
        sizes = [parameter.numel() for parameter in self._parameters]
        self._gradients = torch.zeros(sum(sizes), device=ids.device)
        self._parts = [
            part.view_as(parameter)
            for part, parameter in zip(self._gradients.split(sizes), self._parameters, strict=True)
        ]
        self.loss = torch.zeros((), device=ids.device)
        self.norm = torch.zeros_like(self.loss)
        self._first: Callable[[], None] = self._find
        self._second: Callable[[], None] = self._use

    def _find(self) -> None:
        """This process's gradients, end to end."""
        student, device = self.student, self.ids.device.type
        # old codes are not counted: a graph would read them where they lay when it was recorded
        refresh(student.quantized, counting=False)
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            with torch.no_grad():
                wanted, head = self.teacher.hidden(self.ids), self.teacher.head()
            loss = linear_kl(student.hidden(self.ids), student.head(), wanted, head)
        loss.backward()
        finish_gradients(student.quantized)
        for parameter, part in zip(self._parameters, self._parts, strict=True):
            assert parameter.grad is not None
            torch.mul(parameter.grad, self._share, out=part)
            parameter.grad = None
        self.loss.copy_(loss.detach())

    def _use(self) -> None:
        """An update by all processes' gradients."""
        for parameter, part in zip(self._parameters, self._parts, strict=True):
            parameter.grad = part
        self.norm.copy_(torch.nn.utils.clip_grad_norm_(self._parameters, 1.0))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def __call__(self) -> None:
        self._first()
        if self._together:
            dist.all_reduce(self._gradients)
        self._second()

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps to come."""
        for each in self.optimizer.param_groups:
            if isinstance(each["lr"], Tensor):
                each["lr"].fill_(rate * each["rate_share"])
            else:
                each["lr"] = rate * each["rate_share"]

    def capture(self) -> str:
        """Compiles and records the step at a rate of 0; how it will run."""
        self.set_rate(0.0)
        if not self.ids.is_cuda:
            return "eager"
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            # recording empties the allocators' caches, which the first part must not see afterwards
            second, first = _recorded(self._use), _recorded(self._find)
        except Exception:  # noqa: BLE001  a step that cannot be recorded still trains
            traceback.print_exc()
            torch.cuda.synchronize()
            self.optimizer.zero_grad(set_to_none=True)
            return "eager"
        self._first, self._second = first, second
        return "graph"


def _recorded(action: Callable[[], None]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        action()
    return graph.replay
