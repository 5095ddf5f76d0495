"""FSDP2 over two processes: the loss curve of one, and codes instead of weights on the wire."""

import json
import multiprocessing
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import LlamaForCausalLM

from tercet.compress.plan import Plan
from tercet.compress.qat.fsdp import clip_gradients, reduce_outside, shard
from tercet.compress.qat.sharding.weights import ShardedWeight, shard_parameter
from tercet.compress.qat.sharding.wire import wire_of
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import finish_gradients, refresh, swap
from tercet.compress.training.cross_entropy import next_token_loss
from tercet.errors import PlanError
from tercet.formats import parse_scheme
from tercet.packed_weight.triton import packed_codes

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*slow path"),
    # Python 3.12 on forking; the children use one thread each
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]
STEPS = 10
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIMIT = 0.3


def opened(model: Path) -> Student:
    rules = [
        {
            "match": "*.layers.*", "format": "ternary-channel", "algorithm": "qat",
            "options": {"activation": "int8_token"},
        },
        {"match": "*embed_tokens", "format": "int8-channel", "algorithm": "qat"},
    ]  # fmt: skip
    network: Any = LlamaForCausalLM.from_pretrained(model).train()
    plan = Plan.model_validate({"name": "layers", "rules": rules})
    return Student(network, swap(network, plan), torch.float32)


def batch(step: int) -> Tensor:
    """Sequences in which each token is the one before it plus 7."""
    starts = torch.randint(64, (4, 1), generator=torch.Generator().manual_seed(step))
    return (starts + 7 * torch.arange(16)) % 64


def train(
    student: Student, mesh: DeviceMesh | None, rank: int, ranks: int, steps: int = STEPS
) -> list[float]:
    """Two microbatches a step; losses averaged over ranks."""
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    losses: list[float] = []
    for step in range(steps):
        refresh(student.quantized, step=step)
        total = torch.zeros(())
        for ids in batch(step).chunk(ranks)[rank].chunk(2):
            loss = next_token_loss(student.hidden(ids), student.head(), ids) / 2
            loss.backward()
            total += loss.detach()
        if mesh is None:
            finish_gradients(student.quantized)
            torch.nn.utils.clip_grad_norm_(student.parameters(), LIMIT)
        else:
            reduce_outside(student, mesh)
            finish_gradients(student.quantized)
            clip_gradients(student, mesh, LIMIT)
            dist.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total) / ranks)
    return losses


def work(model: Path, out: Path, rank: int, ranks: int) -> None:
    """One process: its report to out/RANK.json."""
    torch.set_num_threads(1)
    store = f"file://{out}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    student, sizes = opened(model), list[int]()
    mesh = init_device_mesh("cpu", (ranks,))
    shard(student, mesh)
    gather = ShardedWeight.fsdp_pre_all_gather

    def counted(self: ShardedWeight, mesh: Any) -> Any:
        inputs, metadata = gather(self, mesh)
        sizes.append(sum(t.numel() * t.element_size() for t in inputs))
        return inputs, metadata

    ShardedWeight.fsdp_pre_all_gather = counted
    losses = train(student, mesh, rank, ranks)
    kept, compiled = opened(model), opened(model)
    # whole codes are no codes of the rows that lie here
    refresh(kept.quantized)
    shard(kept, mesh, keep_codes=True)
    shard(compiled, mesh)
    # torch's, of gradients that it looks for where there are none
    warnings.simplefilter("ignore")
    for module in compiled.layers():
        module.compile(backend="aot_eager", fullgraph=True)
    regathered = len(sizes)
    layer = [module for name, module in student.quantized.items() if "layers" in name]
    report = {
        "losses": losses,
        "compiled": train(compiled, mesh, rank, ranks, 3),
        "kept": train(kept, mesh, rank, ranks, 3),
        "gathers": [regathered / STEPS, (len(sizes) - regathered) / 3],
        "sent_bytes": sum(sizes[: len(layer)]),
        "weights": sum(module.codes.numel() for module in layer),
        "rows": sum(module.codes.shape[0] for module in layer),
    }
    (out / f"{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


def test_two_processes_learn_as_one_does(model: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=work, args=(model, tmp_path, rank, 2), daemon=True)
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        assert process.exitcode == 0
    two, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    student = opened(model)
    one = train(student, None, 0, 1)
    assert two["losses"] == other["losses"]
    assert two["compiled"] == two["losses"][:3], "codes that were gathered are of a graph, too"
    assert two["kept"] == two["losses"][:3]
    # of seven weights in two microbatches: forward and backward; and those again and forward alone
    assert two["gathers"] == [28, 28 + 14]
    assert one[-1] < 0.9 * one[0]
    for a, b in zip(one, two["losses"], strict=True):
        assert abs(a / b - 1) < 1e-3
    # each process sends its half of the weights, at 2 bits, and a float32 scale a row
    weights = sum(m.codes.numel() for n, m in student.quantized.items() if "layers" in n)
    assert two["weights"] == weights // 2
    assert two["sent_bytes"] == two["weights"] // 4 + 4 * two["rows"]


def test_refuses_what_cannot_be_cut(model: Path) -> None:
    weight = LlamaForCausalLM.from_pretrained(model).model.layers[0].mlp.up_proj.weight
    with pytest.raises(PlanError, match="64 rows over 3 devices"):
        shard_parameter(weight, parse_scheme("ternary-channel"), 3)
    with pytest.raises(PlanError, match="use nonary-channel"):
        shard_parameter(weight, parse_scheme("nonary-tensor"), 2)


@pytest.mark.parametrize(
    ("form", "bits"),
    [("ternary-channel", 2), ("nonary-channel", 4), ("int3-channel", 4), ("int8-channel", 8)],
)
def test_codes_survive_the_wire(form: str, bits: int) -> None:
    scheme = parse_scheme(form)
    low, high = int(scheme.element.lowest), int(scheme.element.highest)
    random = torch.Generator().manual_seed(0)
    codes = torch.randint(low, high + 1, (5, 37), generator=random).to(torch.int8)
    wire = wire_of(scheme)
    packed = wire.pack(codes)
    assert packed.dtype == torch.uint8
    assert packed.numel() == 5 * -(-37 * bits // 8)
    out = torch.full_like(codes, 77)
    wire.unpack(packed, out)
    assert torch.equal(out, codes)
    # a GPU's kernels give the same bytes
    there = codes.to(DEVICE)
    assert torch.equal(packed_codes.pack(there, bits).cpu(), packed)
    out = torch.full_like(there, 77)
    packed_codes.unpack(packed.to(DEVICE), bits, out)
    assert torch.equal(out.cpu(), codes)


def test_the_first_code_is_in_the_lowest_bits() -> None:
    codes = torch.tensor([[1, -1, 0, 1, -1]], dtype=torch.int8)
    packed = wire_of(parse_scheme("ternary-channel")).pack(codes)
    assert packed.tolist() == [[0b01001101, 0b00000011]]
