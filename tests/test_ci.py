"""`.ci/run` on a tree of empty phases: what it prints, in which order, and how it ends."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
HANG_SECONDS = 600
JUNIT = (
    '<testsuites><testsuite><testcase classname="tests.a.test_x" name="test_fine"/>'
    '<testcase classname="tests.a.test_x" name="test_b[1]"><failure message="m">'
    "def test_b():\nline 1\nline 2\nline 3\nline 4\nE  assert 1 == 2\n\ntests/a/test_x.py:3"
    "</failure></testcase></testsuite></testsuites>"
)


def run(tree: Path, **targets: str) -> tuple[int, list[str]]:
    """Exit status and lines of `.ci/run`, with these commands as the Makefile's targets."""
    shutil.copytree(ROOT / ".ci", tree / ".ci", ignore=shutil.ignore_patterns("junit.xml"))
    (tree / ".venv" / "bin").mkdir(parents=True)
    (tree / ".venv" / "bin" / "python").symlink_to(sys.executable)
    phases = (".venv/.ready", "arm-tools", "style", "types", "contracts")
    named = dict.fromkeys(phases, "true")
    rules = (f"{name}:\n\t@{command}\n" for name, command in (named | targets).items())
    (tree / "Makefile").write_text(".PHONY: style types contracts test\n" + "".join(rules))
    environment = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [tree / ".ci" / "run"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_a_green_run_says_where_and_how_long(tmp_path: Path) -> None:
    status, lines = run(tmp_path, test="echo $$PYTEST_ADDOPTS")
    assert status == 0
    assert "--durations=20 --junitxml=.ci/junit.xml" in lines
    assert "ci: tests begins: make test" in lines
    order = [line.split()[1] for line in lines if " begins: " in line]
    assert order == ["install", "emulator", "environment", "style", "types", "contracts", "tests"]
    told = "\n".join(lines)
    for name in ("cpu", "instruction sets", "cores", "cpu quota", "python", "torch", "g++", "nvcc"):
        assert f"\nci: {name}: " in told
    assert lines[-1] == "ci: green"
    assert [line.split()[-1] for line in lines[-8:-1]] == order
    assert all(line.split()[1].isdigit() and line.split()[2] == "s" for line in lines[-8:-1])


def test_a_red_run_ends_with_the_tests_and_their_last_lines(tmp_path: Path) -> None:
    (tmp_path / "told.xml").write_text(JUNIT)
    status, lines = run(tmp_path, test="cp told.xml .ci/junit.xml; false")
    assert status != 0
    assert lines[-9:] == [
        "ci: failed: tests/a/test_x.py::test_b[1]",
        "    line 2",
        "    line 3",
        "    line 4",
        "    E  assert 1 == 2",
        "    ",
        "    tests/a/test_x.py:3",
        "ci: 1 failed",
        "ci: red: tests (exit status 2)",
    ]


def test_the_first_red_phase_ends_it(tmp_path: Path) -> None:
    status, lines = run(tmp_path, types="false", test="echo never")
    assert status != 0
    assert lines[-1] == "ci: red: types (exit status 2)"
    assert "never" not in lines


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "none found"),
        ({"cpu.max": "max 100000\n"}, "none"),
        ({"cpu.max": "50000 100000\n"}, "0.5 cores"),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "none"),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "2 cores"),
    ],
)
def test_the_quota_is_told(
    script: Callable[[str], ModuleType], tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert script(".ci/environment.py").describe_quota(tmp_path) == said
