"""The tree speaks the field's words: private terms stay at zero, and a failure names the right one.

Names are checked in Python (modules, classes, functions, arguments, attributes and fields) and in
C++ and CUDA (every identifier). Words that are also plain English are checked in names only;
`PHRASES` are checked in comments and docstrings.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1] / "src" / "tercet"
CPP = (".cu", ".cuh", ".cpp", ".h", ".hpp")

# a part of a name, as `team` in team_count and TeamCount -> what the field says
WORDS = {
    "walk": "tile scheduler, or loop over chunks",
    "walks": "tile scheduler, or loop over chunks",
    "walked": "tile scheduler, or loop over chunks",
    "pull": "vjp",
    "pulls": "vjps",
    "ways": "grad_outputs",
    "feed": "producer",
    "lead": "producer, or the elected thread",
    "ring": "pipeline stages",
    "team": "warpgroup",
    "teams": "warpgroups",
    "band": "swizzle, or tile rasterization",
    "places": "output paths, addresses, positions",
    "retest": "recheck",
    "attempt": "run",
    "trial": "candidate, or measurement",
    "onto": "copy",
    "alone": "sequential",
    "told": "notify",
    "pieces": "chunks",
}
# a whole name
NAMES = {
    "given": "arguments, or what the value is",
    "chosen": "select, or what was selected",
    "finished": "finish",
    "take_over": "stream-K",
    "meet_sums": "split-K reduction",
}
# only in C++ and CUDA; in Python these are plain words
CPP_WORDS = {
    "turn": "barrier phase",
    "sharing": "multicast",
    "early": "programmatic dependent launch",
    "whole": "full tile, or data-parallel tile",
    "part": "split-K or stream-K slice",
}
PHRASES = {
    r"copy engines?": "TMA",
    r"(take|takes|taken|took|taking) over": "stream-K, or inherit, match",
    r"meet(s|ing)? (the )?sums|sums meet": "split-K reduction",
}
# (end of path, name) -> why the name stays
ALLOWED = {
    ("kernel/select.py", "chosen"): "a key of what `tercet kernel explain --json` prints",
    ("workflows/kernel/results.py", "chosen"): "the same key, of the tool `explain`",
}


class Use(NamedTuple):
    """One name, or one comment, where it stands."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}"


def words_of(name: str) -> list[str]:
    """The lower-case words of a name in snake, camel or upper case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def python_names(source: str, path: str) -> Iterator[Use]:
    yield Use(path, 1, Path(path).stem)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield Use(path, node.lineno, name)
            case ast.ClassDef(name=name):
                yield Use(path, node.lineno, name)
                for field in node.body:
                    match field:
                        case ast.AnnAssign(target=ast.Name(id=name)):
                            yield Use(path, field.lineno, name)
                        case ast.Assign(targets=[ast.Name(id=name)]):
                            yield Use(path, field.lineno, name)
                        case _:
                            pass
            case ast.arg(arg=name):
                yield Use(path, node.lineno, name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield Use(path, node.lineno, name)
            case _:
                pass


def python_prose(source: str, path: str) -> Iterator[Use]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Use(path, token.start[0], token.string)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)) is not None:
            yield Use(path, node.body[0].lineno, " ".join(text.split()))


_CPP_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>\"(?:\\.|[^\"\\\n])*\")|(?P<name>[A-Za-z_]\w*)",
    re.DOTALL,
)


def cpp_tokens(source: str, path: str, kind: str) -> Iterator[Use]:
    for found in _CPP_TOKEN.finditer(source):
        if found.lastgroup == kind:
            line = source.count("\n", 0, found.start()) + 1
            yield Use(path, line, " ".join(found[0].split()))


@cache
def sources(*endings: str) -> dict[str, str]:
    paths = [path for path in sorted(ROOT.rglob("*")) if path.suffix in endings]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


@cache
def names(python: bool) -> tuple[Use, ...]:
    if python:
        return tuple(u for path, text in sources(".py").items() for u in python_names(text, path))
    uses = (u for path, text in sources(*CPP).items() for u in cpp_tokens(text, path, "name"))
    return tuple({(use.path, use.text): use for use in reversed(list(uses))}.values())[::-1]


@cache
def prose() -> tuple[Use, ...]:
    python = (u for path, text in sources(".py").items() for u in python_prose(text, path))
    cpp = (u for path, text in sources(*CPP).items() for u in cpp_tokens(text, path, "comment"))
    return (*python, *cpp)


def allowed(use: Use) -> bool:
    return any(use.path.endswith(end) and use.text == name for end, name in ALLOWED)


def report(term: str, instead: str, uses: list[Use]) -> str:
    return f"{term!r} is a word of our own, say {instead}:\n" + "\n".join(map(str, uses))


@pytest.mark.parametrize(("term", "instead"), (WORDS | NAMES).items())
def test_python_names(term: str, instead: str) -> None:
    def has(name: str) -> bool:
        return term in words_of(name) if term in WORDS else name.strip("_").lower() == term

    found = [use for use in names(python=True) if has(use.text) and not allowed(use)]
    assert not found, report(term, instead, found)


@pytest.mark.parametrize(("term", "instead"), (WORDS | NAMES | CPP_WORDS).items())
def test_cpp_names(term: str, instead: str) -> None:
    def has(name: str) -> bool:
        return term in words_of(name) if term not in NAMES else name.strip("_").lower() == term

    found = [use for use in names(python=False) if has(use.text) and not allowed(use)]
    assert not found, report(term, instead, found)


@pytest.mark.parametrize(("phrase", "instead"), PHRASES.items())
def test_comments_and_docstrings(phrase: str, instead: str) -> None:
    pattern = re.compile(rf"\b({phrase})\b", re.IGNORECASE)
    found = [use for use in prose() if pattern.search(use.text)]
    assert not found, report(phrase, instead, found)


def test_every_exception_is_used() -> None:
    uses = {(use.path, use.text) for use in (*names(python=True), *names(python=False))}
    unused = [
        (end, name)
        for end, name in ALLOWED
        if not any(path.endswith(end) and text == name for path, text in uses)
    ]
    assert not unused


def test_the_search_finds_what_it_should() -> None:
    source = (
        'class TeamCount:\n    """TMA."""\n    def retest(self, given):\n        self.told = 1\n'
    )
    assert [use.text for use in python_names(source, "a/onto.py")] == [
        "onto", "TeamCount", "retest", "self", "given", "told",
    ]  # fmt: skip
    assert [use.text for use in python_prose(source + "# why\n", "a.py")] == ["# why", "TMA."]
    cpp = 'int team_a; // the copy engine\nauto s = "ring"; /* two\nlines */ WalkTiles();'
    assert [use.text for use in cpp_tokens(cpp, "a.cu", "name")] == [
        "int", "team_a", "auto", "s", "WalkTiles",
    ]  # fmt: skip
    assert [(use.line, use.text) for use in cpp_tokens(cpp, "a.cu", "comment")] == [
        (1, "// the copy engine"),
        (2, "/* two lines */"),
    ]
    assert words_of("_WALK_Tiles") == ["walk", "tiles"]
    assert words_of("TeamCount") == ["team", "count"]
