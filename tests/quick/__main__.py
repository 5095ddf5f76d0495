"""python -m quick: runs the tests that a change can break, the most direct first, for a minute.

make quick                    what differs from main
make quick BASE=REVISION      what differs from where the branch left another revision
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from quick.budget import Plan
from quick.change import MAIN, list_changed, list_files
from quick.choice import Choice, choose
from quick.graph import TESTS, Graph
from quick.seconds import Seconds, read

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
# to end, report and stop the processes
_LAST_SECONDS = 7.0
# pytest's exit status where every test was left
_NONE_RAN = 5
# of the suite's recorded time; a change that so much of it stands on has no few direct tests
_MOST = 0.5


def main() -> int:
    begun = time.time()
    parser = argparse.ArgumentParser(prog="make quick", description=__doc__)
    parser.add_argument("--base", default=MAIN, help="the revision that the branch left")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the budget")
    parser.add_argument("--list", action="store_true", help="print the files of tests, run none")
    arguments = parser.parse_args()
    changed = list_changed(ROOT, arguments.base)
    if not changed:
        print(f"quick: nothing differs from {arguments.base}: no test to run")
        return 0
    choice = choose(Graph(ROOT, {*list_files(ROOT), *changed}), changed)
    seconds = read()
    files, reached = _count(changed, "changed file"), _count(choice.nearest(), "file")
    print(f"quick: {files}, {reached} of tests reached")
    if _is_wide(choice, seconds):
        print(
            "quick: more than half of the suite stands on this change directly: better run "
            "`make test`; here are the most direct tests"
        )
    if arguments.list:
        for at, file in choice.nearest():
            print(f"{at:4} {file}")
        return 0
    if not choice.nearest():
        print("quick: no test stands on what changed")
        return 0
    deadline = begun + arguments.seconds - _LAST_SECONDS
    with TemporaryDirectory() as folder:
        plan = Path(folder) / "choice.json"
        Plan(deadline=deadline, choice=choice).write(plan)
        status = _run(plan, select_files(choice, seconds, arguments.seconds))
        left = plan.with_suffix(".left.json")
        report = json.loads(left.read_text("utf-8")) if left.exists() else None
    if report is not None:
        print(explain(report, choice, seconds, time.time() - begun))
    return 0 if status == _NONE_RAN else status


def select_files(choice: Choice, seconds: Seconds, budget: float) -> list[str]:
    """The nearest files, as many as could run in the budget: collecting the others takes time."""
    wanted: list[str] = []
    room = budget * (os.cpu_count() or 1)
    for _, file in choice.nearest():
        if room <= 0:
            break
        wanted.append(file)
        room -= _seconds_of(file, choice, seconds)
    return wanted


def explain(report: dict[str, object], choice: Choice, seconds: Seconds, took: float) -> str:
    """How many ran, how many were left, and why."""
    chosen, left = report["chosen"], report["left"]
    assert isinstance(chosen, int)
    assert isinstance(left, list)
    known = sum(one.tests for one in seconds.values())
    text = f"quick: ran {chosen - len(left)} tests in {took:.0f} s"
    if known:
        text += (
            f"; left to `make test`: {len(left)} because the time was up, about "
            f"{max(0, known - chosen)} that are farther from the change or do not stand on it"
        )
    elif left:
        text += f"; left {len(left)} to `make test`: the time was up"
    files = sorted({str(one).partition("::")[0].removeprefix(f"{TESTS}/") for one in left})
    return text + (f"\nquick: left are tests of {', '.join(files[:8])}" if files else "")


def _run(plan: Path, files: list[str]) -> int:
    workers = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", "auto")
    command = [
        sys.executable, "-m", "pytest", "-p", "quick.budget", "--choice", str(plan), "-q",
        "-n", workers, "--dist", "loadgroup", "--no-loadscope-reorder", *files,
    ]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _is_wide(choice: Choice, seconds: Seconds) -> bool:
    total = sum(one.seconds for one in seconds.values())
    direct = sum(
        _seconds_of(file, choice, seconds)
        for file in choice.direct
        if file in seconds and file in choice.own
    )
    return direct > _MOST * total > 0


def _seconds_of(file: str, choice: Choice, seconds: Seconds) -> float:
    if file not in seconds:
        return 1.0
    one = seconds[file]
    out_of_reach = sum(
        took
        for test, took in one.slow.items()
        if choice.distance_of(file, test.partition("[")[2].removesuffix("]")) is None
    )
    return one.seconds - out_of_reach


def _count(items: object, what: str) -> str:
    assert isinstance(items, list | dict)
    return f"{len(items)} {what}{'' if len(items) == 1 else 's'}"


if __name__ == "__main__":
    sys.exit(main())
