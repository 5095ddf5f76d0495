"""Tokens per second of packed checkpoints in llama.cpp, beside Tercet's own CPU runtime.

python benchmarks/exports/gguf_speed.py RECORDS DIR... [--tokens 64] [--rounds 5] [--any-load]

Every measurement is greedy decoding at batch 1 after the same prompt, in a process of its own, with
as many threads as torch takes. The engines take turns, so that both see the same machine; a record
holds the median, the least and the most of the rounds. It refuses to start on a busy machine.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch

import tercet
from tercet.export.gguf import TARGET
from tercet.export.gguf.client import timed_continuation
from tercet.records import Environment, Record, append
from tercet.workflows.export.run import dominant_format, model_name
from tercet.workflows.speed import measure_packed

PROMPT = "What is the capital of France?"
IDLE_LOAD = 0.5
"""Load average of the last minute above which another program disturbs the measurement."""


def llama_cpp(gguf: Path, directory: Path, tokens: int) -> float:
    """Tokens per second after the first one, in llama.cpp."""
    prompt = tercet.load(directory).encode(PROMPT)
    done = timed_continuation(TARGET, gguf, prompt, tokens)
    return (tokens - 1) / done["decode_s"]


def own(gguf: Path, directory: Path, tokens: int) -> float:
    """The same of `tercet run`."""
    return measure_packed(directory, PROMPT, tokens).decode_tokens_per_s


ENGINES: dict[str, Callable[[Path, Path, int], float]] = {
    f"tercet {tercet.__version__}": own,
    f"{TARGET.client} {version(TARGET.client)}": llama_cpp,
}


def measure(directories: list[Path], tokens: int, rounds: int, folder: Path) -> list[Record]:
    """One record for each checkpoint and engine."""
    files = {directory: folder / f"{directory.name}.gguf" for directory in directories}
    for directory, file in files.items():
        TARGET.write(tercet.open_packed(directory), file)
    load = os.getloadavg()[0]
    pairs = [(directory, engine) for directory in directories for engine in ENGINES]
    found: dict[tuple[Path, str], list[float]] = {pair: [] for pair in pairs}
    for turn in range(rounds):
        # backwards every other time: what runs second finds a warmer machine
        for directory, engine in pairs if turn % 2 == 0 else pairs[::-1]:
            speed = ENGINES[engine](files[directory], directory, tokens)
            found[directory, engine].append(speed)
            print(f"{turn + 1}/{rounds} {directory.name} {engine}: {speed:.1f} tokens/s")
    return [
        _record(directory, engine, found[directory, engine], files[directory], tokens, load)
        for directory, engine in pairs
    ]


def _record(
    directory: Path, engine: str, speeds: list[float], file: Path, tokens: int, load: float
) -> Record:
    checkpoint = tercet.open_packed(directory)
    foreign = ENGINES[engine] is llama_cpp
    layers = [entry for entry in TARGET.holdings(checkpoint) if ".layers." in entry.module]
    return Record(
        kind="export-speed",
        subject=engine,
        settings={
            "model": model_name(checkpoint),
            "format": dominant_format(checkpoint),
            "kind": layers[0].kind if foreign else None,
            "tokens": tokens,
            "rounds": len(speeds),
            "threads": torch.get_num_threads(),
            "load_before": load,
        },
        metrics={
            "decode_tokens_per_s": median(speeds),
            "decode_tokens_per_s_low": min(speeds),
            "decode_tokens_per_s_high": max(speeds),
            "size_bytes": float(file.stat().st_size if foreign else checkpoint.size_bytes),
        },
        environment=Environment.here(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path)
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--any-load", action="store_true")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    if load > IDLE_LOAD and not given.any_load:
        sys.exit(f"the load average is {load:.2f}, above {IDLE_LOAD}: wait, or pass --any-load")
    with tempfile.TemporaryDirectory() as name:
        records = measure(given.directories, given.tokens, given.rounds, Path(name))
    append(given.records, records)


if __name__ == "__main__":
    main()
