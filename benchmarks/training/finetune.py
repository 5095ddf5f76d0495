"""The whole job in a set time: layers compressed, then everything fine-tuned on text, then judged.

python benchmarks/training/finetune.py MODEL --plan PLAN --calibration TEXT --data TOKENS
    --out DIR --seconds N [--epochs E] [--windows T] [--batch B] [--learning-rate R]
    [--embedding-learning-rate R] [--evaluation TEXT] [--task-data DIR] [--subject NAME]
    [--record FILE] [--device cuda]

MODEL is a directory, a GGUF file or a fetched model's name; TOKENS a safetensors file with
input_ids. A short run says how long a step takes; then the teacher writes as many tokens beside
TOKENS as all epochs have time for within N seconds from the start. Perplexity and divergence are
those of `tercet eval` on the first 40 windows of 1024 tokens, tasks those of
`tercet eval --tasks arc_easy,piqa,lambada,hellaswag --limit 3000`.
"""

import argparse
import shutil
import time
from math import prod
from pathlib import Path

from safetensors import safe_open

from tercet.compress.finetune.settings import FineTuning
from tercet.compress.pipeline import compress
from tercet.models.device import resolve_device
from tercet.records import Outcome, Record, append
from tercet.workflows.evaluation import evaluate
from tercet.workflows.tasks import evaluate_tasks, read_questions
from tercet.workflows.training.finetune import FineTuned, finetune

TASKS = ("arc_easy", "piqa", "lambada", "hellaswag")
QUESTIONS, WINDOWS = 3000, 40
# of the short run; the first of its two epochs compiles and captures
PROBE_STEPS = 40
# to load, to save states and to write the checkpoint
SECONDS_ASIDE = 45
# what a teacher writes at least, tokens a second: a small model in texts of 512 on an H100
TEACHER_SPEED = 200_000
MEASUREMENTS = 4


class Marks:
    """When each measurement was over."""

    def __init__(self) -> None:
        self.start, self.times = time.perf_counter(), list[float]()

    def __call__(self, done: int, count: int, what: str) -> None:
        self.times.append(time.perf_counter())
        print(f"[{self.passed:7.1f}] {done} of {count}: {what}", flush=True)

    @property
    def passed(self) -> float:
        """Seconds from the start."""
        return time.perf_counter() - self.start


def count_tokens(path: Path) -> int:
    """Of a file with input_ids."""
    with safe_open(path, "pt") as file:
        return prod(file.get_slice("input_ids").get_shape())


def settings_of(arguments: argparse.Namespace, epochs: int, measurements: int) -> FineTuning:
    """How everything is trained."""
    return FineTuning(
        epochs=epochs,
        batch=arguments.batch,
        learning_rate=arguments.learning_rate,
        embedding_learning_rate=arguments.embedding_learning_rate,
        measurements=measurements,
        held_out=0.01,
        compile=arguments.device != "cpu",
    )


def tokens_a_second(arguments: argparse.Namespace, layers: Path, marks: Marks) -> float:
    """Of training, by a short run."""
    out, count = layers.with_suffix(".probe"), PROBE_STEPS * arguments.batch
    train(arguments, layers, out, [arguments.data], settings_of(arguments, 2, 1), marks, count)
    shutil.rmtree(out)
    # the marks: begin reading, begin training, an epoch, two epochs, begin writing
    last = marks.times[-2] - marks.times[-3]
    return count * arguments.windows / last


def train(
    arguments: argparse.Namespace,
    layers: Path,
    out: Path,
    data: list[str | Path],
    settings: FineTuning,
    marks: Marks,
    sequences: int | None = None,
) -> FineTuned:
    """One fine-tuning."""
    return finetune(
        layers,
        out,
        teacher=arguments.model,
        data=data,
        sequences=sequences,
        length=arguments.windows,
        settings=settings,
        device=arguments.device,
        overwrite=True,
        progress=marks,
    )


def affordable(arguments: argparse.Namespace, speed: float, tokens: int, seconds: float) -> int:
    """Tokens that the teacher writes, so that all epochs over those and `tokens` take `seconds`."""
    each = arguments.epochs / speed
    return int((seconds - SECONDS_ASIDE - tokens * each) / (each + 1 / TEACHER_SPEED))


def judge(arguments: argparse.Namespace, out: Path) -> tuple[dict[str, float], Record]:
    """Quality of the checkpoint, and the record of its perplexity."""
    *_, found = evaluate(
        out,
        teacher=arguments.model,
        text=arguments.evaluation,
        count=WINDOWS,
        device=arguments.device,
    )
    metrics = dict(found.metrics)
    if arguments.task_data is not None:
        questions = read_questions(TASKS, data=arguments.task_data, limit=QUESTIONS)
        for record in evaluate_tasks(out, questions, device=arguments.device):
            task = record.settings["task"]
            metrics[f"{task}_score"] = record.metrics["score"]
            metrics[f"{task}_questions"] = record.metrics["questions"]
    return metrics, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--plan", required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--windows", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.015)
    parser.add_argument("--embedding-learning-rate", type=float, default=0.003)
    parser.add_argument("--evaluation", type=Path)
    parser.add_argument("--task-data", type=Path)
    parser.add_argument("--subject")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    resolve_device(arguments.device)
    marks, layers = Marks(), arguments.out.with_suffix(".layers")
    compress(
        arguments.model,
        arguments.plan,
        layers,
        calibration=arguments.calibration,
        device=arguments.device,
        overwrite=True,
    )
    layers_seconds = marks.passed
    print(f"[{layers_seconds:7.1f}] layers", flush=True)
    speed, tokens = tokens_a_second(arguments, layers, marks), count_tokens(arguments.data)
    by_teacher = affordable(arguments, speed, tokens, arguments.seconds - marks.passed)
    print(f"{speed:,.0f} tokens/s; {tokens:,} tokens, {by_teacher:,} by the teacher", flush=True)
    if by_teacher <= 0:
        raise SystemExit("no time is left for text by the teacher: give more --seconds")
    settings = settings_of(arguments, arguments.epochs, MEASUREMENTS)
    data = [arguments.data, f"teacher:{by_teacher}"]
    made = train(arguments, layers, arguments.out, data, settings, marks)
    seconds = marks.passed
    metrics, found = judge(arguments, arguments.out)
    record = Record(
        kind="finetuning",
        subject=arguments.subject or Path(arguments.plan).stem,
        settings={
            "epochs": arguments.epochs,
            "batch": arguments.batch,
            "length": arguments.windows,
            "learning_rate": arguments.learning_rate,
            "embedding_learning_rate": arguments.embedding_learning_rate,
            "text_tokens": tokens + by_teacher,
            "by_teacher_tokens": by_teacher,
        },
        metrics={
            **metrics,
            "held_out_kl_before": made.before,
            "held_out_kl_after": made.after,
            "seconds": seconds,
            "layers_seconds": layers_seconds,
            "tokens_per_s": speed,
            "device_peak_bytes": made.device_peak_bytes,
        },
        outcome=Outcome.OK,
        environment=found.environment,
    )
    print(record.model_dump_json(indent=1), flush=True)
    if arguments.record is not None:
        append(arguments.record, [record])


if __name__ == "__main__":
    main()
