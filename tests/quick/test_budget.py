"""The budget's own arithmetic, and pytest under it: what has no time is left, never failed."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from quick.budget import Budget, Plan, read_plan
from quick.change import list_changed
from quick.choice import Choice
from quick.seconds import FileSeconds, read, summarize, write

CHOICE = Choice(files={"tests/test_x.py": 1}, ops={}, own={}, by_op=(), all_ops={}, direct=())
# ends a hang
HANG_SECONDS = 600


def item_of(name: str) -> Any:
    return SimpleNamespace(name=name, path=Path("/r/tests/test_x.py"))


def test_starts_what_ends_in_time_on_a_machine_as_slow_as_this_one() -> None:
    seconds = {"tests/test_x.py": FileSeconds(tests=3, seconds=14.0, slow={"test_a": 10.0})}
    budget = Budget(Plan(deadline=100.0, choice=CHOICE), Path("/r"), seconds)
    slow, fast = item_of("test_a"), item_of("test_b")
    assert budget.estimate(fast) == 2.0
    assert [budget.fits(slow, now) for now in (89.0, 91.0)] == [True, False]
    assert [budget.fits(fast, now) for now in (97.0, 99.0)] == [True, False]
    budget.spend(fast, 6.0)  # where 2 were recorded: twice as slow, as 2 more had been right
    assert [budget.fits(slow, now) for now in (79.0, 81.0)] == [True, False]
    budget.spend(slow, 0.0)
    budget.spend(fast, 0.0)
    assert [budget.fits(slow, now) for now in (94.9, 95.1)] == [True, False]
    assert budget.remaining(98.0) == 2.0
    assert budget.remaining(101.0) > 0
    budget.begin(50.0)
    assert budget.remaining(98.0) == 2.0
    budget.begin(99.0)  # a machine so busy that collecting took all: some are run all the same
    assert budget.remaining(100.0) == 14.0


def run(folder: Path, tests: str, *options: str, seconds: float) -> tuple[str, dict[str, Any]]:
    """pytest's last line for a file of tests, and what the plugin left."""
    file = folder / "tests" / "test_x.py"
    file.parent.mkdir()
    file.write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    plan = folder / "choice.json"
    Plan(deadline=time.time() + seconds, choice=CHOICE, least=1.0).write(plan)
    assert read_plan(plan).choice == CHOICE
    command = [sys.executable, "-m", "pytest", "-p", "quick.budget", "--choice", str(plan), "-q"]
    command += ["-n", "1", "--dist", "loadgroup", "--no-loadscope-reorder", *options, str(file)]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": f"{Path(__file__).parents[1]}:{folder}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    left = json.loads(plan.with_suffix(".left.json").read_text())
    return done.stdout + done.stderr, left


def test_runs_what_there_is_time_for(tmp_path: Path) -> None:
    tests = "def test_a(): pass\ndef test_b(): assert 1 == 2"
    out, left = run(tmp_path, tests, seconds=HANG_SECONDS)
    assert "1 failed, 1 passed" in out
    assert left["chosen"] == 2
    assert left["left"] == []


def test_what_is_left_ends_the_fixtures_of_the_test_before(tmp_path: Path) -> None:
    tests = (
        "class TestA:\n    def test_1(self): pass\n    def test_2(self): assert 1 == 2\n"
        "class TestB:\n    def test_3(self): pass\n"
    )
    (tmp_path / "left_two.py").write_text(
        "import quick.budget as budget\n"
        "budget.Budget.fits = lambda self, item, now: item.name != 'test_2'\n"
    )
    out, left = run(tmp_path, tests, "-p", "left_two", seconds=HANG_SECONDS)
    assert "2 passed, 1 skipped" in out
    assert [one.partition("@")[0] for one in left["left"]] == ["tests/test_x.py::TestA::test_2"]


def test_what_is_stopped_is_left_and_has_not_failed(tmp_path: Path) -> None:
    # whichever comes first on a slow machine: not begun, or stopped
    tests = "import threading\ndef test_a(): threading.Event().wait()"
    out, left = run(tmp_path, tests, seconds=2.5)
    assert left["chosen"] == 1
    assert [one.partition("@")[0] for one in left["left"]] == ["tests/test_x.py::test_a"]
    assert "failed" not in out
    assert "passed" not in out


def test_seconds_are_read_from_a_junit_report(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text(
        '<testsuites><testsuite><testcase classname="tests.a.test_x" name="test_a[b]" time="2.04"/>'
        '<testcase classname="tests.a.test_x" name="test_c" time="0.1"/>'
        '<testcase classname="tests.a.test_x" name="test_d" time="0.3"/>'
        '<testcase classname="tests.a.test_x" name="test_e" time="0"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    found = summarize(junit)
    one = FileSeconds(tests=3, seconds=2.4, slow={"test_a[b]": 2.0})
    assert found == {"tests/a/test_x.py": one}
    assert summarize(junit, 2.0)["tests/a/test_x.py"].seconds == 1.2
    assert one.estimate("test_a[b]") == 2.0
    assert one.estimate("test_c") == pytest.approx(0.2)
    write(found, tmp_path / "seconds.json")
    assert read(tmp_path / "seconds.json") == found


def test_what_changed_since_the_branch_left(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    def write_text(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)

    git("init", "-q", "-b", "main")
    for name in ("kept.py", "edited.py", "committed.py", "deleted.py", "moved.py"):
        write_text(name, name)
    write_text(".gitignore", "ignored.py")
    git("add", ".")
    git("commit", "-qm", "begin")
    assert list_changed(tmp_path) == []
    git("checkout", "-qb", "branch")
    write_text("committed.py", "new")
    git("commit", "-qam", "more")
    git("mv", "moved.py", "there.py")
    write_text("edited.py", "new")
    (tmp_path / "deleted.py").unlink()
    write_text("untracked one.py", "")
    write_text("ignored.py", "")
    git("branch", "-f", "other")
    assert list_changed(tmp_path) == [
        "committed.py", "deleted.py", "edited.py", "moved.py", "there.py", "untracked one.py",
    ]  # fmt: skip
    assert "committed.py" not in list_changed(tmp_path, "other")
