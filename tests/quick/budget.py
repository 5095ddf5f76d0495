"""Budget: a pytest plugin that runs chosen tests, nearest first, and starts none it cannot end.

    python -m pytest -p quick.budget --choice FILE

A test that is still running when the time is up is stopped and counts as left: a budget decides
how much is run, never whether a test passes.
"""

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from quick.choice import Choice
from quick.seconds import Seconds, estimate, read

# a worker takes groups of tests of one file, which share fixtures; a long group would idle others
_GROUP_SECONDS = 8.0
_LEAST_SECONDS = 15.0
# of tests as fast as recorded, that are taken to have run before the first
_PRIOR_SECONDS = 2.0


class OutOfTime(BaseException):
    """Not an Exception: what is tested may catch those."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run until when.

    Attributes:
        deadline: as time.time() tells it, the same in every process.
        choice: the tests.
        least: seconds for tests, however long it took to collect them.
    """

    deadline: float
    choice: Choice
    least: float = _LEAST_SECONDS

    def write(self, path: Path) -> None:
        """As JSON, for the processes that run tests."""
        path.write_text(json.dumps(asdict(self)), "utf-8")


def read_plan(path: Path) -> Plan:
    """What `write` wrote."""
    found = json.loads(path.read_text("utf-8"))
    tuples = {name: tuple(found["choice"].pop(name)) for name in ("by_op", "direct")}
    found["choice"] = Choice(**found["choice"], **tuples)
    return Plan(**found)


class Budget:
    """What one process has spent and left."""

    def __init__(self, plan: Plan, root: Path, seconds: Seconds) -> None:
        self._plan, self._deadline = plan, plan.deadline
        self._root = root
        self._seconds = seconds
        self._spent = self._estimated = 0.0
        self.chosen = 0
        self.left: list[str] = []

    def distance_of(self, item: pytest.Item) -> int | None:
        """Of one test from the change; None where the change cannot reach it."""
        return self._plan.choice.distance_of(self._file_of(item), parameters_of(item))

    def begin(self, now: float) -> None:
        """The tests are collected: where that took most of the budget, a few run beyond it."""
        self._deadline = max(self._plan.deadline, now + self._plan.least)

    def estimate(self, item: pytest.Item) -> float:
        """Seconds that the recorded run took for it."""
        return estimate(self._seconds, self._file_of(item), item.name)

    def fits(self, item: pytest.Item, now: float) -> bool:
        """Whether the test would end in time, on a machine that has been as slow as this one."""
        slower = (self._spent + _PRIOR_SECONDS) / (self._estimated + _PRIOR_SECONDS)
        return now + slower * self.estimate(item) < self._deadline

    def spend(self, item: pytest.Item, seconds: float) -> None:
        """Adds what a test took."""
        self._spent += seconds
        self._estimated += self.estimate(item)

    def remaining(self, now: float) -> float:
        """Seconds; at least a little, because a timer of 0 never rings."""
        return max(0.01, self._deadline - now)

    def _file_of(self, item: pytest.Item) -> str:
        return item.path.relative_to(self._root).as_posix()


def parameters_of(item: pytest.Item) -> str:
    """What stands in the brackets of its name."""
    callspec: Any = getattr(item, "callspec", None)
    return callspec.id if callspec else ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--choice", type=Path, help="what to run, as JSON; of `make quick`")


def pytest_configure(config: pytest.Config) -> None:
    plan = read_plan(config.getoption("--choice"))
    config.pluginmanager.register(_Plugin(Budget(plan, config.rootpath, read())), "spending")


class _Plugin:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._total: dict[str, Any] = {"chosen": 0, "left": [], "ran": 0}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Nearest first; in groups, before xdist hands them out (which is last of all)."""
        near = [(at, item) for item in items if (at := self._budget.distance_of(item)) is not None]
        kept = {id(item) for _, item in near}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        of_file: dict[tuple[int, Path], float] = {}
        for at, item in near:
            key = (at, item.path)
            of_file[key] = of_file.get(key, 0.0) + self._budget.estimate(item)
        near.sort(key=lambda one: (one[0], of_file[one[0], one[1].path], one[1].path))
        items[:] = [item for _, item in near]
        self._budget.chosen = len(items)
        self._budget.begin(time.time())
        begun: dict[Path, tuple[int, float]] = {}
        for item in items:
            number, full = begun.get(item.path, (0, 0.0))
            full += self._budget.estimate(item)
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{number}"))
            begun[item.path] = (number + 1, 0.0) if full > _GROUP_SECONDS else (number, full)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Not by leaving out its whole protocol: that ends the fixtures of the test before too."""
        if not self._budget.fits(item, time.time()):
            self._budget.left.append(item.nodeid)
            pytest.skip("left: it would not end in time")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Rings at the deadline: a changed kernel may take minutes to compile."""
        signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, self._budget.remaining(time.time()))
        begun = time.perf_counter()
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            self._budget.spend(item, time.perf_counter() - begun)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if call.excinfo is not None and call.excinfo.errisinstance(OutOfTime):
            self._budget.left.append(item.nodeid)
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, "Skipped: stopped at the end of the budget")
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: Any = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["quick"] = {"chosen": self._budget.chosen, "left": self._budget.left}

    def pytest_testnodedown(self, node: Any) -> None:
        """In the process that starts the others: each has the whole choice, and ran a part."""
        found = getattr(node, "workeroutput", {}).get("quick", {"chosen": 0, "left": []})
        self._total["chosen"] = max(self._total["chosen"], found["chosen"])
        self._total["left"] += found["left"]

    def pytest_terminal_summary(self, config: pytest.Config) -> None:
        path: Path = config.getoption("--choice")
        path.with_suffix(".left.json").write_text(json.dumps(self._total), "utf-8")


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise OutOfTime
