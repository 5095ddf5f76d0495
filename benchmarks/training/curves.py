"""Loss curves of ternary training with products of 8-bit codes, and of the same in bfloat16.

    python benchmarks/training/curves.py codes|codes8|values TOKENS.safetensors --out FILE

A model of SmolLM2-135M's shape, from random weights, three seeds (of weights and of the order of
text), 4096 tokens a step. "codes" multiplies int8 codes forward and for the input gradient, the
weight gradient in bfloat16; "codes8" that, too, in int8, rounded at random. "values" does what fake
quantization does: the same weights and inputs, rounded to the same levels, in bfloat16 products.

A step is one CUDA graph, compiled and recorded once: each seed's weights are copied into it. After
the last step each seed is evaluated on the same text, which no step saw. One record a seed; seeds
that FILE has are not run again.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from llama import TINY, random_model, shape
from safetensors.torch import load_file
from torch import Tensor
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tercet.compress.plan import Plan
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import finish_gradients, refresh, swap
from tercet.compress.qat.weight import QuantizedWeight
from tercet.compress.training.cross_entropy import next_token_loss
from tercet.records import Environment, Outcome, Record, append, load

MODES = ("codes", "codes8", "values")
WARMUP, RATE = 50, 6e-4
LAST = 30


def plan(mode: str) -> Plan:
    """Ternary in every layer."""
    options = {
        "method": "absmean",
        "activation": "int8_token",
        "weight_gradient": "int8" if mode == "codes8" else "float",
    }
    rule = {"match": "*.layers.*", "format": "ternary-channel", "algorithm": "qat"}
    return Plan.model_validate({"name": mode, "rules": [{**rule, "options": options}]})


def rate_at(step: int, steps: int) -> float:
    """Linear rise, then half a cosine to a tenth."""
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    wave = 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))
    return RATE * (0.1 + 0.9 * wave)


def in_values(module: QuantizedWeight) -> None:
    """Has a module multiply values, not codes, from its next refresh on."""

    def set_share(share: float) -> None:
        module.share, module.whole, module.products_of_codes = share, share == 1.0, False

    module._set_share = set_share


def student_of(mode: str, length: int, device: torch.device) -> Student:
    """With random weights."""
    config = shape("smollm2-135m") if device.type == "cuda" else TINY
    config.vocab_size = 49152
    config.max_position_embeddings = length
    model = random_model(config, 0, device)
    # while a graph is recorded, transformers writes causal masks out, and SDPA is slow with one
    AttentionInterface.register("causal", ALL_ATTENTION_FUNCTIONS["sdpa"])
    model.config._attn_implementation = "causal"
    student = Student(model, swap(model, plan(mode), torch.bfloat16), torch.bfloat16)
    if device.type == "cuda":
        student.compile()
    if mode == "values":
        for module in student.quantized.values():
            in_values(module)
    return student


class Step:
    """One step, recorded where there is a GPU."""

    def __init__(self, student: Student, ids: Tensor) -> None:
        self.student, self.ids = student, ids
        self.rate = torch.zeros((), device=ids.device)
        self.optimizer = torch.optim.AdamW(
            student.parameters(), lr=self.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True,
            capturable=ids.is_cuda,
        )  # fmt: skip
        self.loss = torch.zeros((), device=ids.device)
        self.graph = torch.cuda.CUDAGraph() if ids.is_cuda else None
        if self.graph is not None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._once()
            torch.cuda.current_stream().wait_stream(side)
            try:
                with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                    self._once()
            except RuntimeError as error:  # a step that cannot be recorded still trains
                print("not recorded:", str(error)[:300], flush=True)
                torch.cuda.synchronize()
                self.optimizer.zero_grad(set_to_none=True)
                self.graph = None

    def _once(self) -> None:
        student = self.student
        refresh(student.quantized, counting=False)
        for module in student.quantized.values():
            if module.seed is not None:
                # in the graph: each replay rounds by other numbers
                module.seed += torch.randint(1 << 40, (), device=self.ids.device)
        loss = self._of(self.ids)
        loss.backward()
        finish_gradients(student.quantized)
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.copy_(loss.detach())

    def _of(self, ids: Tensor) -> Tensor:
        with torch.autocast(ids.device.type, torch.bfloat16, cache_enabled=False):
            return next_token_loss(self.student.hidden(ids), self.student.head(), ids)

    def __call__(self) -> None:
        if self.graph is None:
            self._once()
        else:
            self.graph.replay()

    @torch.no_grad()
    def begin(self, seed: int) -> None:
        """That seed's random weights, in the memory that the graph reads; no moments."""
        fresh = random_model(self.student.config, seed, self.ids.device).parameters()
        for parameter, value in zip(self.student.model.parameters(), fresh, strict=True):
            parameter.copy_(value)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        torch.manual_seed(seed)

    def evaluated(self, windows: Tensor) -> float:
        """The mean loss over windows [W, T], as the mode computes it."""
        refresh(self.student.quantized, counting=False)
        # with gradients, which nobody takes: without them layers would be compiled again
        losses = [self._of(ids).detach() for ids in windows.split(len(self.ids))]
        return float(torch.stack(losses).mean())


def curve(step: Step, seed: int, train: Tensor, steps: int) -> list[float]:
    """Losses of a seed."""
    step.begin(seed)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    losses = torch.zeros(steps, device=step.ids.device)
    for number in range(steps):
        some = order[torch.arange(len(step.ids)) + number * len(step.ids)]
        step.ids.copy_(train[some.to(train.device)])
        step.rate.fill_(rate_at(number, steps))
        step()
        losses[number] = step.loss
    return losses.tolist()


def main() -> None:
    """Trains the seeds that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--held-out", type=int, default=128, help="sequences to evaluate on")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = load_file(given.tokens)["train"].int().long()
    windows = text[: len(text) // given.length * given.length].view(-1, given.length).to(device)
    # spread over the text, whose parts differ
    held = torch.zeros(len(windows), dtype=torch.bool, device=device)
    held[:: len(windows) // given.held_out] = True
    settings = {
        "mode": given.mode, "steps": given.steps, "tokens": given.sequences * given.length,
    }  # fmt: skip
    done = load(given.out) if given.out.exists() else []
    seeds = set(range(given.seeds)) - {
        record.settings["seed"] for record in done if settings.items() <= record.settings.items()
    }
    start = time.perf_counter()
    ids = torch.zeros(given.sequences, given.length, dtype=torch.int64, device=device)
    step = Step(student_of(given.mode, given.length, device), ids)
    print(given.mode, f"compiled and recorded in {time.perf_counter() - start:.1f} s", flush=True)
    for seed in sorted(seeds):
        start = time.perf_counter()
        losses = curve(step, seed, windows[~held], given.steps)
        seconds = time.perf_counter() - start
        record = Record(
            kind="loss curve",
            subject="smollm2-135m",
            settings={**settings, "seed": seed, "recorded": step.graph is not None},
            metrics={
                **{f"loss_{at:03}": round(loss, 4) for at, loss in enumerate(losses)},
                "last_loss": sum(losses[-LAST:]) / len(losses[-LAST:]),
                "held_out_loss": step.evaluated(windows[held]),
                "seconds": seconds,
            },
            outcome=Outcome.OK,
            environment=Environment.here(torch.cuda.get_device_name() if ids.is_cuda else None),
        )
        append(given.out, [record])
        metrics = record.metrics
        print(
            f"{given.mode} {seed}: {seconds:.1f} s, last {LAST}: {metrics['last_loss']:.4f}, "
            f"held out: {metrics['held_out_loss']:.4f}, every 50th:",
            [round(loss, 3) for loss in losses[::50]],
            flush=True,
        )


if __name__ == "__main__":
    main()
