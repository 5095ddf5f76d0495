"""Discover: finds operations by the folders that they are in."""

import importlib.util
import pkgutil
import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from tercet.errors import TercetError, UnsupportedError, unknown_name
from tercet.kernel.contract import Op
from tercet.kernel.exits_raise import exits_raise
from tercet.kernel.register import folder_of
from tercet.kernel.source_place import source_place

_FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Every op's name: each folder of `tercet.ops` has an op.py that exports OP."""
    return tuple(module.name for module in pkgutil.iter_modules([str(_FOLDER)]) if module.ispkg)


@lru_cache(maxsize=1)
def discover() -> dict[str, Op]:
    """Every op by name. UnsupportedError, with the line, for one that cannot be imported."""
    return {name: find(name) for name in names()}


def find(name: str) -> Op:
    """The op of that name, or the one in the folder that `name` is the path of.

    A folder outside of the package is imported as `tercet.ops.<folder's name>`.

    Raises:
        UnsupportedError: for a name that is neither, with the names that come near; for an op whose
            files cannot be imported, with the line that is to blame.
    """
    if name in names():
        return _import(_FOLDER / name)
    folder = Path(name).resolve()
    if not (folder / "op.py").is_file():
        raise UnsupportedError(
            f"{unknown_name('op', name, names())}; or give the path of a folder with an op.py"
        )
    if folder.name in names() and folder != _FOLDER / folder.name:
        raise UnsupportedError(
            f"{folder}: the package has an op {folder.name!r} of its own: give the folder another "
            "name"
        )
    return _import(folder)


def address_of(op: Op) -> str:
    """What `find` finds the op by: its name, or the path of its folder outside the package."""
    return op.name if op.name in names() else str(folder_of(op.name))


def _import(folder: Path) -> Op:
    """The op of a folder whose files may be half written."""
    package = f"tercet.ops.{folder.name}"
    try:
        with exits_raise():
            if package not in sys.modules:
                _import_package(package, folder)
            module = import_module(f"{package}.op")
    except TercetError:
        raise
    # an author's file may raise anything, an exit among it, which would pass for a green check
    except (Exception, SystemExit) as error:
        place = source_place(error, folder) or "op.py"
        raise UnsupportedError(
            f"{folder / place}: {type(error).__name__}: {error}: the op cannot be imported"
        ) from error
    op = getattr(module, "OP", None)
    if not isinstance(op, Op):
        raise UnsupportedError(f"{folder / 'op.py'}: it needs an OP, which is an Op; OP is {op!r}")
    if op.name != folder.name:
        raise UnsupportedError(
            f"{folder / 'op.py'}: OP is named {op.name!r} and its folder {folder.name!r}: "
            "give both one name"
        )
    return op


def _import_package(package: str, folder: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[package]
        raise
