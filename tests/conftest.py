"""Without a GPU, Triton's kernels are interpreted: this must be said before triton is imported."""

import importlib.util
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

if not os.path.exists("/dev/nvidia0"):
    os.environ["TRITON_INTERPRET"] = "1"

# `quick` and `planted`, which are packages
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from hypothesis import settings
from quick.order import Timed, shuffle, spread
from quick.seconds import estimate, read

import tercet.harness.seed
from tercet.harness.seed import draw_seed
from tercet.kernel.interpreter.corrections import correct, interpreting

if interpreting():
    correct()

# how long an example takes says how busy the machine is, not whether the code is right
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)

ROOT = Path(__file__).parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run in a drawn order")
    parser.addoption(
        "--fresh",
        action="store_true",
        help="draw inputs that no run had before, where others draw the same each time",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("fresh" if config.getoption("--fresh") else "same")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        terminalreporter.write_line(f"in a drawn order: --shuffle {seed} gives it again")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The first red wins time: units first, and no worker is left with the long tests alone."""
    recorded = read()
    tests: list[Timed[pytest.Item]] = []
    for item in items:
        file = item.path.relative_to(ROOT).as_posix()
        tests.append(Timed(item=item, file=file, seconds=estimate(recorded, file, item.name)))
    seed: int | None = config.getoption("--shuffle")
    if seed is not None:
        tests = shuffle(tests, seed)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = spread(tests, workers, recorded=seed is None)


@pytest.fixture(autouse=True)
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test draws without a seed follows from its name: green once is green again."""
    if not request.config.getoption("--fresh"):
        own = random.Random(request.node.nodeid)
        monkeypatch.setattr(tercet.harness.seed, "source", own)
        random.seed(request.node.nodeid)
        np.random.seed(own.getrandbits(32))
        torch.manual_seed(own.getrandbits(63))


@pytest.fixture
def seed() -> int:
    """Of what a test draws: the same in each run, but for --fresh."""
    return draw_seed()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A script of the repository as a module, by its path from the root."""

    def load(path: str) -> ModuleType:
        file = ROOT / path
        monkeypatch.syspath_prepend(file.parent)
        spec = importlib.util.spec_from_file_location(path.replace("/", "_")[:-3], file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # dataclasses look their module up
        monkeypatch.setitem(sys.modules, spec.name, module)
        # and what a script takes from the one beside it is this test's alone
        for beside in ("grid", "tables"):
            monkeypatch.setitem(sys.modules, beside, None)
            del sys.modules[beside]
        spec.loader.exec_module(module)
        return module

    return load
