"""Nothing wrong passes, and nothing right is flagged."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from planted import table
from planted.catalog import FAULTS, RIGHT, Planted, find_op, op_names, planted
from planted.judging import SHARES, TIMED, red_of_fault

from tercet.harness.sandbox.isolate import Worker
from tercet.harness.seed import draw_seed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WRONG = [fault for fault in planted(FAULTS) if fault.device == "any" or DEVICE == "cuda"]
OWN = [
    (op.name, implementation.name)
    for op in map(find_op, op_names())
    for implementation in op.implementations
    if DEVICE in implementation.requirement.devices
    or not implementation.requirement.devices
    or (DEVICE == "cpu" and implementation.language == "triton")
]


def new_worker() -> Worker:
    return Worker(device=DEVICE, seconds=600.0, paths=(str(Path(__file__).parents[1]),))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors on few cores: a second thread costs more than it does (ten times, measured)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def workers(one_thread: None) -> Iterator[list[Worker]]:
    """One process judges all; one that a planted kernel ended is replaced."""
    del one_thread
    started = [new_worker()]
    yield started
    for worker in started:
        worker.close()


@pytest.fixture
def judge(workers: list[Worker]) -> Worker:
    if not workers[-1].alive:
        workers.append(new_worker())
    return workers[-1]


@pytest.mark.parametrize("fault", WRONG, ids=[fault.name for fault in WRONG])
def test_a_fault_is_caught_and_named(fault: Planted, judge: Worker, seed: int) -> None:
    if fault.hostile and fault.caught_by not in TIMED:
        # the check itself gives it a process of its own
        red = red_of_fault(str(fault.path), DEVICE, seed)
    elif fault.hostile:
        with new_worker() as alone:
            red = found(alone, fault, seed)
    else:
        red = found(judge, fault, seed)
    assert fault.caught_by in red, f"seed {seed}; red are {red}"


def found(worker: Worker, fault: Planted, seed: int) -> dict[str, str]:
    return worker.call(
        "planted.judging:red_of_fault", path=str(fault.path), device=DEVICE, seed=seed
    )


@pytest.mark.parametrize("right", planted(RIGHT), ids=[right.name for right in planted(RIGHT)])
def test_a_right_kernel_is_not_flagged(right: Planted, judge: Worker) -> None:
    for seed in (draw_seed(), draw_seed()):
        red = judge.call(
            "planted.judging:red_of_right",
            path=str(right.path),
            device=DEVICE,
            seed=seed,
            part=seed % SHARES,
        )
        assert red == {}, f"seed {seed}"


@pytest.mark.parametrize(("op", "implementation"), OWN)
def test_an_ops_own_implementation_is_not_flagged(
    op: str, implementation: str, judge: Worker, seed: int
) -> None:
    red = judge.call(
        "planted.judging:red_of_own",
        op=op,
        implementation=implementation,
        device=DEVICE,
        seed=seed,
        part=seed % SHARES,
    )
    assert red == {}, f"seed {seed}"


def test_there_are_enough() -> None:
    assert len(planted(FAULTS)) >= 44
    assert len(planted(RIGHT)) >= 6
    assert {fault.language for fault in planted(FAULTS)} == {"torch", "triton"}


def test_the_table_is_the_generated_one() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.page(), (
        "run `python tests/planted/table.py`"
    )
