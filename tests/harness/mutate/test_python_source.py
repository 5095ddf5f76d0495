import ast
from pathlib import Path

import pytest

from tercet.harness.mutate.mutant import Mutant
from tercet.harness.mutate.python_source import mutants_of_python
from tercet.kernel.register import folder_of
from tercet.ops.discover import discover

SOURCES = sorted(
    {path for op in discover().values() for path in folder_of(op.name).glob("t[or]*.py")}
)


def made(tmp_path: Path, body: str) -> list[Mutant]:
    file = tmp_path / "kernel.py"
    file.write_text("def f(a, b, n):\n" + "".join(f"    {line}\n" for line in body.splitlines()))
    return mutants_of_python(file)


def changes(tmp_path: Path, body: str) -> set[tuple[str, str]]:
    return {(mutant.kind, mutant.after) for mutant in made(tmp_path, body)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "x = tl.load(a, b < n, 0.0)",
            {
                ("shift an index", "x = tl.load(a + 1, b < n, 0.0)"),
                ("drop a mask", "x = tl.load(a)"),
                ("change a comparison", "x = tl.load(a, b <= n, 0.0)"),
                ("change a comparison", "x = tl.load(a, b > n, 0.0)"),
                ("change a constant", "x = tl.load(a, b < n, 1.0)"),
            },
        ),
        (
            "return a * b.to(tl.float32)",
            {
                ("change an operator", "return a / b.to(tl.float32)"),
                ("drop a term", "return a"),
                ("drop a term", "return b.to(tl.float32)"),
                ("change a dtype", "return a * b"),
                ("change a dtype", "return a * b.to(tl.float16)"),
            },
        ),
        (
            "for k in range(0, n, b):\n    a += k",
            {
                ("skip a tile", "range(0, n - b, b)"),
                ("skip a tile", "range(0 + b, n, b)"),
                ("change a constant", "range(1, n, b)"),
                ("drop a statement", "pass"),
                ("change an operator", "a -= k"),
            },
        ),
        (
            "a[:, None] = b",
            {
                ("drop a statement", "pass"),
                ("swap an axis", "a[None, :] = b"),
            },
        ),
        ("tl.debug_barrier()", {("drop a statement", "pass")}),
    ],
)
def test_changes_of_a_statement(tmp_path: Path, body: str, expected: set[tuple[str, str]]) -> None:
    assert changes(tmp_path, body) == expected


@pytest.mark.parametrize(
    "body",
    [
        "run(num_warps=4, num_stages=2)",
        "raise ValueError(f'{n + 1} is too many')",
        "tl.static_assert(n > 1)",
        "'''n + 1'''",
        "return a.to(tl.int64)",
        "return {'BLOCK': 64 if n > 3 else 128, 'num_warps': 4}",
        "sizes = {'M': n + 1}",
    ],
)
def test_speed_and_words_are_left_alone(tmp_path: Path, body: str) -> None:
    assert changes(tmp_path, body) <= {("drop a statement", "pass")}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_mutant_is_python_and_unlike_all_others(source: Path) -> None:
    mutants = mutants_of_python(source)
    assert len({mutant.key for mutant in mutants}) == len(mutants)
    mutants = mutants[:: 1 + len(mutants) // 50]
    trees = {ast.dump(ast.parse(mutant.source)) for mutant in mutants}
    assert len(trees) == len(mutants)
    assert ast.dump(ast.parse(source.read_text())) not in trees


def test_only_the_statement_changes(tmp_path: Path) -> None:
    mutants = made(tmp_path, "x = a + b  # the sum: größer\nreturn x")
    lines = mutants[0].source.splitlines()
    assert lines[1] == "    x = a - b  # the sum: größer"
    assert lines[2] == "    return x"
