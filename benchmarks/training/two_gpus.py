"""Ternary training of a model with Llama-3.2-1B's layers on one GPU and on several, by FSDP2.

    python benchmarks/training/two_gpus.py TOKENS.safetensors --out FILE
    torchrun --nproc-per-node 2 benchmarks/training/two_gpus.py TOKENS.safetensors --out FILE
        --work DIRECTORY

Both see the same sequences in each step: one device takes them in as many microbatches as there
would be devices. So the losses must be alike, and tokens a second compare directly. Layers run
under torch.compile in both, or in neither (--eager). TOKENS holds token ids as "train". What goes
into each all-gather is counted where torch hands it to the backend. Appends one record.
"""

import argparse
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from llama import TINY, random_model, shape
from safetensors.torch import load_file
from torch import Tensor

from tercet.compress.plan import Plan
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import swap
from tercet.compress.training.cross_entropy import CrossEntropy
from tercet.compress.training.group import Group, open_group
from tercet.compress.training.journal import Line
from tercet.compress.training.loop import Loop, RunPaths, Speed
from tercet.compress.training.sequences import Sequences
from tercet.compress.training.settings import TrainingSettings
from tercet.compress.training.token_file import TokenFile, write_tokens
from tercet.records import Environment, Record, append

SHAPE, VOCABULARY = "llama-3.2-1b", 49152
RULE = {
    "match": "*.layers.*",
    "format": "ternary-channel",
    "algorithm": "qat",
    "options": {"method": "absmean", "activation": "int8_token"},
}
PLAN = Plan.model_validate({"name": "ternary", "rules": [RULE]})


class Gathers:
    """Bytes that this device hands over to be gathered, counted as long as it lives."""

    def __init__(self) -> None:
        self.calls, self.bytes = 0, 0
        # FSDP2 of torch 2.11 calls the one, of 2.13 the other
        for name in ("all_gather_into_tensor", "all_gather_single"):
            if hasattr(dist, name):
                setattr(dist, name, self._counted(getattr(dist, name)))

    def _counted(self, gather: Any) -> Any:
        def counted(output_tensor: Tensor, input_tensor: Tensor, **named: Any) -> Any:
            self.calls += 1
            self.bytes += input_tensor.numel() * input_tensor.element_size()
            return gather(output_tensor, input_tensor, **named)

        return counted


def student_of(device: torch.device, length: int, layers: int | None) -> Student:
    """A model with random weights, the same in every process."""
    config = shape(SHAPE) if device.type == "cuda" or layers else TINY
    config.num_hidden_layers = layers or config.num_hidden_layers
    config.vocab_size, config.max_position_embeddings = VOCABULARY, length
    model = random_model(config, 0, device)
    return Student(model, swap(model, PLAN, torch.bfloat16), torch.bfloat16)


def run(group: Group, given: argparse.Namespace, work: Path) -> Record | None:
    """Trains; losses, speed, and what was gathered, told by the first process."""
    train = load_file(given.tokens)["train"].int().long()
    if group.first:
        write_tokens(work / "tokens", [train], "text")
    group.barrier()
    student = student_of(group.device, given.length, given.layers)
    layers = [p for layer in student.layers() for p in layer.parameters()]
    bf16 = 2 * sum(p.numel() for p in layers) // group.world_size
    group.shard(student, keep_codes=given.keep)
    compiled = group.device.type == "cuda" and not given.eager
    if compiled:
        student.compile()
    settings = TrainingSettings(
        steps=given.steps, sequences=given.sequences, accumulate=given.ranks // group.world_size,
        length=given.length, learning_rate=1e-4, warmup=10, precision="bfloat16",
    )  # fmt: skip
    gathers, lines = Gathers(), list[Line]()
    places = RunPaths(state=None, journal=work)
    sequences = Sequences(TokenFile(work / "tokens"), given.length, 0)
    loop = Loop(
        student,
        CrossEntropy(student),
        sequences,
        settings,
        places,
        Speed(flops=0, peak=None),
        group,
    )
    loop.run(lambda line, _: lines.append(line))
    if not group.first:
        return None
    late = lines[len(lines) // 2 :]
    gpu = group.device.type == "cuda"
    # each layer is gathered for the forward and, where it is not kept, for the backward pass
    passes = given.steps * settings.accumulate * (1 if given.keep else 2)
    metrics = {
        **{f"loss_{at:03}": round(line["loss"], 5) for at, line in enumerate(lines)},
        "tokens_per_s": statistics.median(line["tokens_per_s"] for line in late),
        **{
            f"{name}_ms": 1e3 * statistics.median(line["phase_s"][name] for line in late)
            for name in late[-1]["phase_s"]
        },
        "peak_bytes": float(torch.cuda.max_memory_allocated()) if gpu else 0.0,
        "gathered_bytes": gathers.bytes / passes,
        "bf16_bytes": bf16,
    }
    return Record(
        kind="training on several devices",
        subject=f"{SHAPE}'s layers",
        settings={
            "devices": group.world_size,
            "layers": len(student.layers()),
            "tokens": given.sequences * given.length * given.ranks,
            "steps": given.steps,
            "compiled": compiled,
            "keep_codes": given.keep,
        },
        metrics={name: value for name, value in metrics.items() if value},
        environment=Environment.here(torch.cuda.get_device_name() if gpu else None),
    )


def main() -> None:
    """Trains on the devices that there are processes for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--ranks", type=int, default=2, help="devices that are compared with one")
    parser.add_argument("--sequences", type=int, default=8, help="of a microbatch on a device")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--layers", type=int, help="of the real size, on a CPU, too")
    parser.add_argument("--eager", action="store_true", help="layers are not compiled")
    parser.add_argument("--keep", action="store_true", help="codes stay for the backward pass")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="a directory all processes share")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with open_group(None) as group, tempfile.TemporaryDirectory() as own:
        work = given.work or Path(own)
        assert given.work or group.world_size == 1, "several processes need --work"
        work.mkdir(parents=True, exist_ok=True)
        record = run(group, given, work)
        if record is not None:
            append(given.out, [record])
            print(record.settings, {k: round(v, 4) for k, v in record.metrics.items()}, flush=True)


if __name__ == "__main__":
    main()
