"""Choice: which tests a change can break, the most direct first."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quick.graph import LOOSE, SOURCE, TESTS, Graph

# two folders looked through, one after another, lead from everything to everything
FARTHEST = 2 * LOOSE - 1
_DISCOVER = f"{SOURCE}/ops/discover.py"
# a file of tests that has it from the file beside
_NEAR_DISCOVER = 2


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What stands on a change, and how near.

    Attributes:
        files: file of tests -> distance.
        ops: op -> implementation -> distance; "" is the op itself, whatever the implementation.
        own: files of tests whose tests of any op stand on the change, not only those of `ops`.
        by_op: files that hold tests of every op.
        all_ops: every op -> its implementations.
        direct: files of tests that use a changed file by name, through others too.
    """

    files: Mapping[str, int]
    ops: Mapping[str, Mapping[str, int]]
    own: Mapping[str, int]
    by_op: tuple[str, ...]
    all_ops: Mapping[str, tuple[str, ...]]
    direct: tuple[str, ...]

    def distance_of(self, file: str, parameters: str) -> int | None:
        """Of one test; None where the change cannot reach it.

        Args:
            file: from the root.
            parameters: the test's, as in its name's brackets: one that begins with an op's name
                is a test of this op, and of an implementation where its name follows.
        """
        op = self._op_of(parameters)
        if op is None or file not in self.by_op:
            return self.files.get(file)
        near = self.ops.get(op, {})
        one = parameters.removeprefix(op)[1:]
        found = [near.get(one)] if one in self.all_ops[op] else near.values()
        reached = [at for at in (*found, self.own.get(file)) if at is not None]
        return min(reached, default=None)

    def nearest(self) -> list[tuple[int, str]]:
        """The distance of each file's nearest test, and the file, in this order."""
        found = dict(self.files)
        near = [at for ones in self.ops.values() for at in ones.values()]
        for file in self.by_op if near else ():
            found[file] = min(min(near), found.get(file, min(near)))
        return sorted((at, file) for file, at in found.items())

    def _op_of(self, parameters: str) -> str | None:
        fitting = [
            op
            for op in self.all_ops
            if parameters == op or parameters.startswith((f"{op}-", f"{op}_"))
        ]
        return max(fitting, key=len, default=None)


def choose(graph: Graph, changed: Iterable[str]) -> Choice:
    """The tests that stand on the changed files, unless two whole folders lie between."""
    changed = list(changed)
    modules = {op: _implementations(graph, file) for op, file in _ops(graph).items()}
    through = {
        (file, module) for op, file in _ops(graph).items() for module in modules[op].values()
    }
    near = graph.distances(changed, loose=False, without=through)
    ops: dict[str, dict[str, int]] = {}
    for op, file in _ops(graph).items():
        for name, module in modules[op].items():
            reached = [near[one] for one in (file, module) if one in near]
            if reached:
                ops.setdefault(op, {})[name] = 1 + min(reached)
        if file in near:
            ops.setdefault(op, {})[""] = 1 + near[file]
    direct = graph.distances(changed, loose=False)
    files = {
        file: at
        for file, at in graph.distances(changed).items()
        if is_test(file) and (at <= FARTHEST or file in direct)
    }
    return Choice(
        files={file: min(at, direct.get(file, at)) for file, at in files.items()},
        ops=ops,
        own={file: at for file, at in near.items() if is_test(file)},
        by_op=tuple(
            file
            for file, at in graph.distances([_DISCOVER], loose=False).items()
            if is_test(file) and at <= _NEAR_DISCOVER
        ),
        all_ops={op: tuple(found) for op, found in modules.items()},
        direct=tuple(file for file in direct if is_test(file)),
    )


def is_test(file: str) -> bool:
    """Whether pytest collects it."""
    name = Path(file).name
    return file.startswith(f"{TESTS}/") and name.startswith("test_") and name.endswith(".py")


def _ops(graph: Graph) -> dict[str, str]:
    """Op -> its op.py."""
    found: dict[str, str] = {}
    for name, file in graph.modules.items():
        match name.split("."):
            case ["tercet", "ops", op, "op"]:
                found[op] = file
            case _:
                pass
    return found


def _implementations(graph: Graph, file: str) -> dict[str, str]:
    """Implementation -> the file of its module."""
    return {
        name: graph.modules[module]
        for name, module in _named_modules(graph.root / file)
        if module in graph.modules
    }


@cache
def _named_modules(path: Path) -> tuple[tuple[str, str], ...]:
    """(name, module) of each implementation whose call in an op.py says both."""
    found: list[tuple[str, str]] = []
    if not path.is_file():
        return ()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        given = {
            one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)
        }
        name, module = given.get("name"), given.get("module")
        if isinstance(name, str) and isinstance(module, str):
            found.append((name, module))
    return tuple(found)
