"""Environment variables: read in one place; OpenMP's are set before torch reads them."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tercet
from tercet import environment
from tercet.errors import UnsupportedError

SOURCE = Path(tercet.__file__).parent
ALLOWED = {
    "child_process/child.py": "passes it on to the process that it starts",
    "child_process/serve.py": "has its parent's in place of that of the process it is a fork of",
    "cli/kernel/mutate.py": "passes it on to itself under Triton's interpreter",
    "environment.py": "the one place",
    "harness/cross_compile/run.py": "passes it on to the process that compiles",
    "harness/mutate/mutant_check.py": "sets a cache of its own in the process of one mutant",
    "harness/regress/revisions.py": "passes it on to a process of another revision",
    "harness/sandbox/state.py": "compares it before and after a judged call",
    "harness/sandbox/isolate.py": "passes it on to the process in which a kernel is judged",
    "workflows/fresh_process.py": "passes it on to the process of one call",
    "packed_weight/peers/humming.py": "tells a peer's library which compiler to use",
}
SHOW = (
    "import os, tercet, torch; "
    "print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_NUM_THREADS'), "
    "torch.get_num_threads())"
)


def reads_environment(tree: ast.AST) -> bool:
    names = {"environ", "environb", "getenv", "getenvb", "putenv"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and any(one.name in names for one in node.names))
        for node in ast.walk(tree)
    )


def test_no_other_place_reads_the_environment() -> None:
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if reads_environment(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(ALLOWED)


def shown(**variables: str) -> list[str]:
    """GOMP_SPINCOUNT, OMP_NUM_THREADS and torch's threads in a fresh process."""
    unset = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_waiting_threads_spin_briefly() -> None:
    spins, _, threads = shown()
    assert spins == str(environment.SPINS)
    assert int(threads) <= len(os.sched_getaffinity(0))


def test_what_the_user_sets_stays() -> None:
    assert shown(GOMP_SPINCOUNT="77", OMP_NUM_THREADS="1") == ["77", "1", "1"]
    assert shown(OMP_WAIT_POLICY="active")[0] == "None"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_control_group(
    files: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert environment._cpu_quota(tmp_path) == expected


def test_a_quota_limits_the_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(environment, "_CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("OMP_NUM_THREADS")
    environment.set_thread_defaults()
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    environment.set_thread_defaults()
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_what_a_launcher_left_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert (environment.rank(), environment.local_rank(), environment.world_size()) == (0, 0, 1)
    # of a process that is alone, whatever it was of
    monkeypatch.setenv("RANK", "1")
    assert environment.rank() == 0
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UnsupportedError, match=r"WORLD_SIZE='two': torchrun sets a whole number"):
        environment.world_size()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert environment.rank() == 1
    with pytest.raises(UnsupportedError, match=r"WORLD_SIZE=2, but not MASTER_ADDR, MASTER_PORT"):
        environment.check_launched()
