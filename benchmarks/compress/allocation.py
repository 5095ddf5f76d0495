"""Allocated formats against one format for all, at the same bytes, on a real model.

python benchmarks/compress/allocation.py MODEL TRAIN TEST [--bits 2.6,3.0,3.5] [--rounds 1]
    [--device cuda] [--folder DIR] [--out FILE]

MODEL is a local folder; TRAIN is the text that calibrates, that sensitivity is measured on and by
which plans are selected; TEST is scored only. Embedding and head have 8 bits in every plan.

1. Sensitivity with the other modules uncompressed.
2. Uniform plans: each measured format, and others with groups of other sizes that fill a budget
   better.
3. For each budget the allocated plan, its prediction, and what it gives, which corrects the
   predictions after it, as `tercet allocate --verify` has it; then, in each round, sensitivity in
   the context of that plan, and allocation again. Uniform plans would correct them worse: their
   divergence is a smaller share of their modules' sum.

A record a plan. `gap_share` of an allocated plan is the share of the perplexity gap to the teacher
that it closes, of the best uniform plan that is not larger.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.sources.open import open_source
from tercet.compress.allocate.costs import find_costs, rank_correlation
from tercet.compress.allocate.measure import Scope, measure_sensitivity
from tercet.compress.allocate.rows import Rows, Windows, read_rows
from tercet.compress.allocate.sensitivity_file import Observed, Sensitivity, add_observed, load
from tercet.compress.allocate.solve import Allocation, Budget, solve
from tercet.compress.allocate.write_plan import allocation_plan
from tercet.compress.pipeline import compress
from tercet.compress.plan import Plan, load_plan, set_calibration
from tercet.compress.skeleton import Skeleton
from tercet.evaluate.compare import Logits, Quality, compare
from tercet.evaluate.size import measure_size
from tercet.evaluate.text import windows as cut_windows
from tercet.models.device import resolve_device
from tercet.records import Environment, Record, append
from tercet.workflows.teacher import teacher

FORMATS = ("ternary-g64", "int2-g64-asym", "int3-g64", "nonary-g64", "int4-g64", "int8-g64")
# bits per weight that the measured formats leave out
FILLERS = (
    "int2-g32-asym", "ternary-g16", "int3-channel", "int3-g128", "int3-g32", "nonary-channel",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What one plan gave."""

    name: str
    bits: float
    size_bytes: int
    windows: Quality
    held_out: Quality
    test: Quality


class Bench:
    """A model, its texts, and where records go."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.device = resolve_device(options.device)
        self.source = open_source(options.model)
        self.base = set_calibration(
            load_plan("int4"), sequences=options.sequences, length=options.length
        )
        self.began = time.perf_counter()
        tokenizer = folder / "tokenizer"
        tokenizer.mkdir(parents=True, exist_ok=True)
        self.source.save_companions(tokenizer)
        self.wanted = Windows(count=options.windows, length=options.window_length)
        self.rows: Rows = read_rows(options.train, tokenizer, self.base.calibration, self.wanted)
        self.test: Tensor = cut_windows(
            options.test, tokenizer / "tokenizer.json", 1024, options.test_windows
        )
        # dequantized in transformers: what is compared is formats, not kernels
        self.student = Skeleton(self.source, self.device)
        on_gpu = self.device.type == "cuda"
        self.environment = Environment.here(torch.cuda.get_device_name() if on_gpu else None)

    def say(self, text: str) -> None:
        """A line with the seconds gone."""
        print(f"[{time.perf_counter() - self.began:5.0f} s] {text}", flush=True)

    def uniform(self, form: str) -> Plan:
        """One format for all linears of the layers."""
        rules = tuple(
            rule.model_copy(update={"format": form}) if rule.match == "*.layer*.*" else rule
            for rule in self.base.rules
        )
        return self.base.model_copy(update={"name": form, "rules": rules})

    def sensitivity(self, name: str, context: Plan | None = None) -> Path:
        """Measures, or goes on with what the folder holds; returns the file."""
        path = self.folder / f"{name}.jsonl"
        found = measure_sensitivity(
            self.source,
            Scope(formats=FORMATS, in_context=context is not None),
            path,
            plan=context or self.base,
            calibration=self.options.train,
            windows=self.wanted,
            device=self.device,
            resume=True,
        )
        said = rank_correlation(found) if context is None else None
        spearman = "" if said is None else f", Spearman {said[0]:.3f}"
        self.say(f"sensitivity {name}: {len(found.lines)} measurements{spearman}")
        return path

    def run(self, plan: Plan, reference: Logits) -> Result:
        """Compresses and scores."""
        name = plan.name.replace(" ", "-")
        out = self.folder / f"packed-{name}"
        compress(
            self.source,
            plan,
            out,
            calibration=self.rows.calibration,
            device=self.device,
            overwrite=True,
        )
        packed = open_packed(out)
        for module in packed.modules:
            weight = packed.read_packed(module).dequantize().to(self.device)
            self.student.put(f"{module}.weight", weight)
        parts = (self.rows.windows, self.rows.held_out, self.test)
        found = [compare(ids, {"s": self._logits}, reference)["s"] for ids in parts]
        size = measure_size(packed)
        result = Result(plan.name, size.body_bits_per_weight, size.disk_bytes, *found)
        self.say(
            f"{plan.name:28} {result.bits:.3f} bits, {result.size_bytes:,} bytes, perplexity "
            f"{result.test.perplexity:.2f}, KL {result.test.kl_nats:.4f} test, "
            f"{result.windows.kl_nats:.4f} windows, {result.held_out.kl_nats:.4f} held out"
        )
        return result

    def _logits(self, ids: Tensor) -> Tensor:
        model: Any = self.student.model
        return model(input_ids=ids.to(self.device), use_cache=False).logits

    def record(self, result: Result, bits: float | None, more: dict[str, float]) -> None:
        """Appends a plan's record."""
        if self.options.out is None:
            return
        kl = {
            "windows_kl_nats": result.windows.kl_nats or 0.0,
            "held_out_kl_nats": result.held_out.kl_nats or 0.0,
        }
        size = {"bits_per_weight": result.bits, "checkpoint_bytes": float(result.size_bytes)}
        settings = {
            "plan": result.name,
            "budget_bits": bits,
            "formats": ",".join(FORMATS),
            "windows": self.wanted.count,
            "window_tokens": self.wanted.length,
            "train": self.options.train.name,
            "test": self.options.test.name,
            "test_windows": len(self.test),
            "device": self.device.type,
        }
        metrics = {**result.test.metrics(), **kl, **size, **more}
        append(
            self.options.out,
            [
                Record(
                    kind="allocation",
                    subject=self.source.reference,
                    settings=settings,
                    metrics=metrics,
                    environment=self.environment,
                )
            ],
        )


def allocate(bench: Bench, path: Path, bits: float, name: str) -> tuple[Plan, Allocation]:
    """The plan of least predicted divergence at that budget."""
    sensitivity = load(path)
    found = solve(sensitivity, Budget(bits=bits))
    counts = ", ".join(f"{n} {form}" for form, n in found.counts(sensitivity).items())
    bench.say(f"{name}: predicted KL {found.predicted_kl_nats:.4f}; {counts}")
    return allocation_plan(sensitivity.identity, found.formats, name), found


def compare_budget(
    bench: Bench, path: Path, bits: float, uniforms: list[Result], reference: Logits, own: float
) -> None:
    """Allocates, carries out, and refines in rounds."""
    fitting = [one for one in uniforms if one.bits <= bits + 5e-3]
    best = min(fitting, key=lambda one: one.test.perplexity, default=None)
    context: Plan | None = None
    for turn in range(bench.options.rounds + 1):
        if context is not None:
            path = bench.sensitivity(f"sensitivity-{bits:g}-{turn}", context)
        context, found = allocate(bench, path, bits, f"allocated {bits:g} round {turn}")
        result = bench.run(context, reference)
        kl = result.windows.kl_nats or 0.0
        add_observed(path, Observed(sum_nats=found.sum_nats, observed_kl_nats=kl))
        more = {
            "predicted_kl_nats": found.predicted_kl_nats,
            "sum_nats": found.sum_nats,
            "predicted_bytes": float(found.size.checkpoint_bytes),
        }
        off = found.predicted_kl_nats / (kl or 1.0) - 1
        held = found.predicted_kl_nats / (result.held_out.kl_nats or 1.0) - 1
        text = f"predicted {off:+.1%} of the windows' KL, {held:+.1%} of the held-out"
        if best is not None:
            share = 1 - (result.test.perplexity - own) / (best.test.perplexity - own)
            more["gap_share"] = share
            text += f"; closes {share:.1%} of the gap of {best.name} ({best.bits:.3f} bits)"
        bench.say(text)
        bench.record(result, bits, more)


def run_uniforms(bench: Bench, path: Path, reference: Logits) -> list[Result]:
    """All that a budget may be compared with."""
    sensitivity: Sensitivity = load(path)
    costs, modules = find_costs(sensitivity), sensitivity.identity.modules
    results: list[Result] = []
    for form in (*FORMATS, *FILLERS):
        # eight bits are no budget's rival, and tell nothing of predictions at 3
        if form == "int8-g64":
            continue
        result = bench.run(bench.uniform(form), reference)
        more: dict[str, float] = {}
        if form in FORMATS:
            formats = {n: form if form in m.formats else m.formats[0] for n, m in modules.items()}
            more["sum_nats"] = costs.sum_of(formats)
            bench.say(f"its modules' KL add up to {more['sum_nats']:.4f}")
        bench.record(result, None, more)
        results.append(result)
    return results


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("train", type=Path, help="a text file, .gz allowed")
    parser.add_argument("test", type=Path, help="a text file, .gz allowed")
    parser.add_argument("--bits", default="2.6,3.0,3.5", help="budgets, with commas")
    parser.add_argument("--rounds", type=int, default=1, help="of sensitivity in context")
    parser.add_argument("--sequences", type=int, default=64, help="of calibration")
    parser.add_argument("--length", type=int, default=512, help="tokens of each")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--window-length", type=int, default=512)
    parser.add_argument("--test-windows", type=int, default=40, help="of 1024 tokens")
    parser.add_argument("--device", default=None)
    parser.add_argument("--folder", type=Path, help="keep files here, and go on with them")
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")
    options = parser.parse_args(arguments)
    budgets = [float(word) for word in options.bits.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(options, options.folder or Path(temporary))
        path = bench.sensitivity("sensitivity")
        children = [name for name, _ in bench.student.model.named_children()]
        with teacher(bench.source, bench.device) as reference, bench.student.materialize(children):
            own = compare(bench.test, {}, reference)["teacher"].perplexity
            bench.say(f"teacher: perplexity {own:.2f}")
            uniforms = run_uniforms(bench, path, reference)
            for bits in budgets:
                compare_budget(bench, path, bits, uniforms, reference, own)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
