"""Ternary training of a model with Llama-3.2-1B's layers on one GPU and on several, by FSDP2.

    python benchmarks/training/two_gpus.py TOKENS.safetensors
    torchrun --nproc-per-node 2 benchmarks/training/two_gpus.py TOKENS.safetensors

Both see the same sequences in each step: one device takes them in as many microbatches as there
would be devices. So the losses must be alike, and tokens a second compare directly. TOKENS holds
token ids as "train". What goes into each all-gather is counted where torch hands it to the backend.
Prints one JSON object.
"""

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tercet.compress.plan import Plan
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import swap
from tercet.compress.training.cross_entropy import CrossEntropy
from tercet.compress.training.group import Group, open_group
from tercet.compress.training.journal import Line
from tercet.compress.training.loop import Loop, Places, Speed
from tercet.compress.training.sequences import Sequences
from tercet.compress.training.settings import TrainingSettings
from tercet.compress.training.token_file import TokenFile, write_tokens

SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
VOCABULARY = 49152
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


def student_of(device: torch.device, length: int, vocabulary: int, layers: int | None) -> Student:
    """A model with random weights, the same in every process."""
    torch.manual_seed(0)
    shape = SHAPE if device.type == "cuda" or layers else TINY
    shape = {**shape, "num_hidden_layers": layers or shape["num_hidden_layers"]}
    config = LlamaConfig(
        max_position_embeddings=length, vocab_size=vocabulary, tie_word_embeddings=True, **shape
    )
    with torch.device(device):
        model = LlamaForCausalLM(config).train()
    return Student(model, swap(model, PLAN, torch.bfloat16), torch.bfloat16)


def run(group: Group, given: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Trains; losses, speed, and what was gathered."""
    train = load_file(given.tokens)["train"].int().long()
    if group.first:
        write_tokens(work / "tokens", [train], "text")
    group.wait()
    student = student_of(group.device, given.length, VOCABULARY, given.layers)
    layers = [p for layer in student.layers() for p in layer.parameters()]
    bf16 = 2 * sum(p.numel() for p in layers) // group.ranks
    group.share(student)
    settings = TrainingSettings(
        steps=given.steps, sequences=given.sequences, accumulate=given.ranks // group.ranks,
        length=given.length, learning_rate=3e-4, warmup=4, precision="bfloat16",
    )  # fmt: skip
    gathers, lines = Gathers(), list[Line]()
    places = Places(state=work / "state", journal=work)
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
    memory = torch.cuda.max_memory_allocated() if group.device.type == "cuda" else 0
    late = lines[len(lines) // 2 :]
    name = torch.cuda.get_device_name() if group.device.type == "cuda" else "cpu"
    # each layer is gathered for the forward and again for the backward pass
    rounds = given.steps * settings.accumulate * 2
    return {
        "device": name,
        "devices": group.ranks,
        "parameters": sum(p.numel() for p in student.parameters()),
        "tokens_a_step": given.sequences * given.length * given.ranks,
        "losses": [round(line["loss"], 5) for line in lines],
        "tokens_per_s": round(sum(line["tokens_per_s"] for line in late) / max(1, len(late))),
        "phase_s": {k: round(v, 4) for k, v in late[-1]["phase_s"].items()} if late else {},
        "memory_bytes": memory,
        "gathers": gathers.calls,
        "gathered_bytes_a_pass": gathers.bytes / rounds,
        "bf16_bytes_a_pass": bf16,
        "bf16_over_gathered": round(bf16 * rounds / gathers.bytes, 3) if gathers.bytes else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--ranks", type=int, default=2, help="devices that are compared with one")
    parser.add_argument("--sequences", type=int, default=4, help="of a microbatch on a device")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--layers", type=int, help="of the real size, on a CPU, too")
    parser.add_argument("--work", type=Path, help="a directory all processes share")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with open_group(None) as group, tempfile.TemporaryDirectory() as own:
        work = given.work or Path(own)
        assert given.work or group.ranks == 1, "several processes need --work"
        work.mkdir(parents=True, exist_ok=True)
        report = run(group, given, work)
        if group.first:
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
