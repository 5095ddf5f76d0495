"""One training step of a model of the catalog: bfloat16, and ternary with 8-bit products.

    python benchmarks/training/step.py bf16|qat|qat8 [--shape llama-3-8b] [--layers N]
        [--sequences 2] [--keep-inputs] [--eager plain|fused] [--out FILE] [--meet DIRECTORY]

Weights, gradients and AdamW's moments are bfloat16 in all of them; layers run under torch.compile.
`qat` multiplies int8 codes forward and for the input gradient, `qat8` for the weight gradient, too;
quantization of weights and activations is included. A mode whose loss does not fall has no time.

With --meet, one process of each mode in the same new directory: they compile side by side and are
then timed in turns, a round at a time, each after steps of its own, so that each meets the power
limit that is its own. Where one GPU does not hold three models they run one after the other, each
after --compile-only, which fills the caches: one layer is enough, as all are one graph.
"""

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from llama import TINY, random_model, shape

from tercet.compress.plan import Plan
from tercet.compress.qat.fused_modules import fuse_modules
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import finish_gradients, refresh, swap
from tercet.compress.training.cross_entropy import next_token_loss
from tercet.harness.timing.device_state import DeviceState, device_state, state_metrics
from tercet.models import catalog
from tercet.records import Environment, Outcome, Record, append

MODES = ("bf16", "qat", "qat8")
WARM, STEPS, ROUNDS = 3, 8, 3
# for the others to compile, or to be timed
PATIENCE_SECONDS = 120


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

    def __init__(self, what: str, given: argparse.Namespace, device: str) -> None:
        config = shape(given.shape) if device == "cuda" else TINY
        config.num_hidden_layers = given.layers or config.num_hidden_layers
        length = given.length if device == "cuda" else 32
        config.max_position_embeddings = length
        model = random_model(config, 0, device, torch.bfloat16)
        if given.eager == "fused":
            fuse_modules(model)
        quantized = swap(model, plan(what), torch.bfloat16) if what != "bf16" else {}
        self.student = Student(model, quantized, torch.bfloat16)
        if given.checkpoint:
            self.student.checkpoint_activations()
        if given.eager is None:
            self.student.compile(keep_inputs=given.keep_inputs)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        self.ids = torch.randint(config.vocab_size, (given.sequences, length), device=device)
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
            # as in every step whose changed codes no line of a journal tells
            self.part("codes", lambda: refresh(student.quantized, step=self.number, counting=False))
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


def meet(directory: Path | None, name: str, count: int) -> None:
    """Waits until so many processes came here under names that begin alike; not for ever."""
    if directory is None:
        return
    (directory / name).touch()
    start = time.monotonic()
    while len(list(directory.glob(f"{name.split('.')[0]}.*"))) < count:
        if time.monotonic() - start > PATIENCE_SECONDS:
            raise TimeoutError(f"{name}: the other modes did not come to {directory}")
        time.sleep(0.01)


def timed(step: Step, directory: Path | None, what: str) -> tuple[list[float], DeviceState | None]:
    """Milliseconds a step of each round, and the GPU's state in the last."""
    taken, state = list[float](), None
    for at in range(ROUNDS):
        for other in MODES if directory is not None else (what,):
            if other == what:
                for _ in range(WARM):
                    step()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(STEPS):
                    step()
                end.record()
                # while the GPU is still busy: steps are asked for faster than they are done
                state = device_state("cuda")
                end.synchronize()
                taken.append(start.elapsed_time(end) / STEPS)
            meet(directory, f"round{at}{other}.{what}", len(MODES))
    return taken, state


def measured(given: argparse.Namespace, step: Step) -> Record:
    """A record of one mode on the GPU."""
    first = float(step())
    step()
    meet(given.meet, f"compiled.{given.what}", len(MODES))
    torch.cuda.reset_peak_memory_stats()
    step.events.clear()
    taken, state = timed(step, given.meet, given.what)
    last = float(step())
    wrong = None if math.isfinite(last) and last < first else f"loss {first:.4f} became {last:.4f}"
    tokens, middle = step.ids.numel(), statistics.median(taken)
    metrics = {
        "tokens_per_s": tokens / middle * 1e3,
        "step_ms": middle,
        "step_ms_low": min(taken),
        "step_ms_high": max(taken),
        **{f"{name}_ms": value for name, value in step.medians().items()},
        "peak_bytes": float(torch.cuda.max_memory_allocated()),
        "first_loss": first,
        "last_loss": last,
        **state_metrics(None, state),
    }
    return Record(
        kind="whole training step",
        subject=f"{given.shape}'s {catalog.read(given.shape).num_hidden_layers} layers",
        settings={
            "mode": f"{given.what}, fused modules" if given.eager == "fused" else given.what,
            "layers": len(step.student.layers()),
            "tokens": tokens,
            "checkpoint": given.checkpoint,
            "keep_inputs": given.keep_inputs,
            **({"compiled": False} if given.eager else {}),
        },
        metrics={} if wrong else metrics,
        outcome=Outcome.WRONG if wrong else Outcome.OK,
        reason=wrong,
        environment=Environment.here(torch.cuda.get_device_name()),
    )


def main() -> None:
    """Measures one of them; without a GPU, two steps of a tiny model, to see that it runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=MODES)
    parser.add_argument("--shape", default="llama-3-8b", help="a dense model of the catalog")
    parser.add_argument("--layers", type=int, help="only so many of its layers")
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--checkpoint", action="store_true", help="layers are computed again")
    parser.add_argument("--keep-inputs", action="store_true", help="no codes are made again")
    parser.add_argument(
        "--eager",
        choices=("plain", "fused"),
        help="no torch.compile, with the modules of transformers or with fused ones",
    )
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--meet", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    step = Step(given.what, given, "cuda" if torch.cuda.is_available() else "cpu")
    if given.compile_only or not torch.cuda.is_available():
        print(f"{given.what}: nothing is timed, losses {float(step()):.3f}, {float(step()):.3f}")
        return
    record = measured(given, step)
    if given.out is not None:
        append(given.out, [record])
    numbers = " ".join(f"{name} {value:.5g}" for name, value in record.metrics.items())
    print(f"{given.what}: {numbers or record.reason}", flush=True)


if __name__ == "__main__":
    main()
