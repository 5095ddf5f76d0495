"""Plot: hand-made SVG: scales, grid and marks, with colours from the page's style."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 960, 460
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 20, 56
COLOURS = 12


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A linear map from [low, high] (their logarithms where `logarithmic`) to pixels."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = log10(low), log10(high), log10(value)
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def log_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A logarithmic scale that holds the values, from a half decade to a half decade."""
    low = 10 ** (floor(2 * log10(min(values)) - 0.2) / 2)
    high = 10 ** (ceil(2 * log10(max(values)) + 0.2) / 2)
    return Scale(low=low, high=high, start=start, end=end, logarithmic=True)


def ticks(scale: Scale) -> list[float]:
    """Round numbers: 1, 2 and 5 of each decade where they are few, else the decades.

    Of a linear scale about five, at steps of 1, 2 or 5 times a power of ten.
    """
    if not scale.logarithmic:
        step = _round_step((scale.high - scale.low) / 5)
        places = range(ceil(scale.low / step), floor(scale.high / step) + 1)
        return [round(place * step, 12) for place in places]
    first, last = floor(log10(scale.low)), ceil(log10(scale.high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [tick for tick in found if scale.low <= tick <= scale.high]


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, not below `least`."""
    power = 10.0 ** floor(log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def grid(x: Sequence[tuple[float, str]], y: Sequence[tuple[float, str]]) -> str:
    """Lines and labels at pixels."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    vertical = "".join(
        f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>'
        f'<text x="{at:.1f}" y="{bottom + 22}" text-anchor="middle">{escape(label)}</text>'
        for at, label in x
    )
    horizontal = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{at + 5:.1f}" text-anchor="end">{escape(label)}</text>'
        for at, label in y
    )
    return vertical + horizontal


def mark(x: float, y: float, colour: int, title: str, *, hollow: bool = False) -> str:
    """A point that tells what it is."""
    kind = "peer" if hollow else "own"
    return (
        f'<circle class="mark {kind} c{colour % COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="5.5" '
        f'tabindex="0"><title>{escape(title)}</title></circle>'
    )


def figure(content: str, label: str, key: Sequence[tuple[str, int | None]]) -> str:
    """A plot with its key: (name, colour), or (name, None) for hollow marks."""
    entries = "".join(
        f'<span class="c{(colour or 0) % COLOURS}"><i{"" if colour is not None else hollow}></i>'
        f"{escape(name)}</span>"
        for name, colour in key
        for hollow in (' class="hollow"',)
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'{content}</svg><div class="key">{entries}</div>'
        '<output class="soft">Touch a mark to see what it is.</output></figure>'
    )


def short(value: float) -> str:
    """A tick's label: 0.05, 2, 1,000."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
