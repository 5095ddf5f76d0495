"""define: what stands between torch's dispatcher and an op's function."""

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tercet.kernel import register


def test_kernels_run_on_the_gpu_of_the_first_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches go to the current GPU, which need not be the tensors'."""
    entered = list[torch.device]()

    def enter(device: torch.device) -> AbstractContextManager[None]:
        entered.append(device)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", enter)

    def run(scale: float, x: Tensor) -> Tensor:
        return x * scale

    guarded = register.on_its_gpu(run)
    with FakeTensorMode():
        for index in (0, 1, 2):
            assert guarded(2.0, torch.empty(3, device=f"cuda:{index}")).get_device() == index
    assert guarded(2.0, torch.ones(3)).tolist() == [2, 2, 2]
    assert entered == [torch.device("cuda:0"), torch.device("cuda:2")]
