"""Roofline: every row by arithmetic intensity and speed, under the ceilings of its device.

Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785.
"""

from collections.abc import Sequence

from tercet.harness.regress.compare import is_peer
from tercet.harness.report.plot import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    figure,
    grid,
    log_scale,
    mark,
    short,
    ticks,
)
from tercet.harness.report.rows import describe
from tercet.records import Record

_STACK = 24
_MATRIX = {
    "bf16": "bf16_flops_per_second",
    "fp8": "fp8_flops_per_second",
    "int8": "int8_flops_per_second",
}


def roofline(rows: Sequence[Record], ceiling: Record | None) -> str:
    """The plot of one device's OK bench rows; empty where none does arithmetic."""
    rows = [row for row in rows if row.metrics.get("flops", 0) > 0 and row.metrics["bytes"] > 0]
    if not rows:
        return ""
    roofs = _roofs(ceiling)
    intensity = [row.metrics["flops"] / row.metrics["bytes"] for row in rows]
    speed = [row.metrics["flops_per_second"] / 1e12 for row in rows]
    x = log_scale(intensity, LEFT, WIDTH - RIGHT)
    reach = [roofs["copy"] * at / 1e12 for at in intensity] if "copy" in roofs else []
    y = log_scale([*speed, *reach], HEIGHT - BOTTOM, TOP)
    ops = sorted({row.subject for row in rows})
    marks = "".join(
        mark(x(at), y(fast), ops.index(row.subject), describe(row), hollow=is_peer(row))
        # ours last: on top of the others
        for row, at, fast in sorted(
            zip(rows, intensity, speed, strict=True), key=lambda each: not is_peer(each[0])
        )
    )
    content = grid(
        [(x(tick), short(tick)) for tick in ticks(x)], [(y(tick), short(tick)) for tick in ticks(y)]
    )
    content += _lines(x, y, roofs) + marks + _titles()
    key: list[tuple[str, int | None]] = [(op, index) for index, op in enumerate(ops)]
    if any(is_peer(row) for row in rows):
        key.append(("other libraries", None))
    return figure(content, "Roofline", key)


def _roofs(ceiling: Record | None) -> dict[str, float]:
    """Bytes or operations a second by name."""
    if ceiling is None:
        return {}
    metrics = ceiling.metrics
    found = {name: metrics[key] for name, key in _MATRIX.items() if metrics.get(key, 0) > 0}
    if metrics.get("copy_bytes_per_second", 0) > 0:
        found["copy"] = metrics["copy_bytes_per_second"]
    return found


def _lines(x: Scale, y: Scale, roofs: dict[str, float]) -> str:
    """The slope of the copy bandwidth up to the ridge, and a level for each matrix rate."""
    lines = ""
    bandwidth = roofs.get("copy", 0) / 1e12
    rates = {name: rate / 1e12 for name, rate in roofs.items() if name != "copy"}
    top = min(y.high, max(rates.values(), default=y.high))
    if bandwidth:
        first = max(x.low, y.low / bandwidth)
        last = min(x.high, top / bandwidth)
        if first < last:
            lines += _line(x(first), y(bandwidth * first), x(last), y(bandwidth * last))
            middle = (first * last) ** 0.5
            lines += _label(x(middle), y(bandwidth * middle) - 14, f"copy {bandwidth:.2f} TB/s")
    ridge = 1 / bandwidth if bandwidth else 0.0
    starts = {name: max(x.low, rate * ridge) for name, rate in rates.items()}
    seen = [name for name in rates if y.low < rates[name] < y.high and starts[name] < x.high]
    # rates lie too close together for a label at each line: a stack above the highest, in order
    for place, name in enumerate(sorted(seen, key=lambda name: rates[name])):
        level = y(rates[name])
        lines += _line(x(starts[name]), level, x(x.high), level)
        above = y(max(rates[name] for name in seen)) - 10 - _STACK * place
        lines += _label(x(x.high) - 8, above, f"{name} {rates[name]:.0f} TFLOP/s")
    return lines


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="roof" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="end">{text}</text>'


def _titles() -> str:
    return (
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">'
        "operations a byte</text>"
        f'<text x="{LEFT + 8}" y="{TOP + 14}">TFLOP/s</text>'
    )
