"""How fast a packed checkpoint decodes, against the same model in float32 by transformers.

Every measurement runs in a process of its own, so that peak memory is its own too.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from time import perf_counter

import torch

from tercet.errors import CheckpointError
from tercet.runtime import load_tokenizer
from tercet.runtime.session import read_stop_ids

_BANDWIDTH_BYTES = 256 * 1024 * 1024
_BANDWIDTH_REPEATS = 9


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What one process measured.

    Attributes:
        text: what it generated, up to the first end-of-text token. A speed run goes on behind it,
            and what a model says there is not its answer.
        decode_tokens_per_s: at batch 1, after the first token.
        peak_resident_bytes: of the whole process.
    """

    text: str
    decode_tokens_per_s: float
    peak_resident_bytes: int

    def metrics(self) -> dict[str, float]:
        """The measured values by name."""
        return {
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "peak_resident_bytes": self.peak_resident_bytes,
        }


def measure_packed(directory: Path, prompt: str, tokens: int) -> Speed:
    """`tercet run` on a packed checkpoint."""
    return _measure(
        ["-m", "tercet", "run", str(directory), "--prompt", prompt, "--ignore-stop", "--json"],
        ["--max-tokens", str(tokens)],
        directory,
    )


def measure_transformers(model: str, prompt: str, tokens: int) -> Speed:
    """The uncompressed model in float32 by transformers, greedy, with its key-value cache."""
    return _measure(
        ["-m", "tercet.workflows.transformers_baseline", model], [prompt, str(tokens)], Path(model)
    )


def text_before_stop(ids: Sequence[int], directory: Path) -> str:
    """The text of generated ids, up to the first end-of-text token of the model there."""
    tokenizer = load_tokenizer(directory)
    stop = read_stop_ids(directory, tokenizer)
    return tokenizer.decode(list(takewhile(lambda token: token not in stop, ids)))


def read_bandwidth() -> float:
    """Bytes per second that this machine reads from memory: the best of nine sums of 256 MiB."""
    block = torch.ones(_BANDWIDTH_BYTES // 8, dtype=torch.float64)
    best = float("inf")
    for _ in range(_BANDWIDTH_REPEATS):
        start = perf_counter()
        block.sum()
        best = min(best, perf_counter() - start)
    return _BANDWIDTH_BYTES / best


def _measure(command: list[str], options: list[str], directory: Path) -> Speed:
    arguments = [*command, *options]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckpointError(f"measuring {' '.join(arguments[:3])} failed: {last}")
    found = json.loads(done.stdout)
    return Speed(
        text=text_before_stop(found["ids"], directory),
        decode_tokens_per_s=found["decode_tokens_per_s"],
        peak_resident_bytes=found["peak_resident_bytes"],
    )
