"""Every parameter trains once, at the rate of its kind."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import swap
from tercet.compress.training.optimizer import make_optimizer, set_rate
from tercet.compress.training.settings import TrainingSettings


@pytest.mark.parametrize("tied", [True, False])
def test_rates_by_kind(tied: bool, model: Path) -> None:
    network = LlamaForCausalLM.from_pretrained(model)
    if not tied:
        network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.detach().clone())
    student = Student(network, swap(network, "ternary"), torch.float32)
    settings = TrainingSettings(
        weight_decay=0.1, step_rate_share=0.5, embedding_rate_share=0.25, vector_rate_share=0.125
    )
    optimizer = make_optimizer(student, settings)
    set_rate(optimizer, 8.0)
    found = {
        id(p): (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]
    }
    named = {name: found.pop(id(p)) for name, p in network.named_parameters()}
    assert not found
    for name, rates in named.items():
        if name.endswith(".step"):
            assert rates == (4.0, 0.0), name
        elif "norm" in name:
            assert rates == (1.0, 0.0), name
        elif "embed" in name or "lm_head" in name:
            assert rates == (2.0, 0.1), name
        else:
            assert rates == (8.0, 0.1), name
    assert sum("lm_head.weight" in name for name in named) == (not tied)
