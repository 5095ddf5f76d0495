"""FSDP2 over two processes: the loss curve of one, and codes instead of weights on the wire."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.compress.plan import Plan
from tercet.compress.qat.sharded import shard_parameter, wire_of
from tercet.errors import PlanError
from tercet.formats import parse_scheme

STEPS = 10


def plan(method: str) -> Plan:
    options = {"method": method, "activation": "int8_token"}
    rules = [
        {
            "match": "*.layers.*",
            "format": "ternary-channel",
            "algorithm": "qat",
            "options": options,
        },
        {"match": "*embed_tokens", "format": "int8-channel", "algorithm": "qat"},
    ]
    rules = [{**rule, "algorithm": "qat"} for rule in rules]
    return Plan.model_validate({"name": "layers", "rules": rules})


def batch(step: int) -> Tensor:
    """Sequences in which each token is the one before it plus 7."""
    starts = torch.randint(64, (4, 1), generator=torch.Generator().manual_seed(step))
    return (starts + 7 * torch.arange(16)) % 64


def run(model: Path, out: Path, ranks: int) -> list[dict[str, Any]]:
    worker = Path(__file__).with_name("sharded_worker.py")
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(worker), str(model), str(out), str(rank), str(ranks), "learned"],
            env={**os.environ, **paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said.decode()[-3000:]
    return [json.loads(Path(f"{out}.{rank}.json").read_text()) for rank in range(ranks)]


def test_two_processes_learn_as_one_does(model: Path, tmp_path: Path) -> None:
    (one,) = run(model, tmp_path / "one", 1)
    two, other = run(model, tmp_path / "two", 2)
    assert two["losses"] == other["losses"]
    assert one["losses"][-1] < 0.9 * one["losses"][0]
    for a, b in zip(one["losses"], two["losses"], strict=True):
        assert abs(a / b - 1) < 1e-3
    # each process sends its half of the weights, at 2 bits, and a float32 scale a row
    assert two["weights"] == one["weights"] // 2
    assert two["sent_bytes"] == two["weights"] // 4 + 4 * two["rows"]


def test_refuses_what_cannot_be_cut(model: Path) -> None:
    from transformers import LlamaForCausalLM

    weight = LlamaForCausalLM.from_pretrained(model).model.layers[0].mlp.up_proj.weight
    with pytest.raises(PlanError, match="64 rows over 3 devices"):
        shard_parameter(weight, parse_scheme("ternary-channel"), 3)
    with pytest.raises(PlanError, match="use nonary-channel"):
        shard_parameter(weight, parse_scheme("nonary-tensor"), 2)


@pytest.mark.parametrize("form", ["ternary-channel", "nonary-channel", "int8-channel"])
def test_codes_survive_the_wire(form: str) -> None:
    scheme = parse_scheme(form)
    low, high = int(scheme.element.lowest), int(scheme.element.highest)
    codes = torch.randint(low, high + 1, (5, 37), generator=torch.Generator().manual_seed(0))
    wire = wire_of(scheme)
    packed = wire.pack(codes.to(torch.int8))
    assert packed.dtype == torch.uint8
    assert packed.numel() == 5 * -(-37 * {3: 2, 9: 4, 256: 8}[len(scheme.element.levels)] // 8)
    assert torch.equal(wire.unpack(packed, 37), codes.to(torch.int8))
