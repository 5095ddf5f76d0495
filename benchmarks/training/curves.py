"""Loss curves of ternary training with products of 8-bit codes, and of the same in bfloat16.

    python benchmarks/training/curves.py codes|values TOKENS.safetensors OUT.jsonl

A model of SmolLM2-135M's shape, from random weights, three seeds (of weights and of the order of
text), 4096 tokens a step. "codes" multiplies int8 codes forward and for the input gradient, the
weight gradient in bfloat16; "values" does what fake quantization does: the same weights and inputs,
rounded to the same levels, in bfloat16 products. A step is one CUDA graph. One JSON line a
seed; seeds that OUT has are not run again.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tercet.compress.plan import Plan
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import finish_gradients, refresh, swap
from tercet.compress.qat.weight import QuantizedWeight
from tercet.compress.training.cross_entropy import next_token_loss

SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
RULE = {
    "match": "*.layers.*",
    "format": "ternary-channel",
    "algorithm": "qat",
    "options": {"method": "absmean", "activation": "int8_token"},
}
PLAN = Plan.model_validate({"name": "ternary", "rules": [RULE]})
WARMUP, RATE = 30, 1e-3


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


def student_of(mode: str, seed: int, device: torch.device) -> Student:
    """With random weights; equal seeds give equal ones."""
    torch.manual_seed(seed)
    shape = SHAPE if device.type == "cuda" else TINY
    config = LlamaConfig(vocab_size=49152, tie_word_embeddings=True, **shape)
    with torch.device(device):
        model = LlamaForCausalLM(config).train()
    # while a graph is recorded, transformers writes causal masks out, and SDPA is slow with one
    AttentionInterface.register("causal", ALL_ATTENTION_FUNCTIONS["sdpa"])
    model.config._attn_implementation = "causal"
    student = Student(model, swap(model, PLAN, torch.bfloat16), torch.bfloat16)
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
        student, ids = self.student, self.ids
        refresh(student.quantized)
        with torch.autocast(ids.device.type, torch.bfloat16, cache_enabled=False):
            loss = next_token_loss(student.hidden(ids), student.head(), ids)
        loss.backward()
        finish_gradients(student.quantized)
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.copy_(loss.detach())

    def __call__(self) -> None:
        if self.graph is None:
            self._once()
        else:
            self.graph.replay()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("codes", "values"))
    parser.add_argument("tokens", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = load_file(given.tokens)["train"].int().long()
    windows = text[: len(text) // given.length * given.length].view(-1, given.length).to(device)
    done = given.out.read_text().splitlines() if given.out.exists() else []
    seeds = set(range(given.seeds)) - {json.loads(line)["seed"] for line in done}
    for seed in sorted(seeds):
        ids = torch.zeros(given.sequences, given.length, dtype=torch.int64, device=device)
        order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(seed))
        step = Step(student_of(given.mode, seed, device), ids)
        losses = torch.zeros(given.steps, device=device)
        start = time.perf_counter()
        for number in range(given.steps):
            some = order[torch.arange(given.sequences) + number * given.sequences]
            ids.copy_(windows[some.to(device)])
            step.rate.fill_(rate_at(number, given.steps))
            step()
            losses[number] = step.loss
        found = losses.tolist()
        line = {
            "mode": given.mode,
            "seed": seed,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "tokens_a_step": ids.numel(),
            "seconds": round(time.perf_counter() - start, 2),
            "losses": [round(loss, 4) for loss in found],
        }
        with given.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        last = found[-30:]
        print(given.mode, seed, f"{line['seconds']} s", "last 30:", round(sum(last) / len(last), 4),
              "every 50th:", [round(loss, 3) for loss in found[::50]],
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
