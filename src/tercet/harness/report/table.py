"""Table: an HTML table that the page's script sorts and filters."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column.

    Attributes:
        title: its head.
        number: whether it is aligned to the right.
        narrow: whether a phone shows it.
        choice: whether a menu of its values filters the table.
    """

    title: str
    number: bool = False
    narrow: bool = True
    choice: bool = False


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a cell shows, what it sorts by where that is not its text, and a bar from 0 to 1."""

    text: str = ""
    value: float | None = None
    bar: float | None = None
    style: str = ""


def number_cell(value: float | None, form: str, unit: float = 1.0, style: str = "") -> Cell:
    """A number in units, sorted by its value; an empty cell for None."""
    if value is None:
        return Cell()
    return Cell(text=form.format(value / unit), value=value, style=style)


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> str:
    """The HTML of a table with its search field and menus."""
    heads = "".join(
        f'<th{_class(column)}><button type="button">{escape(column.title)}</button></th>'
        for column in columns
    )
    body = "\n".join("<tr>" + "".join(map(_cell, columns, row)) + "</tr>" for row in rows)
    menus = "".join(
        _menu(place, column, rows) for place, column in enumerate(columns) if column.choice
    )
    return f"""<div class="sortable"><div class="tools">
<input type="search" placeholder="Filter" aria-label="Filter rows">{menus}
<span class="count soft" role="status"></span></div>
<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>
{body}
</tbody></table></div></div>"""


def _class(column: Column, style: str = "") -> str:
    parts = ("n" if column.number else "", "" if column.narrow else "wide", style)
    names = " ".join(part for part in parts if part)
    return f' class="{names}"' if names else ""


def _cell(column: Column, cell: Cell) -> str:
    key = f' data-v="{cell.value:.6g}"' if cell.value is not None else ""
    bar = ""
    if cell.bar is not None:
        bar = f'<span class="bar" style="--p:{100 * min(max(cell.bar, 0), 1):.0f}%"></span>'
    return f"<td{_class(column, cell.style)}{key}>{bar}{escape(cell.text)}</td>"


def _menu(place: int, column: Column, rows: Sequence[Sequence[Cell]]) -> str:
    options = "".join(
        f"<option>{escape(value)}</option>" for value in sorted({row[place].text for row in rows})
    )
    name = escape(column.title)
    return (
        f'<select data-column="{place}" aria-label="{name}">'
        f'<option value="">{name}: all</option>{options}</select>'
    )
