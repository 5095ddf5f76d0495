"""What the command line imports, and when."""

import gc
import subprocess
import sys

import pytest

from tercet.cli.lazy import importing


def output_of(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_help_and_a_wrong_option_of_run_import_no_torch() -> None:
    code = """
import sys
from tercet.cli.main import app
from tercet.errors import UnsupportedError
for words in (["run", "--help"], ["run", "nowhere", "--prompt", "a", "--max-tokens", "0"]):
    try:
        app(words, standalone_mode=False)
    except UnsupportedError as error:
        print(error)
print("torch" in sys.modules)
"""
    assert output_of(code)[-2:] == ["max_new_tokens 0: must be at least 1", "False"]


def test_what_the_first_import_of_torch_makes_is_frozen() -> None:
    code = """
import gc
from tercet.cli.lazy import importing
with importing():
    print(gc.isenabled(), gc.get_freeze_count())
    import torch
print(gc.isenabled(), gc.get_freeze_count() > 100_000)
count = gc.get_freeze_count()
with importing():
    print(gc.isenabled())
print(gc.get_freeze_count() == count)
"""
    assert output_of(code) == ["False 0", "True True", "True", "True"]


def test_a_failed_import_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    frozen = gc.get_freeze_count()
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
