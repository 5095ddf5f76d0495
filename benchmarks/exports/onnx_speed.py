"""Tokens per second of packed checkpoints in ONNX Runtime and OpenVINO, beside Tercet's runtime.

python benchmarks/exports/onnx_speed.py RECORDS DIR... [--tokens 64] [--rounds 5] [--any-load]

Every measurement is greedy decoding at batch 1 after the same prompt, in a process of its own, with
as many threads as torch takes. The engines take turns, so that all see the same machine; a record
holds the median, the least and the most of the rounds. It refuses to start on a busy machine.

Engines: Tercet; ONNX Runtime with the arithmetic of `tercet export` and with int8 inputs in every
linear; OpenVINO in float32 and with its own defaults.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

import tercet
from tercet.export.onnx.target import OnnxTarget
from tercet.export.openvino.client import OpenvinoSession
from tercet.export.openvino.target import OpenvinoTarget
from tercet.records import Environment, Record, append
from tercet.workflows.export.report import dominant_format, model_name
from tercet.workflows.speed import measure_packed

PROMPT = "What is the capital of France?"
IDLE_LOAD = 0.5
"""Load average of the last minute above which another program disturbs the measurement."""

FOREIGN = {
    "onnxruntime": OnnxTarget(),
    "onnxruntime, int8 inputs": OnnxTarget(accuracy_level=4),
    "openvino, float32": OpenvinoTarget(),
    "openvino, its defaults": OpenvinoTarget(),
}
ENGINES = ("tercet", *FOREIGN)


def greedy(engine: str, out: Path) -> Callable[[list[int], int], list[int]]:
    """Greedy continuation in a foreign engine, loaded."""
    if engine == "openvino, its defaults":
        options = {"INFERENCE_NUM_THREADS": str(torch.get_num_threads())}
        return OpenvinoSession(import_module("openvino"), out, options).greedy
    return FOREIGN[engine].session(out).greedy


def foreign_speed(engine: str, out: Path, directory: Path, tokens: int) -> float:
    """Tokens per second after the first one."""
    run, prompt = greedy(engine, out), tercet.load(directory).encode(PROMPT)
    run(prompt, 4)
    times: list[float] = []
    for count in (1, tokens):
        start = perf_counter()
        run(prompt, count)
        times.append(perf_counter() - start)
    return (tokens - 1) / (times[1] - times[0])


def speed(engine: str, out: Path, directory: Path, tokens: int) -> float:
    """The same in a process of its own, for any engine."""
    if engine == "tercet":
        return measure_packed(directory, PROMPT, tokens).decode_tokens_per_s
    command = [sys.executable, __file__, str(out), str(directory)]
    options = ["--tokens", str(tokens), "--engine", engine]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure(directories: list[Path], tokens: int, rounds: int, folder: Path) -> list[Record]:
    """One record for each checkpoint and engine."""
    pairs = list(product(directories, ENGINES))
    outs = {pair: folder / f"{pair[0].name}, {pair[1]}" for pair in pairs}
    for (directory, engine), out in outs.items():
        if engine != "tercet":
            FOREIGN[engine].write(tercet.open_packed(directory), out)
    load = os.getloadavg()[0]
    found: dict[tuple[Path, str], list[float]] = {pair: [] for pair in pairs}
    for turn in range(rounds):
        # backwards every other time: what runs second finds a warmer machine
        for pair in pairs if turn % 2 == 0 else pairs[::-1]:
            directory, engine = pair
            found[pair].append(speed(engine, outs[pair], directory, tokens))
            print(f"{turn + 1}/{rounds} {outs[pair].name}: {found[pair][-1]:.1f} tokens/s")
    return [_record(pair, found[pair], outs[pair], tokens, load) for pair in pairs]


def _record(
    pair: tuple[Path, str], speeds: list[float], out: Path, tokens: int, load: float
) -> Record:
    directory, engine = pair
    checkpoint = tercet.open_packed(directory)
    size, kind, name = checkpoint.size_bytes, None, f"tercet {tercet.__version__}"
    if engine != "tercet":
        target = FOREIGN[engine]
        size = sum(path.stat().st_size for path in out.iterdir())
        layers = [entry for entry in target.holdings(checkpoint) if ".layers." in entry.module]
        kind, told = layers[0].kind, f"{target.client} {version(target.client)}"
        name = engine.replace(target.client, told)
    return Record(
        kind="export-speed",
        subject=name,
        settings={
            "model": model_name(checkpoint),
            "format": dominant_format(checkpoint),
            "kind": kind,
            "tokens": tokens,
            "rounds": len(speeds),
            "threads": torch.get_num_threads(),
            "load_before": load,
        },
        metrics={
            "decode_tokens_per_s": median(speeds),
            "decode_tokens_per_s_low": min(speeds),
            "decode_tokens_per_s_high": max(speeds),
            "size_bytes": float(size),
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
    parser.add_argument("--engine", choices=list(FOREIGN), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine:
        # the child of `speed`: the first path is the export
        print(foreign_speed(given.engine, given.records, given.directories[0], given.tokens))
        return
    load = os.getloadavg()[0]
    if load > IDLE_LOAD and not given.any_load:
        sys.exit(f"the load average is {load:.2f}, above {IDLE_LOAD}: wait, or pass --any-load")
    with tempfile.TemporaryDirectory() as name:
        records = measure(given.directories, given.tokens, given.rounds, Path(name))
    append(given.records, records)


if __name__ == "__main__":
    main()
