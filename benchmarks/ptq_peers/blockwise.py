"""Quality of post-training quantization on a device, with and without the trainings after it.

python benchmarks/ptq_peers/blockwise.py MODEL --calibration TEXT[.gz] --evaluation TEXT[.gz]
    [--windows validation|test] [--formats F,..] [--sequences N] [--length T] [--epochs E,..]
    [--learning-rate R,..] [--scale-learning-rate R,..] [--batch B] [--no-norms] [--plain]
    [--finetune KEY=VALUE,..]...
    [--device cuda] [--out FILE]

MODEL is a directory, a GGUF file or a fetched model's name. The weights and windows are those of
`benchmarks/ptq_peers`: the linears of the decoder layers, neither the embedding nor the head;
perplexity over the first 40 windows of 1024 tokens that do not overlap, KL(teacher || student) in
nats and top-1 agreement over the first 10; calibration on sequences evenly spaced in their text,
the length of a window of it set aside. `--windows test` takes the windows of `--evaluation`;
`--windows validation`, for choosing settings, takes 10 + 10 windows from the end of the calibration
text, which then is not calibrated on. Every combination of the comma-separated lists is a row; each
`--finetune` makes another of it, by what `tercet finetune` does of it by these settings (all
defaults: `--finetune ""`). Its seconds are those of compression and fine-tuning together, its
`held_out_kl` is by what fine-tuning chooses its best epoch, on sequences of the calibration text.
"""

import argparse
import gzip
import itertools
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.sources.open import ModelSource, open_source
from tercet.compress.finetune.settings import FineTuning
from tercet.compress.pipeline import compress
from tercet.compress.plan import Plan
from tercet.compress.skeleton import Skeleton
from tercet.compress.training.setting_overrides import build_settings, parse_overrides
from tercet.evaluate.size import measure_size
from tercet.records import Environment, Record, append, peak_resident_bytes
from tercet.workflows.training.finetune import finetune

WINDOW = 1024
PERPLEXITY_WINDOWS = {"validation": 20, "test": 40}
DIVERGENCE_WINDOWS = 10
FORMATS = "int4-g64,int3-g64,nonary-g64,int2-g64-asym,ternary-g64"


@dataclass(frozen=True, kw_only=True)
class Text:
    """Token ids: calibration [sequences, length], windows to evaluate [n, WINDOW]."""

    calibration: Tensor
    windows: Tensor


def read_tokens(path: Path, tokenizer: Tokenizer) -> Tensor:
    """The whole text as one tokenization, without special tokens."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    return torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)


def read_text(source: ModelSource, options: argparse.Namespace) -> Text:
    """Calibration never sees the windows, whichever they are."""
    with tempfile.TemporaryDirectory() as folder:
        source.save_companions(folder)
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    ids = read_tokens(options.calibration, tokenizer)
    count = min(PERPLEXITY_WINDOWS[options.windows], options.most_windows)
    # set aside either way, so that a setting is judged on what it was chosen with
    ids, validation = ids[: -PERPLEXITY_WINDOWS["validation"] * WINDOW], ids
    if options.windows == "test":
        evaluated = read_tokens(options.evaluation, tokenizer)
    else:
        evaluated = validation[len(ids) :]
    last = len(ids) - options.length
    starts = [i * last // max(options.sequences - 1, 1) for i in range(options.sequences)]
    return Text(
        calibration=torch.stack([ids[start : start + options.length] for start in starts]),
        windows=evaluated[: count * WINDOW].view(count, WINDOW),
    )


class Judge:
    """The uncompressed model on the device, whose decoder linears take a student's weights."""

    def __init__(self, source: ModelSource, windows: Tensor, device: torch.device) -> None:
        self._skeleton = Skeleton(source, device)
        names = [name for name, _ in self._skeleton.model.named_parameters()]
        for name in names:
            self._skeleton.put(name, self._skeleton.read(name))
        self._own = {
            name: self._skeleton.model.get_parameter(name)
            for name in names
            if name.startswith(self._skeleton.layers_name + ".")
        }
        self._windows = windows.to(device)
        with torch.inference_mode():
            self._teacher = [self._predict(one) for one in self._windows[:DIVERGENCE_WINDOWS]]

    def _predict(self, window: Tensor) -> Tensor:
        """Log probabilities [WINDOW - 1, vocabulary] of the token after each."""
        model: Any = self._skeleton.model
        logits = model(input_ids=window[None], use_cache=False).logits[0, :-1]
        return logits.float().log_softmax(-1)

    def measure(self, directory: Path | None) -> dict[str, float]:
        """Of a packed checkpoint; None for the teacher itself."""
        for name, value in self._own.items():
            self._skeleton.put(name, value)
        if directory is not None:
            self._take_weights(directory)
        return self._measure()

    def _take_weights(self, directory: Path) -> None:
        checkpoint = open_packed(directory)
        device = self._skeleton.device
        for name in self._own:
            module = name.removesuffix(".weight")
            if module in checkpoint.modules:
                value = checkpoint.read_packed(module).dequantize()
            else:
                value = checkpoint.tensor(name).float()
            self._skeleton.put(name, value.to(device))

    @torch.inference_mode()
    def _measure(self) -> dict[str, float]:
        loss = divergence = agreement = 0.0
        for index, window in enumerate(self._windows):
            found = self._predict(window)
            loss += float(F.nll_loss(found, window[1:], reduction="none").double().sum())
            if index < len(self._teacher):
                wanted = self._teacher[index]
                divergence += float((wanted.exp() * (wanted - found)).double().sum())
                agreement += float((wanted.argmax(-1) == found.argmax(-1)).sum())
        scored = WINDOW - 1
        compared = len(self._teacher) * scored
        return {
            "perplexity": math.exp(loss / (len(self._windows) * scored)),
            "kl": divergence / compared,
            "top1": agreement / compared,
        }


def settings_of(options: argparse.Namespace) -> list[dict[str, Any] | None]:
    """The blockwise settings to try; None is none."""
    tried: list[dict[str, Any] | None] = [None] if options.plain else []
    for epochs, rate, scale_rate in itertools.product(
        options.epochs.split(","),
        options.learning_rate.split(","),
        options.scale_learning_rate.split(","),
    ):
        tried.append(
            {
                "epochs": int(epochs),
                "learning_rate": float(rate),
                "scale_learning_rate": float(scale_rate),
                "batch": options.batch,
                "norms": not options.no_norms,
            }
        )
    return tried


Row = tuple[FineTuning | None, dict[str, float]]


def run(
    source: ModelSource,
    plan: Plan,
    text: Text,
    judge: Judge,
    device: torch.device,
    tried: list[FineTuning],
) -> Iterator[Row]:
    """Compresses and evaluates; then fine-tunes the result by each of the settings."""
    folder = Path(tempfile.mkdtemp())
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        begin = time.perf_counter()
        result = compress(source, plan, folder / "out", calibration=text.calibration, device=device)
        seconds = time.perf_counter() - begin
        yield None, measure(judge, folder / "out", seconds, result.device_peak_bytes)
        for settings in tried:
            begin = time.perf_counter()
            tuned = finetune(
                folder / "out",
                folder / "tuned",
                teacher=source.reference,
                calibration=text.calibration,
                settings=settings,
                device=device,
                overwrite=True,
            )
            more = time.perf_counter() - begin
            peak = max(tuned.device_peak_bytes, result.device_peak_bytes)
            metrics = measure(judge, folder / "tuned", seconds + more, peak)
            held_out = {"held_out_kl_before": tuned.before, "held_out_kl_after": tuned.after}
            yield settings, {**metrics, **held_out}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(judge: Judge, directory: Path, seconds: float, device_peak: int) -> dict[str, float]:
    """The metrics of a row."""
    return {
        **judge.measure(directory),
        "bits_per_weight": measure_size(open_packed(directory)).body_bits_per_weight,
        "seconds": seconds,
        "device_peak_bytes": float(device_peak),
        "peak_bytes": float(peak_resident_bytes()),
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--evaluation", type=Path, help="for --windows test")
    parser.add_argument("--windows", choices=tuple(PERPLEXITY_WINDOWS), default="validation")
    parser.add_argument("--most-windows", type=int, default=40, help="fewer for a dry run")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--match", default="*.layers.*", help="which modules are quantized")
    parser.add_argument("--algorithm", default="gptq")
    parser.add_argument("--match-teacher", type=float, default=0.5)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--epochs", default="5")
    parser.add_argument("--learning-rate", default="0.02")
    parser.add_argument("--scale-learning-rate", default="0.003")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--no-norms", action="store_true")
    parser.add_argument("--plain", action="store_true", help="also a row without blockwise")
    parser.add_argument("--finetune", action="append", default=[], help="settings, with commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """The command."""
    options = parse(arguments)
    device = torch.device(options.device)
    source = open_source(options.model)
    text = read_text(source, options)
    judge = Judge(source, text.windows, device)
    print("teacher", judge.measure(None), flush=True)
    tunings = [
        build_settings(
            FineTuning, parse_overrides(words.split(",") if words else [], (FineTuning,))
        )
        for words in options.finetune
    ]
    accelerator = torch.cuda.get_device_name() if device.type == "cuda" else None
    for form, settings in itertools.product(options.formats.split(","), settings_of(options)):
        plan = Plan.model_validate(
            {
                "name": form,
                "calibration": {"match_teacher": options.match_teacher},
                "blockwise": settings,
                "rules": [{"match": options.match, "format": form, "algorithm": options.algorithm}],
            }
        )
        for finetuning, metrics in run(source, plan, text, judge, device, tunings):
            shown = {name: round(one, 4) for name, one in metrics.items()}
            print(form, settings, finetuning, shown, flush=True)
            if options.out is None:
                continue
            record = Record(
                kind="quality",
                subject=source.reference,
                settings={
                    "format": form,
                    "algorithm": options.algorithm,
                    "match_teacher": options.match_teacher,
                    "blockwise": settings is not None,
                    **(settings or {}),
                    "finetune": finetuning is not None,
                    **{f"finetune_{key}": value for key, value in finetuning or ()},
                    "sequences": options.sequences,
                    "length": options.length,
                    "windows": options.windows,
                    "device": device.type,
                },
                metrics=metrics,
                environment=Environment.here(accelerator),
            )
            append(options.out, [record])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
