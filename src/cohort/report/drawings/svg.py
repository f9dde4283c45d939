"""Small pieces of SVG: text, marks, axes. Colours are CSS classes, so that one drawing serves light, dark and paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from cohort.report.labels import number_label

__all__ = [
    "WIDE_CHART",
    "Axis",
    "Frame",
    "band_axis",
    "linear_axis",
    "log_axis",
    "mark",
    "polyline",
    "rows_axis",
    "text",
    "time_unit",
]

WIDE_CHART = 1140.0
"""Width of a chart that takes the whole page."""


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, content: str, *, classes: str = "", anchor: str = "start") -> str:
    """Return a label; ``anchor`` is start, middle or end."""
    return f'<text x="{_at(x)}" y="{_at(y)}" class="{classes}" text-anchor="{anchor}">{escape(content)}</text>'


def polyline(points: Sequence[tuple[float, float]], *, classes: str) -> str:
    """Return a line through ``points``; a gap (NaN) starts a new stroke."""
    commands: list[str] = []
    pen_down = False
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            pen_down = False
            continue
        commands.append(f"{'L' if pen_down else 'M'}{_at(x)} {_at(y)}")
        pen_down = True
    return f'<path d="{"".join(commands)}" class="{classes}"/>' if commands else ""


_SHAPES = {
    # drawn around 0,0 within a radius of about 4.5
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
    "square": "M-3.6 -3.6h7.2v7.2h-7.2z",
    "diamond": "M0 -5L5 0L0 5L-5 0z",
    "up": "M0 -5L4.6 3.6H-4.6z",
    "down": "M0 5L4.6 -3.6H-4.6z",
    "left": "M-5 0L3.6 -4.6V4.6z",
    "right": "M5 0L-3.6 -4.6V4.6z",
    "pentagon": "M0 -4.8L4.6 -1.5L2.8 3.9H-2.8L-4.6 -1.5z",
    "hexagon": "M-2.4 -4.2H2.4L4.8 0L2.4 4.2H-2.4L-4.8 0z",
    "cross": "M-4 -4L4 4M4 -4L-4 4",
    "plus": "M-5 0H5M0 -5V5",
    "bar": "M0 -5V5",
    "star": "M0 -7.5L2.1 -2.6L7.2 -2.3L3.2 1L4.6 6.1L0 3.2L-4.6 6.1L-3.2 1L-7.2 -2.3L-2.1 -2.6z",
}
# shapes with nothing to fill: report.css draws them by their stroke
_LINES = ("cross", "plus", "bar")


def mark(shape: str, x: float, y: float, *, classes: str, title: str = "", scale: float = 1.0) -> str:
    """Return a mark of a named shape at (x, y), with a tooltip."""
    tooltip = f"<title>{escape(title)}</title>" if title else ""
    named = f"mark line {classes}" if shape in _LINES else f"mark {classes}"
    size = "" if scale == 1 else f" scale({scale:g})"
    return f'<path d="{_SHAPES[shape]}" transform="translate({_at(x)} {_at(y)}){size}" class="{named}">{tooltip}</path>'


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From values to places in [0, 1], with ticks at places."""

    ticks: tuple[tuple[float, str], ...]
    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where ``value`` lies, clipped to the axis; NaN for NaN, the top for +Inf."""
        if math.isnan(value):
            return math.nan
        if math.isinf(value):
            return 1.0 if value > 0 else 0.0
        if self.is_log:
            value = math.log10(max(value, 1e-300))
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


def _round_step(span: float, *, count: int) -> float:
    """Return the round step (1, 2, 5 times a power of ten) that gives about ``count`` ticks."""
    rough = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def linear_axis(low: float, high: float, *, count: int = 5) -> Axis:
    """Return an axis from ``low`` to ``high``, widened where they are equal."""
    # one value, or NaN: an axis needs a length to place anything on, and a tick at that value alone
    if not high > low:
        pad = abs(low) * 0.05 or 0.5
        return Axis(ticks=((0.5, number_label(low)),), low=low - pad, high=low + pad)
    step = _round_step(high - low, count=count)
    first = math.ceil(low / step - 1e-9)
    values = [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]
    ticks = tuple(((value - low) / (high - low), number_label(value)) for value in values)
    return Axis(ticks=ticks, low=low, high=high)


def log_axis(low: float, high: float, *, values: Sequence[float] = ()) -> Axis:
    """Return a logarithmic axis over positive values; ticks at ``values``, else at 1, 2 and 5 of each decade."""
    low10, high10 = math.log10(low), math.log10(high)
    if not high10 > low10:
        low10, high10 = low10 - 0.3, high10 + 0.3
    if not values:
        decades = range(math.floor(low10), math.ceil(high10) + 1)
        values = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    ticks = tuple(
        ((math.log10(value) - low10) / (high10 - low10), number_label(value))
        for value in values
        if low10 - 1e-9 <= math.log10(value) <= high10 + 1e-9
    )
    return Axis(ticks=ticks, low=low10, high=high10, is_log=True)


def band_axis(labels: Sequence[str]) -> Axis:
    """Return an axis of equal bands; the value of a label is its index."""
    ticks = tuple(((index + 0.5) / len(labels), label) for index, label in enumerate(labels))
    return Axis(ticks=ticks, low=-0.5, high=len(labels) - 0.5)


def rows_axis(names: Sequence[int]) -> Axis:
    """Return an axis with a row for each name, the first on top; the foot of row ``i`` is at ``n - 1 - i``."""
    # 32 labels stay legible however many rows there are
    stride = max(1, len(names) // 32)
    ticks = tuple((1 - (row + 0.5) / len(names), str(name)) for row, name in enumerate(names) if row % stride == 0)
    return Axis(ticks=ticks, low=0.0, high=float(len(names)))


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit for a time axis that ends after ``seconds``, and its length in seconds."""
    return ("seconds", 1.0) if seconds < 180 else ("minutes", 60.0) if seconds < 10800 else ("hours", 3600.0)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A plot area with its axes: turns values into drawing coordinates and draws what surrounds them."""

    width: float
    height: float
    x: Axis
    y: Axis
    x_label: str
    y_label: str
    left: float = 52.0
    right: float = 14.0
    top: float = 12.0
    bottom: float = 40.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the drawing coordinates of a point."""
        inner_width, inner_height = self.width - self.left - self.right, self.height - self.top - self.bottom
        return self.left + self.x.place(x) * inner_width, self.top + (1 - self.y.place(y)) * inner_height

    def axes(self) -> str:
        """Return grid lines, tick labels and axis titles."""
        right, base = self.width - self.right, self.height - self.bottom
        # grid lines first: what comes later is drawn over them
        parts = []
        for place, label in self.y.ticks:
            y = self.top + (1 - place) * (base - self.top)
            parts.append(f'<path d="M{_at(self.left)} {_at(y)}H{_at(right)}" class="grid"/>')
            parts.append(text(self.left - 6, y + 4, label, classes="tick", anchor="end"))
        last_end = -math.inf
        for place, label in self.x.ticks:
            x = self.left + place * (right - self.left)
            parts.append(f'<path d="M{_at(x)} {_at(base)}v4" class="axis"/>')
            # labels of close ticks are left out rather than drawn over each other; 6 units a character at 11 px
            half = 3.2 * len(label)
            if x - half > last_end:
                parts.append(text(x, base + 16, label, classes="tick", anchor="middle"))
                last_end = x + half + 4
        parts.append(f'<path d="M{_at(self.left)} {_at(base)}H{_at(right)}" class="axis"/>')
        parts.append(text((self.left + right) / 2, self.height - 6, self.x_label, classes="label", anchor="middle"))
        middle = (self.top + base) / 2
        parts.append(
            f'<text transform="translate(12 {_at(middle)}) rotate(-90)" class="label" text-anchor="middle">'
            f"{escape(self.y_label)}</text>"
        )
        return "".join(parts)

    def drawing(self, content: str, *, title: str, description: str, name: str) -> str:
        """Return the whole SVG with its text alternative; ``name`` makes ids unique on the page."""
        return (
            f'<svg viewBox="0 0 {_at(self.width)} {_at(self.height)}" role="img" '
            f'aria-labelledby="{name}-title {name}-text"><title id="{name}-title">{escape(title)}</title>'
            f'<desc id="{name}-text">{escape(description)}</desc>{content}</svg>'
        )
