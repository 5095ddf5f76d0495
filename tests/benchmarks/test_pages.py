"""Every page with tables is as its script makes it from the committed records."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = (
    "benchmarks/tables.py",
    "benchmarks/compress/tables.py",
    "benchmarks/cpus/tables.py",
    "benchmarks/decoder/tables.py",
    "benchmarks/exports/tables.py",
    "benchmarks/kernels/goals.py",
    "benchmarks/kernels/tables.py",
    "benchmarks/mutation/tables.py",
    "benchmarks/training/smollm2/tables.py",
    "benchmarks/training/tables.py",
)


def test_all_scripts_of_tables_are_here() -> None:
    named = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/**/tables.py")}
    assert named <= set(SCRIPTS)


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_page_is_up_to_date(path: str, script: Callable[[str], ModuleType]) -> None:
    for page, text in script(path).pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page}: run python {path}"
