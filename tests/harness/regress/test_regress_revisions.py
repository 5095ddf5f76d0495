"""Two revisions of a git repository, unpacked and timed in turn by real processes.

The op sets the clock of its process on by what it claims to take, with noise: how busy the machine
is changes nothing. The statistics' own limits are shown on simulated clocks too
(test_regress_noise.py), the real ones by benchmarks/kernels/regress_proof.py.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import tercet.kernel
from tercet.errors import UnsupportedError
from tercet.harness.regress.revisions import Row, Worker, compare_revisions, unpack_revision
from tercet.harness.regress.worker import time_row
from tercet.kernel.contract import Kernels, Run, Workload
from tercet.kernel.select import load
from tercet.ops.discover import find

PACKAGE = Path(tercet.kernel.__file__).parent.parent
BELOW = ("kernel", "formats", "records", "errors.py", "environment.py", "version.py")
OP = """
import random
import time
import torch
from tercet.kernel.contract import Axis, Cost, Implementation, Op, Requirement, TensorSpec

drawn = random.Random("{slow}")
spent = [0.0]
time.perf_counter = lambda: spent[0]

def run(x):
    spent[0] += ({slow} if x.numel() == 3 else 0.010) * (1 + abs(drawn.gauss(0, 0.02)))
    return x + 1

OP = Op(
    name="sleepy",
    axes=(Axis(name="M", meaning="rows"),),
    tensors=(
        TensorSpec(name="x", axes=("M",), dtypes=(torch.float32,)),
        TensorSpec(name="y", axes=("M",), dtypes=(torch.float32,), role="output"),
    ),
    run=run,
    reference=run,
    cost=lambda arguments: Cost(flops=0, bytes_read=0, bytes_written=0),
    cases=(),
    tolerances=(),
    implementations=(),
    inputs=lambda workload, seed, device: {{"x": torch.zeros(workload.sizes["M"])}},
)
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Revision `good`, `same` with equal speed, and `slow`: one shape takes 30 % longer."""
    root = tmp_path_factory.mktemp("repository")
    package = root / "src" / "tercet"
    (package / "ops" / "sleepy").mkdir(parents=True)
    for name in BELOW:
        source = PACKAGE / name
        if source.is_dir():
            shutil.copytree(source, package / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, package / name)
    for empty in (package, package / "ops", package / "ops" / "sleepy"):
        (empty / "__init__.py").touch()
    shutil.copy(PACKAGE / "ops" / "discover.py", package / "ops")
    git(root, "init", "--quiet")
    for tag, slow in (("good", "0.010"), ("same", "0.0100"), ("slow", "0.013")):
        (package / "ops" / "sleepy" / "op.py").write_text(OP.format(slow=slow))
        git(root, "add", ".")
        git(root, "commit", "--quiet", "-m", tag)
        git(root, "tag", tag)
    return root


def rows(*sizes: int) -> list[Row]:
    return [
        Row(
            op="sleepy",
            workload=f"shape {size}",
            sizes={"M": size},
            dtype="float32",
            options={},
            direction="forward",
        )
        for size in sizes
    ]


def test_exactly_the_planted_shape_is_flagged(repository: Path) -> None:
    told = list[str]()
    report = compare_revisions(
        rows(2, 3, 4),
        "good",
        "slow",
        repository=repository,
        passes=1,
        rounds=5,
        progress=told.append,
    )
    (found,) = report.of("regression")
    assert "shape 3" in found.row
    assert found.ratio == pytest.approx(1.3, abs=0.1)
    assert (report.before, report.after, report.device) == ("good", "slow", "cpu")
    assert told[0] == "pass 1 of 1: 3 rows"
    assert len(told) == 2


def test_identical_revisions_flag_nothing(repository: Path) -> None:
    report = compare_revisions(
        rows(2, 3), "good", "same", repository=repository, passes=2, rounds=3
    )
    assert report.passed


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_worker_times_the_kernels_of_that_direction(
    monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    op, calls = find("rms_norm"), {"forward": 0, "backward": 0}
    kernels = load(op, "torch")

    def counted(name: str, run: Run) -> Run:
        def count(*arguments: object) -> object:
            calls[name] += 1
            return run(*arguments)

        return count

    assert kernels.gradient is not None
    watched = Kernels(
        forward=counted("forward", kernels.forward), gradient=counted("backward", kernels.gradient)
    )
    monkeypatch.setattr("tercet.harness.regress.worker.load", lambda *_: watched)
    workload = Workload(name="norm", sizes={"M": 8, "N": 64}, options={"residual": True})
    timed = time_row(op, workload, direction, "torch", "cpu")
    calls.update(forward=0, backward=0)
    seconds = timed(3)
    assert len(seconds) == 3
    assert all(1e-7 < each < 1 for each in seconds)
    assert calls[direction] >= 3
    assert sum(calls.values()) == calls[direction]


def test_the_repository_is_left_as_it_was(repository: Path) -> None:
    with unpack_revision(repository, "slow") as tree:
        assert (tree / "src" / "tercet" / "ops" / "sleepy" / "op.py").exists()
        assert tree != repository
    assert not tree.exists()
    with unpack_revision(repository, ".") as tree:
        assert tree.samefile(repository)


def test_what_cannot_be_timed_is_said(repository: Path) -> None:
    with pytest.raises(UnsupportedError, match="nowhere"):
        compare_revisions(rows(2), "good", "nowhere", repository=repository, passes=2, rounds=3)
    with pytest.raises(UnsupportedError, match="no rows"):
        compare_revisions([], "good", "slow", repository=repository)
    with pytest.raises(UnsupportedError, match="at least 5"):
        compare_revisions(rows(2), "good", "slow", repository=repository, passes=1, rounds=4)


def test_an_op_that_one_revision_lacks_is_named(repository: Path) -> None:
    unknown = rows(2)[0].model_copy(update={"op": "drowsy"})
    with pytest.raises(UnsupportedError, match="ended at chosen forward shape 2"):
        compare_revisions([unknown], "good", "slow", repository=repository, passes=2, rounds=3)


def test_a_tree_outside_of_git_is_timed_where_it_lies(repository: Path, tmp_path: Path) -> None:
    with unpack_revision(tmp_path, str(repository)) as tree:
        assert tree == repository
    assert (repository / "src" / "tercet").is_dir()
    with (
        pytest.raises(UnsupportedError, match="no tree of Tercet"),
        unpack_revision(Path(), "/proc"),
    ):
        pass


def test_what_was_on_the_path_stays_there(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = str(PACKAGE.parent), str(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(before))
    worker = Worker(repository, "cpu")
    try:
        worker.greet()
        environment = Path(f"/proc/{worker.pid}/environ").read_text().split("\0")
    finally:
        worker.close()
    path = next(each for each in environment if each.startswith("PYTHONPATH="))
    assert path == f"PYTHONPATH={os.pathsep.join((str(repository / 'src'), *before))}"
