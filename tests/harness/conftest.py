import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


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
        monkeypatch.setitem(sys.modules, "tables", None)
        del sys.modules["tables"]
        spec.loader.exec_module(module)
        return module

    return load
