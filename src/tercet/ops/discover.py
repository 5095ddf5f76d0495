"""Discover: finds operations by the folders that they are in."""

import importlib.util
import pkgutil
import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from tercet.errors import UnsupportedError, unknown_name
from tercet.kernel.contract import Op

_FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Every op's name: each folder of `tercet.ops` has an op.py that exports OP."""
    return tuple(module.name for module in pkgutil.iter_modules([str(_FOLDER)]) if module.ispkg)


@lru_cache(maxsize=1)
def discover() -> dict[str, Op]:
    """Every op by name."""
    return {name: import_module(f"tercet.ops.{name}.op").OP for name in names()}


def find(name: str) -> Op:
    """The op of that name, or the one in the folder that `name` is the path of.

    A folder outside of the package is imported as `tercet.ops.<folder's name>`. UnsupportedError
    for a name that is neither, with the names that come near.
    """
    if name in names():
        return import_module(f"tercet.ops.{name}.op").OP
    folder = Path(name).resolve()
    if not (folder / "op.py").is_file():
        raise UnsupportedError(
            f"{unknown_name('op', name, names())}; or give the path of a folder with an op.py"
        )
    package = f"tercet.ops.{folder.name}"
    if package not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[package] = module
        spec.loader.exec_module(module)
    return import_module(f"{package}.op").OP
