"""History: how close to the roofline each row of an op was at each revision."""

from collections.abc import Sequence

from tercet.harness.regress.compare import is_peer
from tercet.harness.report.plot import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    figure,
    grid,
    mark,
)
from tercet.harness.report.rows import describe, key_of, revisions_of, setting
from tercet.records import Record

_LABELS = 10


def history(rows: Sequence[Record]) -> str:
    """The plot of one op's own OK rows, cold and in a graph, over its revisions; oldest left."""
    rows = [row for row in rows if _is_shown(row)]
    revisions = revisions_of(rows)
    if len(revisions) < 2:
        return ""
    x = Scale(low=-0.5, high=len(revisions) - 0.5, start=LEFT, end=WIDTH - RIGHT)
    highest = max(1.0, *(row.metrics["roofline_fraction"] for row in rows))
    y = Scale(low=0, high=1.05 * highest, start=HEIGHT - BOTTOM, end=TOP)
    every = -(-len(revisions) // _LABELS)
    content = grid(
        [(x(at), name[:7]) for at, name in enumerate(revisions) if at % every == 0],
        [(y(share / 100), f"{share} %") for share in range(0, 101, 20)],
    )
    series: dict[tuple[str, ...], dict[str, Record]] = {}
    for row in rows:
        series.setdefault(key_of(row), {})[setting(row, "revision")] = row
    key: list[tuple[str, int | None]] = []
    for colour, points in enumerate(series.values()):
        places = [
            (x(revisions.index(name)), y(points[name].metrics["roofline_fraction"]), points[name])
            for name in revisions
            if name in points
        ]
        path = "L".join(f"{at:.1f} {high:.1f}" for at, high, _ in places)
        content += f'<path class="trend c{colour % COLOURS}" d="M{path}"/>'
        for at, high, row in places:
            revision = setting(row, "revision")[:12]
            content += mark(at, high, colour, f"{revision} {row.time}: {describe(row)}")
        if colour < COLOURS:
            first = places[0][2]
            key.append((f"{setting(first, 'workload')} {setting(first, 'direction')}", colour))
    return figure(content, f"History of {rows[0].subject}", key)


def _is_shown(row: Record) -> bool:
    timing = (setting(row, "cache") or "cold", setting(row, "launch") or "graph")
    known = "roofline_fraction" in row.metrics and setting(row, "revision") != ""
    return known and timing == ("cold", "graph") and not is_peer(row)
