"""One step of distillation as a CUDA graph, and the text that it reads."""

import traceback

import torch
from recipe import Recipe
from torch import Tensor

from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import finish_gradients, refresh
from tercet.compress.training.optimizer import make_optimizer
from tercet.compress.training.settings import TrainingSettings
from tercet.ops.linear_kl import linear_kl


class Step:
    """One step of training, as a CUDA graph where there is a GPU.

    Args:
        student, teacher: on one device, the teacher in eval mode.
        ids: [B, T] int64, overwritten before each step.
        recipe: the learning rate.
    """

    def __init__(self, student: Student, teacher: Student, ids: Tensor, recipe: Recipe) -> None:
        self.student, self.teacher, self.ids, self.recipe = student, teacher, ids, recipe
        settings = TrainingSettings(
            learning_rate=recipe.rate,
            embedding_rate_share=recipe.embedding_share,
            vector_rate_share=0.1,
        )
        self.optimizer = make_optimizer(student, settings)
        self.rate = torch.zeros((), device=ids.device)
        self.loss, self.norm = torch.zeros_like(self.rate), torch.zeros_like(self.rate)
        for group in self.optimizer.param_groups:
            if ids.is_cuda:
                group.update(lr=torch.zeros((), device=ids.device), capturable=True)
        self._graph: torch.cuda.CUDAGraph | None = None

    def _once(self) -> None:
        student, device = self.student, self.ids.device.type
        refresh(student.quantized)
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            with torch.no_grad():
                wanted, head = self.teacher.hidden(self.ids), self.teacher.head()
            loss = linear_kl(student.hidden(self.ids), student.head(), wanted, head)
        loss.backward()
        finish_gradients(student.quantized)
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.copy_(loss.detach())
        self.norm.copy_(norm)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps to come."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * group["rate_share"])
            else:
                group["lr"] = rate * group["rate_share"]

    def capture(self) -> str:
        """Compiles and records the step at a rate of 0; how it will run."""
        self.set_rate(0.0)
        if not self.ids.is_cuda:
            return "eager"
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._once()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._once()
            self._graph = graph
        except Exception:  # noqa: BLE001  a step that cannot be recorded still trains
            traceback.print_exc()
            torch.cuda.synchronize()
            self.optimizer.zero_grad(set_to_none=True)
            return "eager"
        return "graph"

    def __call__(self) -> None:
        if self._graph is None:
            self._once()
        else:
            self._graph.replay()


class Batches:
    """Windows of text at random places.

    Args:
        pools: texts, int32 [n] each, with the share of windows that come from each.
        seed: of the places.
    """

    def __init__(self, pools: list[tuple[Tensor, float]], seed: int = 0) -> None:
        self._pools = [pool for pool, _ in pools]
        self._shares = torch.tensor([share for _, share in pools])
        self._generator = torch.Generator().manual_seed(seed)

    def fill(self, ids: Tensor) -> None:
        """Writes the next windows into ids [B, T]."""
        count, length = ids.shape
        which = torch.multinomial(self._shares, count, True, generator=self._generator).tolist()
        rows: list[Tensor] = []
        for pool in which:
            text = self._pools[pool]
            limit = len(text) - length
            first = int(torch.randint(limit, (1,), generator=self._generator))
            rows.append(text[first : first + length])
        ids.copy_(torch.stack(rows))
