"""Shows on this machine that `regress` finds a planted slow-down, and nothing where nothing is.

    PYTHONPATH=src python benchmarks/kernels/regress_proof.py --runs 10

In a temporary git repository, made of this tree's `src` (its own history is not needed), a second
commit makes rms_norm about 8 % slower for one shape. The first commit is timed against the second
once, and against itself --runs times, as `tercet kernel regress --between` does. One line per run
says what was flagged; each run is a record in benchmarks/regress/DEVICE.jsonl. The exit code is 0
where the planted run flags the planted shape and nothing else, and no other run flags anything.

What --runs 10 should take on an H200, by the sizes of its parts (each line says what it took): a
run has two passes; a pass starts three processes side by side (about 7 s: imports, a CUDA context
each) and times 8 rows (inputs, warm-up and capture in three processes about 0.8 s, 93 replays of
1 ms about 0.1 s): 15 s. So a run takes 30 s, the planted one, which times what it flags once more,
50 s, all of them 6 minutes. `--model llama-3-8b` halves the rows: about 4 minutes.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tercet.harness.regress.report import RegressReport
from tercet.harness.regress.revisions import Row, compare_revisions, model_rows
from tercet.kernel.tuned import device_name
from tercet.records import Environment, Record, append

ROOT = Path(__file__).parent.parent.parent
RECORDS = ROOT / "benchmarks" / "regress"
FORWARD = {"cuda": "triton", "cpu": "torch_path"}
MODELS = {"cuda": ["llama-3-8b", "llama-3-70b"], "cpu": ["smollm2-135m", "qwen3-0.6b"]}
TOKENS = {"cuda": 16384, "cpu": 1024}
IDENTITY = ("-c", "user.name=proof", "-c", "user.email=proof@example.org")
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
def planted_repository(row: Row, device: str, percent: int) -> Generator[Path, None, None]:
    """A repository of two commits, tagged `asis` and `planted`: this tree, and with the fault."""
    with TemporaryDirectory(prefix="tercet-planted-") as name:
        folder = Path(name)
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "src", folder / "src", ignore=unwanted)
        git(folder, "init", "--quiet")
        commit(folder, "asis")
        path = folder / "src" / "tercet" / "ops" / "rms_norm" / f"{FORWARD[device]}.py"
        sizes = {"rows": row.sizes["M"], "columns": row.sizes["N"], "percent": percent}
        planted = PLANT.format(slowly=SLOWLY[device].format(**sizes), **sizes)
        path.write_text(path.read_text() + planted)
        commit(folder, "planted")
        yield folder


def commit(folder: Path, tag: str) -> None:
    git(folder, "add", "--all", "--force", "src")
    git(folder, *IDENTITY, "-c", "commit.gpgsign=false", "commit", "--quiet", "--no-verify",
        "-m", tag)  # fmt: skip
    git(folder, "tag", "--no-sign", tag)


def git(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}")


def record_of(report: RegressReport, settings: dict[str, str], seconds: float) -> Record:
    """One run: what it flagged, and how noisy the machine was."""
    noise = report.noise["rounds"]
    target = next(change for change in report.changes if change.row == settings["planted"])
    flagged = report.of("regression", "improvement")
    return Record(
        kind="regress_proof",
        subject=target.op,
        settings={**settings, "flagged": "; ".join(change.row for change in flagged)},
        metrics={
            "rows": len(report.changes),
            "flagged": len(flagged),
            "planted_ratio": target.ratio or 0.0,
            "planted_limit": target.limit or 0.0,
            "spread": noise.spread,
            "largest": noise.largest,
            "duration_s": seconds,
        },
        environment=Environment.here(
            torch.cuda.get_device_name() if torch.cuda.is_available() else None
        ),
    )


def line_of(name: str, record: Record) -> str:
    metrics = record.metrics
    return (
        f"{name}: flagged {record.settings['flagged'] or 'nothing'} "
        f"(of {metrics['rows']:.0f} rows; the shape's ratio {metrics['planted_ratio']:.4f}, limit "
        f"{metrics['planted_limit']:.4f}; spread {metrics['spread']:.2%}, largest "
        f"{metrics['largest']:.2%}; {metrics['duration_s']:.0f} s)"
    )


def main() -> None:
    """Runs all; exits with 1 where a run flags something else than what was planted in it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="of the same code against itself")
    parser.add_argument("--op", action="append", help="also time this op; default: rms_norm alone")
    parser.add_argument("--model", action="append", help="the first one's norm is slowed down")
    parser.add_argument("--tokens", type=int, help="in a call")
    parser.add_argument("--percent", type=int, default=8, help="of slow-down")
    parser.add_argument("--passes", type=int, default=2, help="each in new processes")
    parser.add_argument("--rounds", type=int, default=5, help="of each pass")
    parser.add_argument("--output", type=Path, help="file of records")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    models = given.model or MODELS[device]
    ops = list(dict.fromkeys(["rms_norm", *(given.op or [])]))
    rows = model_rows(ops, models, 1, given.tokens or TOKENS[device], device)
    target = next(row for row in rows if row.workload == f"{models[0]} norm")
    output = given.output or RECORDS / f"{device_name()}.jsonl"
    output.parent.mkdir(parents=True, exist_ok=True)
    wrong = list[str]()
    with planted_repository(target, device, given.percent) as folder:
        timed = partial(
            compare_revisions, rows, "asis", repository=folder, device=device,
            passes=given.passes, rounds=given.rounds,
        )  # fmt: skip
        names = ["planted", *(f"same {each} of {given.runs}" for each in range(1, given.runs + 1))]
        for name in names:
            planted = name == "planted"
            started = time.perf_counter()
            report = timed("planted" if planted else "asis")
            settings = {
                "run": name,
                "planted": str(target),
                "percent": str(given.percent if planted else 0),
                "ops": " ".join(ops),
                "models": " ".join(models),
            }
            record = record_of(report, settings, time.perf_counter() - started)
            append(output, [record])
            print(line_of(name, record), flush=True)
            slower = [change.row for change in report.of("regression")]
            expected = [str(target)] if planted else []
            if slower != expected or report.of("improvement"):
                wrong.append(name)
    print(f"{len(names) - len(wrong)} of {len(names)} runs right; records in {output}")
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
