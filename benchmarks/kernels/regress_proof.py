"""Shows on this machine that `regress` finds a planted slow-down, and nothing where nothing is.

python benchmarks/kernels/regress_proof.py [--runs 10] [--op rms_norm --op swiglu] [--model NAME]

In a clone of this repository, a commit makes rms_norm about 8 % slower for one shape. The committed
revision is timed against the planted one once, and against itself --runs times; the outcome is
appended to regress_proof.jsonl.
"""

import argparse
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tercet.harness.revisions import Row, interleaved, model_rows
from tercet.records import Environment, Record, append

ROOT = Path(__file__).parent.parent.parent
RECORDS = Path(__file__).parent / "regress_proof.jsonl"
FORWARD = {"cuda": "triton", "cpu": "torch_path"}
MODELS = {"cuda": ["llama-3-8b", "llama-3-70b"], "cpu": ["smollm2-135m", "qwen3-0.6b"]}
TOKENS = {"cuda": 16384, "cpu": 1024}
PLANT = '''

_whole = forward


def forward(  # noqa: F811
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A planted fault: one shape is {percent} % slower."""
    if x.shape != ({rows}, {columns}) or residual is not None:
        return _whole(x, weight, residual, eps)
    {slowly}
'''
# on a GPU a part of the rows is done twice; on a CPU, whose caches such rows would disturb, we wait
SLOWLY = {
    "cuda": """_whole(x[: {rows} * {percent} // 100], weight, None, eps)
    return _whole(x, weight, residual, eps)""",
    "cpu": """import time
    start = time.perf_counter()
    result = _whole(x, weight, residual, eps)
    end = start + (time.perf_counter() - start) * (1 + {percent} / 100)
    while time.perf_counter() < end:
        pass
    return result""",
}


@contextmanager
def clone(row: Row, device: str, percent: int) -> Generator[Path, None, None]:
    """A clone of the repository whose branch head has the slow-down planted."""
    with TemporaryDirectory(prefix="tercet-planted-") as name:
        folder = Path(name)
        git(ROOT, "clone", "--quiet", "--local", str(ROOT), name)
        path = folder / "src" / "tercet" / "ops" / "rms_norm" / f"{FORWARD[device]}.py"
        sizes = {"rows": row.sizes["M"], "columns": row.sizes["N"], "percent": percent}
        planted = PLANT.format(slowly=SLOWLY[device].format(**sizes), **sizes)
        path.write_text(path.read_text() + planted)
        git(folder, "-c", "user.name=proof", "-c", "user.email=proof@example.org", "commit",
            "--quiet", "--all", "-m", "A planted slow-down")  # fmt: skip
        yield folder


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--op", action="append")
    parser.add_argument("--model", action="append")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--percent", type=int, default=8)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    models = given.model or MODELS[device]
    ops = given.op or ["rms_norm"]
    rows = model_rows(ops, models, 1, given.tokens or TOKENS[device], device)
    target = next(row for row in rows if row.workload == f"{models[0]} norm")
    with clone(target, device, given.percent) as folder:
        timed = partial(interleaved, repository=folder, device=device, progress=print)
        planted = timed(rows, "HEAD~1", "HEAD")
        alike = [timed(rows, "HEAD~1", "HEAD~1") for _ in range(given.runs)]
    print(planted, *planted.of("regression"), sep="\n")
    found = planted.of("regression")
    change = next(change for change in planted.changes if change.row == str(target))
    record = Record(
        kind="regress_proof",
        subject=target.op,
        settings={
            "planted": str(target),
            "revision": git(ROOT, "rev-parse", "HEAD"),
            "ops": " ".join(ops),
            "models": " ".join(models),
        },
        metrics={
            "rows": len(rows),
            "planted_ratio": change.ratio or 0.0,
            "planted_found": float(change in found),
            "others_flagged": len(found) - (change in found),
            "same_runs": len(alike),
            "same_runs_flagged": sum(not report.passed for report in alike),
            "spread": planted.noise["rounds"].spread,
            "largest": planted.noise["rounds"].largest,
        },
        environment=Environment.here(torch.cuda.get_device_name() if device == "cuda" else None),
    )
    append(RECORDS, [record])
    print(record.metrics)


if __name__ == "__main__":
    main()
