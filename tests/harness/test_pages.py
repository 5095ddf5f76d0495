"""Every page with tables is as its script makes it from the committed records."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = (
    "benchmarks/tables.py",
    "benchmarks/exports/tables.py",
    "benchmarks/kernels/goals.py",
    "benchmarks/kernels/tables.py",
    "benchmarks/training/smollm2/tables.py",
    "benchmarks/training/tables.py",
)


def test_all_scripts_of_tables_are_here() -> None:
    named = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/**/tables.py")}
    assert named <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_page_is_up_to_date(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend((ROOT / script).parent)
    # what a script takes from the one beside it
    monkeypatch.setitem(sys.modules, "tables", None)
    del sys.modules["tables"]
    for path, text in runpy.run_path(str(ROOT / script))["pages"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python {script}"
