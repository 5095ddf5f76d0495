"""Plots of a report: what is lost against what it costs, and the errors of layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

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
    short,
    ticks,
)
from tercet.workflows.report.runs import Measure, Value


@dataclass(frozen=True, kw_only=True)
class Point:
    """A model in a plot of cost and quality."""

    name: str
    colour: int
    cost: float
    quality: Value


def find_front(
    points: Sequence[Point], *, lower_is_better: bool, cheap_is_low: bool
) -> list[Point]:
    """Of these points those that no other is as good and as cheap as, cheapest first."""
    found: list[Point] = []

    def goodness(point: Point) -> float:
        return -point.quality.value if lower_is_better else point.quality.value

    def cost(point: Point) -> float:
        return point.cost if cheap_is_low else -point.cost

    for point in sorted(points, key=lambda one: (cost(one), -goodness(one))):
        if not found or goodness(point) > goodness(found[-1]):
            found.append(point)
    return found


def plot_front(
    points: Sequence[Point],
    measure: Measure,
    *,
    axis: str,
    cheap_is_low: bool,
    reference: tuple[str, float] | None,
) -> str:
    """Quality over cost with intervals; a line joins the models that no other beats in both.

    Args:
        points: the models.
        measure: of quality.
        axis: what cost is, with its unit.
        cheap_is_low: whether a small cost is a good one; of a speed it is not.
        reference: name and quality of the uncompressed model, a line of its own.
    """
    ends = [v for p in points for v in (p.quality.low, p.quality.value, p.quality.high)]
    heights = [value for value in ends if value is not None]
    if reference is not None:
        heights.append(reference[1])
    x = _scale([point.cost for point in points], LEFT, WIDTH - RIGHT)
    y = _scale(heights, HEIGHT - BOTTOM, TOP)
    content = grid(
        [(x(tick), short(tick)) for tick in ticks(x)],
        [(y(tick), f"{tick:.0%}" if measure.share else short(tick)) for tick in ticks(y)],
    )
    if reference is not None:
        at = y(reference[1])
        content += f'<path class="roof" d="M{LEFT} {at:.1f}L{WIDTH - RIGHT} {at:.1f}"/>'
    front = find_front(points, lower_is_better=measure.lower_is_better, cheap_is_low=cheap_is_low)
    path = "L".join(f"{x(one.cost):.1f} {y(one.quality.value):.1f}" for one in front)
    content += f'<path class="roof" d="M{path}"/>'
    for point in points:
        content += _point(x(point.cost), y, point, measure, axis)
    content += f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{axis}</text>'
    key: list[tuple[str, int | None]] = [(one.name, one.colour) for one in points]
    return figure(content, f"{measure.title} over {axis}", key)


def _point(x: float, y: Scale, point: Point, measure: Measure, axis: str) -> str:
    value, bar, text = point.quality, "", ""
    if value.low is not None and value.high is not None:
        colour = point.colour % COLOURS
        bar = (
            f'<path class="trend c{colour}" d="M{x:.1f} {y(value.low):.1f}'
            f'L{x:.1f} {y(value.high):.1f}"/>'
        )
        text = f" (95 % interval {measure.show(value.low)} to {measure.show(value.high)})"
    title = (
        f"{point.name}: {short(point.cost)} {axis}, {measure.name} "
        f"{measure.show(value.value)}{text}"
    )
    return bar + mark(x, y(value.value), point.colour, title)


def plot_layers(errors: Sequence[tuple[str, int, Mapping[int, float]]]) -> str:
    """Relative errors over layers.

    Args:
        errors: name, colour and values by the layer's number, of each model.
    """
    count = 1 + max(max(values) for _, _, values in errors)
    x = Scale(low=-0.5, high=count - 0.5, start=LEFT, end=WIDTH - RIGHT)
    y = _scale(
        [0.0, *(one for _, _, values in errors for one in values.values())], HEIGHT - BOTTOM, TOP
    )
    every = max(ceil(count / 16), 1)
    content = grid(
        [(x(at), str(at)) for at in range(0, count, every)],
        [(y(tick), f"{tick:.0%}") for tick in ticks(y)],
    )
    for name, colour, values in errors:
        path = "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in values.items())
        content += f'<path class="trend c{colour % COLOURS}" d="M{path}"/>'
        for at, value in values.items():
            content += mark(x(at), y(value), colour, f"{name}, layer {at}: {value:.1%}")
    content += f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">layer</text>'
    return figure(content, "Errors of layers", [(name, colour) for name, colour, _ in errors])


# of the largest value to the smallest, from which an axis is logarithmic
_MANY_TIMES = 8.0


def _scale(values: Sequence[float], start: float, end: float) -> Scale:
    """Holds the values with a margin; logarithmic where they differ by much."""
    low, high = min(values), max(values)
    if low > 0 and high / low > _MANY_TIMES:
        margin = (high / low) ** 0.08
        return Scale(low=low / margin, high=high * margin, start=start, end=end, logarithmic=True)
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return Scale(low=low - margin, high=high + margin, start=start, end=end)
