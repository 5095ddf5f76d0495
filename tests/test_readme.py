"""README.md and the ops' own pages: nothing is missing, nothing is long."""

from pathlib import Path

import pytest

from tercet.ops.discover import discover

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "src" / "tercet" / "ops").glob("*/README.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_an_ops_page_is_short_and_in_the_readmes_table(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 120
    link = page.relative_to(ROOT).as_posix()
    row = f"| `{page.parent.name}` | "
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [link in line for line in lines if line.startswith(row)] == [True]


def test_every_op_has_a_page() -> None:
    assert {page.parent.name for page in PAGES} == set(discover())
