"""The shape of the tree: rooms stay small, READMEs short, and nothing is named after nothing."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "tercet"
MOST_FILES = 16
MOST_README_LINES = 120
NAMELESS = {"utils", "util", "common", "misc", "helpers", "helper"}


def files() -> list[Path]:
    """Every source file, without what Python and editors leave behind."""
    found = (path for path in ROOT.rglob("*") if path.is_file())
    return [path for path in found if "__pycache__" not in path.parts and path.name[0] != "."]


def test_there_is_a_tree() -> None:
    assert len(files()) > 300


def test_no_folder_is_overgrown() -> None:
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in files())
    overgrown = {folder: count for folder, count in counts.items() if count > MOST_FILES}
    assert not overgrown, f"more than {MOST_FILES} files: split the folder by what they are for"


def test_readmes_are_short() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in files()
        if path.name == "README.md"
    }
    assert lengths
    long = {path: count for path, count in lengths.items() if count > MOST_README_LINES}
    assert not long, f"over {MOST_README_LINES} lines: the lab notebook belongs to docs/kernels"


def test_every_file_is_named_after_what_it_does() -> None:
    named = [path.relative_to(ROOT) for path in files() if path.stem.strip("_") in NAMELESS]
    folders = [path for path in ROOT.rglob("*") if path.is_dir() and path.name in NAMELESS]
    assert not named
    assert not folders
