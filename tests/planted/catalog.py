"""Planted: the wrong kernels of `faults/` and the unusual right ones of `right/`, as data.

A module's constants are read from its source, not by importing it: some of these modules do harm.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tercet.kernel.contract import Implementation, Language, Op, Requirement
from tercet.ops.discover import find, names

FOLDER = Path(__file__).parent
FAULTS = FOLDER / "faults"
RIGHT = FOLDER / "right"
# the guide's op, which is judged like the package's own
EXAMPLE = FOLDER.parents[1] / "docs" / "guides" / "examples" / "gelu_gate"
_CONSTANTS = ("OP", "FAULT", "UNUSUAL", "CAUGHT_BY", "DEVICE", "SIZES", "HOSTILE")


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One planted kernel.

    Attributes:
        path: of its module, with forward and (where its op has one) gradient.
        op: the name of the op that it claims to be an implementation of.
        about: what is wrong, or, of a right one, what is unusual; one sentence.
        caught_by: the check that has to be red; empty for a right one.
        device: "cuda" where the fault shows on a GPU only, else "any".
        language: what it is written in.
        sizes: of the workload at which a fault shows that small cases do not show.
        hostile: whether it attacks its judge, so that it must not run in the judge's process.
    """

    path: Path
    op: str
    about: str
    caught_by: str
    device: str
    language: Language
    sizes: Mapping[str, int]
    hostile: bool

    @property
    def name(self) -> str:
        """Of its module; it begins with the op's name."""
        return self.path.stem

    @property
    def short_name(self) -> str:
        """Without the op's."""
        return self.name.removeprefix(f"{self.op}_")

    def implementation(self) -> Implementation:
        """As the harness takes a candidate, with the folder of the tests on the path."""
        return Implementation(
            name=self.name,
            requirement=Requirement(dtypes=()),
            module=f"planted.{self.path.parent.name}.{self.name}",
            language=self.language,
        )


def op_names() -> tuple[str, ...]:
    """The package's ops, and the guide's."""
    return (*names(), EXAMPLE.name)


def find_op(name: str) -> Op:
    """One of `op_names`."""
    return find(str(EXAMPLE) if name == EXAMPLE.name else name)


def planted(folder: Path) -> list[Planted]:
    """Every module of `faults/` or `right/`, by name."""
    return [read(path) for path in sorted(folder.glob("*.py"))]


def read(path: Path) -> Planted:
    """One module."""
    source = path.read_text(encoding="utf-8")
    constants = dict(_constants(ast.parse(source)))
    return Planted(
        path=path,
        op=constants["OP"],
        about=constants["FAULT" if "FAULT" in constants else "UNUSUAL"],
        caught_by=constants.get("CAUGHT_BY", ""),
        device=constants.get("DEVICE", "any"),
        language="triton" if "@triton.jit" in source else "torch",
        sizes=constants.get("SIZES", {}),
        hostile=constants.get("HOSTILE", False),
    )


def _constants(module: ast.Module) -> Iterator[tuple[str, Any]]:
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if name in _CONSTANTS:
                yield name, ast.literal_eval(statement.value)
