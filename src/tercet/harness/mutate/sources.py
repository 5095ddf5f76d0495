"""Sources: the files that an implementation is made of."""

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

from tercet.kernel.contract import Implementation
from tercet.kernel.jit.cpp import headers_of

# arguments: what a call refuses is seen by the op's tests, not by a check of what it computes
_NOT_KERNELS = {"op", "reference", "cases", "baselines", "arguments", "__init__"}
_NATIVE = (".cpp", ".cu")


def modules_of(implementation: Implementation) -> dict[str, Path]:
    """The modules of this package that an implementation imports, itself first: name -> file."""
    found, unread = dict[str, Path](), [implementation.module]
    while unread:
        name = unread.pop()
        path = _file_of(name)
        if name in found or path is None or path.stem == "__init__":
            continue
        found[name] = path
        unread += sorted(imported_by(path))
    return found


def sources_of(implementation: Implementation) -> list[Path]:
    """What is changed to make mutants: its modules in the op's folder, and its C++ with headers."""
    modules = modules_of(implementation)
    folder = modules[implementation.module].parent
    own = [path for path in modules.values() if path.parent == folder]
    native = dict[Path, None]()
    for path in modules.values() if implementation.language in ("cpp", "cuda") else ():
        for text in _texts(path):
            source = path.parent / text
            if source.suffix in _NATIVE and source.is_file():
                native |= dict.fromkeys((source.resolve(), *headers_of(source)))
    return [path for path in own if path.stem not in _NOT_KERNELS] + list(native)


def importers_of(changed: Path, modules: dict[str, Path]) -> list[str]:
    """The modules to import anew when one changes: it and whatever imports it, in this order."""
    edges = {name: imported_by(path) for name, path in modules.items()}
    found = [name for name, path in modules.items() if path == changed]
    for name in found:
        found += [one for one, imports in edges.items() if name in imports and one not in found]
    return found


def imported_by(path: Path) -> set[str]:
    """The names of this package's modules in a file's imports."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tercet."):
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            names |= {each.name for each in node.names if each.name.startswith("tercet.")}
    return names


def _file_of(name: str) -> Path | None:
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file) if file else None
    try:
        spec = find_spec(name)
    except (ImportError, AttributeError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _texts(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [value for value in constants if isinstance(value, str) and value.endswith(_NATIVE)]
