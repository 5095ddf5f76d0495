"""One training step of a model with Llama-3-8B's layers: bfloat16, and ternary with 8-bit products.

    python benchmarks/training/step.py bf16|qat|qat8 [--layers 8] [--wait-for DIRECTORY --of 3]

Weights, gradients and AdamW's moments are bfloat16 in all of them; layers run under torch.compile.
`qat` multiplies int8 codes forward and for the input gradient, `qat8` for the weight gradient, too;
quantization of weights and activations is included. Prints one JSON object. With --wait-for,
processes compile side by side and are timed one after the other.
"""

import argparse
import fcntl
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tercet.compress.plan import Plan
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import finish_gradients, refresh, swap
from tercet.compress.training.cross_entropy import next_token_loss

SHAPE = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 128,
}
STEPS = 10


def plan(what: str) -> Plan:
    """Ternary in every layer."""
    options = {
        "method": "absmean",
        "activation": "int8_token",
        "weight_gradient": "int8" if what == "qat8" else "float",
    }
    rule = {"match": "*.layers.*", "format": "ternary-channel-float32", "algorithm": "qat"}
    return Plan.model_validate({"name": what, "rules": [{**rule, "options": options}]})


class Step:
    """A model, its optimizer and one batch; times of each part of a step."""

    def __init__(self, what: str, layers: int, sequences: int, length: int, device: str) -> None:
        torch.manual_seed(0)
        shape = SHAPE if device == "cuda" else TINY
        config = LlamaConfig(
            num_hidden_layers=layers,
            max_position_embeddings=length,
            tie_word_embeddings=False,
            **shape,
        )
        with torch.device(device):
            model = LlamaForCausalLM(config).bfloat16().train()
        quantized = swap(model, plan(what), torch.bfloat16) if what != "bf16" else {}
        self.student = Student(model, quantized, torch.bfloat16)
        self.student.compile()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        self.ids = torch.randint(shape["vocab_size"], (sequences, length), device=device)
        self.device, self.number = device, 0
        self.events: dict[str, list[Any]] = {}

    def part(self, name: str, run: Callable[[], Any]) -> Any:
        """Runs, timed on the stream."""
        if self.device == "cpu":
            return run()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        result = run()
        last.record()
        self.events.setdefault(name, []).append((first, last))
        return result

    def __call__(self) -> torch.Tensor:
        """One step; its loss."""
        student, ids = self.student, self.ids
        if student.quantized:
            self.part("codes", lambda: refresh(student.quantized, step=self.number))
        loss = self.part(
            "forward", lambda: next_token_loss(student.hidden(ids), student.head(), ids)
        )
        self.part("backward", loss.backward)
        finish_gradients(student.quantized)
        self.part("optimizer", self.optimizer.step)
        self.optimizer.zero_grad()
        self.number += 1
        return loss.detach()

    def medians(self) -> dict[str, float]:
        """Milliseconds by part."""
        return {
            name: round(statistics.median(a.elapsed_time(b) for a, b in pairs), 2)
            for name, pairs in self.events.items()
        }


def wait_for(directory: Path, name: str, count: int) -> None:
    """Until so many processes have compiled, 60 seconds at most."""
    (directory / f"{name}.ready").touch()
    start = time.monotonic()
    while len(list(directory.glob("*.ready"))) < count and time.monotonic() - start < 60:
        time.sleep(0.2)


def main() -> None:
    """Measures one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("bf16", "qat", "qat8"))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--wait-for", type=Path)
    parser.add_argument("--of", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    step = Step(given.what, given.layers, given.sequences, given.length, device)
    first = float(step())
    step()
    if given.wait_for is not None:
        wait_for(given.wait_for, given.what, given.of)
        lock = (given.wait_for / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    for _ in range(3 if device == "cuda" else 0):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    step.events.clear()
    start = time.perf_counter()
    losses = [step() for _ in range(STEPS if device == "cuda" else 1)]
    last = float(losses[-1])
    seconds = (time.perf_counter() - start) / len(losses)
    report = {
        "what": given.what,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "layers": given.layers,
        "tokens": step.ids.numel(),
        "tokens_per_s": round(step.ids.numel() / seconds),
        "step_ms": round(seconds * 1e3, 2),
        "parts_ms": step.medians(),
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "first_loss": first,
        "last_loss": last,
        "torch": torch.__version__,
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
