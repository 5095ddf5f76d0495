"""Graph: what each file of the repository stands on: imports, includes, names of modules and files.

An edge costs 1 where a file uses another by name, LOOSE where a whole folder is looked through or
a package's `__init__` only runs on the way: what is nearer to a change is the better test of it.
"""

import ast
import heapq
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

SOURCE = "src/tercet"
EXAMPLE = "docs/guides/examples/gelu_gate"
TESTS = "tests"
CPP = (".cpp", ".hpp", ".h", ".cu", ".cuh")
USED = 1
LOOSE = 4
# what pytest and every test stand on, though nothing imports it
SETTINGS = ("pyproject.toml", "constraints.txt", f"{TESTS}/conftest.py")

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_MODULE = re.compile(r"\btercet(?:\.\w+)+")

# of "tercet.ops."
_DOTS_OF_ALL_OPS = 2

Edges = dict[str, int]


class Graph:
    """Of all files, by their paths from the root.

    Args:
        root: of the repository.
        files: paths from the root; also of files that are no more, so that who names them is found.
    """

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self.root = root
        self.files = dict.fromkeys(sorted(files))
        self.modules = {name: file for file in self.files if (name := module_of(file))}
        self._discovered = _find_by_name(self.modules)

    @cached_property
    def folders(self) -> dict[str, list[str]]:
        """Folder -> the files at any depth below it."""
        found: dict[str, list[str]] = {}
        for file in self.files:
            for folder in Path(file).parents[:-1]:
                found.setdefault(folder.as_posix(), []).append(file)
        return found

    @cached_property
    def edges(self) -> dict[str, Edges]:
        """File -> what it stands on -> cost."""
        found = {file: self._edges_of(file) for file in self.files}
        named = {target for edges in found.values() for target, cost in edges.items() if cost == 1}
        for file in self.files:
            if file not in named and not file.endswith(".py"):
                for user in self._users_by_folder(file):
                    found[user].setdefault(file, LOOSE if file.endswith(".md") else USED)
        return found

    def distances(
        self,
        changed: Iterable[str],
        *,
        loose: bool = True,
        without: Collection[tuple[str, str]] = (),
    ) -> dict[str, int]:
        """The cost of the cheapest path to any changed file, of each file that has one.

        Args:
            changed: files.
            loose: False follows only what uses another by name.
            without: (user, used): edges that are not followed.
        """
        users: dict[str, Edges] = {}
        for file, targets in self.edges.items():
            for target, cost in targets.items():
                if (loose or cost < LOOSE) and (file, target) not in without:
                    users.setdefault(target, {})[file] = cost
        found: dict[str, int] = {}
        queue = [(0, file) for file in changed]
        heapq.heapify(queue)
        while queue:
            at, file = heapq.heappop(queue)
            if file in found:
                continue
            found[file] = at
            for user, cost in users.get(file, {}).items():
                heapq.heappush(queue, (at + cost, user))
        return found

    def _edges_of(self, file: str) -> Edges:
        path = self.root / file
        if not path.is_file():
            return {}
        if file.endswith(".py"):
            found = self._python_edges(file, path.read_text("utf-8"))
        elif is_cpp(file):
            found = dict.fromkeys(self._includes(file, path.read_text("utf-8")), USED)
        else:
            return {}
        found.pop(file, None)
        return found

    def _includes(self, file: str, text: str) -> Iterator[str]:
        """The headers it names: beside it, then in the package, as the build looks for them."""
        for name in _INCLUDE.findall(text):
            for folder in (Path(file).parent.as_posix(), SOURCE):
                if (header := _normal(f"{folder}/{name}")) in self.files:
                    yield header
                    break

    def _users_by_folder(self, file: str) -> list[str]:
        """Who reads a file that no one names: its op, or the modules of the nearest folder."""
        for folder in Path(file).parents[:-1]:
            beside = [
                one
                for one in self.folders[folder.as_posix()]
                if one.endswith(".py") and Path(one).parent == folder
            ]
            if (op := f"{folder.as_posix()}/op.py") in beside:
                return [op]
            if beside:
                return beside
        return []

    def _python_edges(self, file: str, text: str) -> Edges:
        found: Edges = {}

        def add(target: str | None, cost: int = USED) -> None:
            if target is not None:
                found[target] = min(cost, found.get(target, cost))

        tree = ast.parse(text)
        prose = _docstrings(tree)
        commands = "tercet.cli" in text
        # what looks through all ops anyhow means none of them by its name
        bare = not file.startswith(SOURCE) and "discover()" not in text
        # a group of commands names all of them, and runs the one that is asked for
        loose = LOOSE if file.startswith(f"{SOURCE}/cli/") else USED
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    for name in names:
                        self._add_module(add, file, name.name)
                case ast.ImportFrom(module=module, level=level, names=names):
                    base = _absolute(file, module, level)
                    for name in names:
                        self._add_name(add, file, base, name.name)
                case ast.JoinedStr():
                    for target, cost in self._matching(node):
                        add(target, cost)
                case ast.Attribute(attr="iter_modules") | ast.Name(id="iter_modules"):
                    for target in self._siblings(file):
                        add(target, LOOSE)
                case ast.BinOp(op=ast.Div()):
                    for target, cost in self._at_path(file, _joined(node)):
                        add(target, cost)
                case ast.Constant(value=str(value)) if id(node) not in prose:
                    # "tercet.ops." begins a name that an f-string ends
                    for name in () if value.endswith(".") else _MODULE.findall(value):
                        add(self._longest(name), loose)
                    for target, command in self._discovered.get(value, {}).items():
                        if bare and (commands or not command):
                            add(target)
                    if "." in value or "/" in value:
                        for target, cost in self._at_path(file, value):
                            add(target, cost)
                case _:
                    pass
        if file.startswith(f"{TESTS}/"):
            for folder in Path(file).parents[:-1]:
                conftest = f"{folder.as_posix()}/conftest.py"
                add(conftest if conftest in self.files else None)
        if file == f"{TESTS}/conftest.py":
            for name in SETTINGS:
                add(name if name in self.files else None)
        return found

    def _add_module(self, add: Callable[..., None], file: str, name: str) -> None:
        """The module itself, and its packages, which only run on the way."""
        parts = name.split(".")
        for count in range(1, len(parts)):
            add(self._find(file, ".".join(parts[:count])), LOOSE)
        add(self._find(file, name))

    def _add_name(self, add: Callable[..., None], file: str, base: str, name: str) -> None:
        """Of `from base import name`: base, and where it has the name from."""
        if self._find(file, f"{base}.{name}"):
            self._add_module(add, file, f"{base}.{name}")
            return
        if (handed := self._handed_on.get(base, {}).get(name)) is not None:
            add(self._find(file, handed))
        self._add_module(add, file, base)

    @cached_property
    def _handed_on(self) -> dict[str, dict[str, str]]:
        """Package -> name that its `__init__` hands on -> the module that it comes from."""
        found: dict[str, dict[str, str]] = {}
        for package, file in self.modules.items():
            if not file.endswith("/__init__.py") or not (self.root / file).is_file():
                continue
            for node in ast.parse((self.root / file).read_text("utf-8")).body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = found.setdefault(package, {})
                    names |= {name.asname or name.name: node.module for name in node.names}
        return found

    def _find(self, file: str, name: str) -> str | None:
        """The file of a module: of the package, or one beside or above the file that imports it."""
        if name in self.modules:
            return self.modules[name]
        if name.split(".")[0] == "tercet":
            return None
        for folder in Path(file).parents[:-1]:
            path = f"{folder.as_posix()}/{name.replace('.', '/')}"
            for one in (f"{path}.py", f"{path}/__init__.py"):
                if one in self.files:
                    return one
        return None

    def _longest(self, name: str) -> str | None:
        while name != "tercet":
            if name in self.modules:
                return self.modules[name]
            name = name.rpartition(".")[0]
        return None

    def _matching(self, text: ast.JoinedStr) -> Iterator[tuple[str, int]]:
        """The modules that an f-string such as f"tercet.ops.{name}.op" may name.

        Those of one op, as in f"tercet.ops.softmax.{name}", are used by name.
        """
        pattern = "".join(
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "*"
            for part in text.values
        )
        if pattern.startswith("tercet.") and "*" in pattern:
            cost = USED if pattern.partition("*")[0].count(".") > _DOTS_OF_ALL_OPS else LOOSE
            for name, file in self.modules.items():
                if name.count(".") == pattern.count(".") and fnmatchcase(name, pattern):
                    yield file, cost

    def _siblings(self, file: str) -> Iterator[str]:
        folder = Path(file).parent.as_posix()
        for one in self.folders[folder]:
            inside = one.removeprefix(f"{folder}/")
            if one.endswith(".py") and (
                "/" not in inside or (inside.count("/") == 1 and inside.endswith("/__init__.py"))
            ):
                yield one

    def _at_path(self, file: str, path: str) -> Iterator[tuple[str, int]]:
        """The file, or all files of the folder, that a path written in a file may lead to."""
        path = _normal(path)
        if not path or "\n" in path or " " in path:
            return
        bases = [folder.as_posix() for folder in Path(file).parents]
        for base in (*bases[:-1], SOURCE, ""):
            one = _normal(f"{base}/{path}" if base else path)
            if one in self.files:
                yield one, USED
                return
            if one in self.folders:
                for below in self.folders[one]:
                    yield below, LOOSE
                return


def is_cpp(file: str) -> bool:
    """Whether it is C++ or CUDA, a header or a source."""
    return file.endswith(CPP)


def module_of(file: str) -> str | None:
    """The dotted name of a file of the package, or of the guide's op, which lies in it by name."""
    if not file.endswith(".py"):
        return None
    for folder, package in ((SOURCE, "tercet"), (EXAMPLE, "tercet.ops.gelu_gate")):
        if file.startswith(f"{folder}/"):
            inside = file.removeprefix(f"{folder}/")[:-3].split("/")
            return ".".join((package, *inside)).removesuffix(".__init__")
    return None


def _find_by_name(modules: Mapping[str, str]) -> dict[str, dict[str, bool]]:
    """What a test may ask for by its bare name -> its modules -> whether that is a command."""
    found: dict[str, dict[str, bool]] = {}
    for name, file in modules.items():
        match name.split("."):
            case ["tercet", "ops", op, "op"]:
                found.setdefault(op, {})[file] = False
            case ["tercet", ("compress" | "models"), ("ptq" | "architectures"), one]:
                found.setdefault(one, {})[file] = False
            case ["tercet", "export", one]:
                found.setdefault(one, {})[file] = False
            case ["tercet", "cli", one] | ["tercet", "cli", "kernel", one]:
                found.setdefault(one.rstrip("_"), {})[file] = True
            case _:
                pass
    return found


def _docstrings(tree: ast.AST) -> set[int]:
    """The constants that stand alone: they are read by people."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _joined(node: ast.BinOp) -> str:
    """The strings at the end of a / b / "c" / "d" as one path; none below a test's own folder."""
    parts: list[str] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and isinstance(left.op, ast.Div):
        if not (isinstance(left.right, ast.Constant) and isinstance(left.right.value, str)):
            parts.clear()
        else:
            parts.append(left.right.value)
        left = left.left
    if isinstance(left, ast.Name) and left.id.startswith("tmp"):
        return ""
    return "/".join(reversed(parts))


def _absolute(file: str, module: str | None, level: int) -> str:
    if not level:
        return module or ""
    package = (module_of(file) or "").split(".")
    if not file.endswith("__init__.py"):
        package = package[:-1]
    return ".".join((*package[: len(package) - level + 1], *([module] if module else [])))


def _normal(path: str) -> str:
    parts: Sequence[str] = []
    for part in path.split("/"):
        if part == ".." and parts:
            parts = parts[:-1]
        elif part not in ("", "."):
            parts = [*parts, part]
    return "/".join(parts)
