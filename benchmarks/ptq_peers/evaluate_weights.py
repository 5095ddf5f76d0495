"""Quality of quantized weights against the teacher: one JSON line for each directory of weights.

python evaluate_weights.py TEACHER_DIR EVALUATION.txt --out RECORDS.jsonl [WEIGHTS_DIR ...]

Without a directory of weights the teacher itself is the student. The evaluation text is one
tokenization without special tokens, cut into non-overlapping windows of 1024. Perplexity is over
the first 40 windows (1023 scored tokens each); KL(teacher || student) in nats per token and top-1
agreement are over the same positions of the first 10.
"""

import argparse
import json
import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from calibration import read_text, token_hash, tokenize
from decoder_linears import Quantization, library_versions, load_quantized
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel

WINDOW = 1024
PERPLEXITY_WINDOWS = 40
DIVERGENCE_WINDOWS = 10


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Perplexity; KL(teacher || student) in nats per token; share of equal most likely tokens."""

    perplexity: float
    kl: float
    top1: float


def windows(tokens: Tensor) -> Tensor:
    """First `[PERPLEXITY_WINDOWS, WINDOW]` of `tokens [total]`."""
    return tokens[: PERPLEXITY_WINDOWS * WINDOW].view(PERPLEXITY_WINDOWS, WINDOW)


def log_probabilities(model: PreTrainedModel, window: Tensor) -> Tensor:
    """Float32 `[WINDOW - 1, vocabulary]`: position i predicts token i + 1 of `window [WINDOW]`."""
    logits = model(input_ids=window[None], use_cache=False).logits[0, :-1]
    return logits.float().log_softmax(dim=-1)


@torch.inference_mode()
def reference(teacher: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """The teacher's log probabilities of the first windows, 200 MB each, made once for all."""
    return [log_probabilities(teacher, window) for window in ids[:DIVERGENCE_WINDOWS]]


@torch.inference_mode()
def measure(student: PreTrainedModel, ids: Tensor, wanted: list[Tensor]) -> Quality:
    """Quality of `student` on `ids [n, WINDOW]` against the teacher's log probabilities `wanted`.

    Sums are held in float64.
    """
    loss = divergence = agreement = 0.0
    for index, window in enumerate(ids):
        predicted = log_probabilities(student, window)
        loss += F.nll_loss(predicted, window[1:], reduction="none").double().sum().item()
        if index < len(wanted):
            gap = wanted[index] - predicted
            divergence += (wanted[index].exp() * gap).double().sum().item()
            agreement += (wanted[index].argmax(-1) == predicted.argmax(-1)).sum().item()
    scored = WINDOW - 1
    return Quality(
        perplexity=math.exp(loss / (scored * len(ids))),
        kl=divergence / (scored * len(wanted)),
        top1=agreement / (scored * len(wanted)),
    )


def cpu_name() -> str:
    """Model name of the first processor, as the kernel gives it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")


def environment(ids: Tensor) -> dict[str, object]:
    """What must be equal for two records to be compared, and where this one was made."""
    return {
        "eval_hash": token_hash(ids),
        "eval_windows": list(ids.shape),
        "eval_versions": library_versions("torch", "transformers"),
        "cpu": cpu_name(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load_model(directory: Path) -> PreTrainedModel:
    """Float32 model in evaluation mode."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def append_record(out: Path, record: dict[str, object]) -> None:
    line = json.dumps(record)
    with out.open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("weights", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    ids = windows(tokenize(arguments.teacher, read_text(arguments.text)))
    student = load_model(arguments.teacher)
    wanted = reference(student, ids)
    runs: list[Path | None] = arguments.weights or [None]
    for directory in runs:
        done = load_quantized(directory, student) if directory else TEACHER
        quality = measure(student, ids, wanted)
        append_record(arguments.out, asdict(done) | asdict(quality) | environment(ids))


TEACHER = Quantization(
    method="teacher",
    options={},
    bits_per_weight=32.0,
    quantize_seconds=0.0,
    threads=0,
    calibration_hash=None,
    versions={},
)


if __name__ == "__main__":
    main()
