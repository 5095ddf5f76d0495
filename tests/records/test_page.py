"""Pages: tables between marks, and the script that writes them."""

import sys
from pathlib import Path

import pytest

from tercet.records.page import NOTHING, fill, has, markdown, write_pages

PAGE = "a\n<!-- table -->\nold\n<!-- end -->\nb\n<!-- whole step -->\n<!-- end -->\nc"


def test_a_table_in_markdown() -> None:
    rows = [["name", "us"], ["one", "1.5"], ["two", "2"]]
    assert markdown(rows) == "| name | us |\n|---|---|\n| one | 1.5 |\n| two | 2 |"
    assert markdown(rows, numbers=True).splitlines()[1] == "|---|---:|"
    assert markdown(rows[:1]) == NOTHING


def test_only_the_place_between_the_marks_changes() -> None:
    made = fill(fill(PAGE, "table", "new"), "whole step", "x\ny")
    assert made == (
        "a\n<!-- table -->\nnew\n<!-- end -->\nb\n<!-- whole step -->\nx\ny\n<!-- end -->\nc"
    )
    assert fill(made, "table", "new") == made
    assert has(PAGE, "table")
    assert not has(PAGE, "goals")


@pytest.mark.parametrize("text", ["no place", "<!-- goals -->\nwithout an end", "<!-- end -->"])
def test_a_page_without_the_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no place <!-- goals -->"):
        fill(text, "goals", "new")


def test_a_script_writes_what_is_stale_and_check_only_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, stale = tmp_path / "fresh.md", tmp_path / "stale.md"
    fresh.write_text("as it is")
    stale.write_text("old")

    def pages() -> dict[Path, str]:
        return {fresh: "as it is", stale: "new"}

    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    with pytest.raises(SystemExit, match=r"out of date: \S+stale.md: run python tables.py"):
        write_pages("Tables.", "tables.py", pages)
    assert stale.read_text() == "old"
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    write_pages("Tables.", "tables.py", pages)
    assert stale.read_text() == "new"
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    write_pages("Tables.", "tables.py", pages)
