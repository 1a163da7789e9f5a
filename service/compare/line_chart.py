"""Line charts as inline SVG, in the colours of the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from dualstream.solvers.jit import Floats

_WIDTH, _HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 12, 10, 34
_TICKS = 5
_SLACK = 0.05
"""Share of a step by which a line may leave the lowest grid line."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its name, a colour of CSS, and points."""

    name: str
    color: str
    x: Floats
    y: Floats


def line_chart(
    title: str, end: int, lines: Sequence[Line], marks: Sequence[int], caption: str
) -> str:
    """Lines over the rows 0 to `end`, with 0 on the other axis; marks are below the axis."""
    values = np.concatenate([np.zeros(1), *(line.y for line in lines)])
    step = nice_step(float(values.max() - values.min()) / _TICKS)
    low = step * math.floor(float(values.min()) / step + _SLACK)
    high = step * max(math.ceil(float(values.max()) / step), 1)

    def x_at(row: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * row / end

    def y_at(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    parts = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        kind, y = "zero" if abs(value) < step / 2 else "grid", y_at(value)
        parts.append(
            f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        label = f"{value:,.10g}" if abs(value) >= step / 2 else "0"
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    rows = nice_step(end / _TICKS)
    for number in range(int(end / rows) + 1):
        row = number * rows
        x = x_at(row)
        anchor = "end" if x > _WIDTH - _LEFT else "middle"
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{row:,.10g}</text>'
        )
    below = _HEIGHT - _BOTTOM + 4
    for mark in marks:
        x = x_at(mark)
        parts.append(
            f'<line class="zero" x1="{x:.1f}" x2="{x:.1f}" y1="{below}" y2="{below + 6}"/>'
        )
    for line in lines:
        points = " ".join(
            f"{x_at(x):.1f},{y_at(y):.1f}"
            for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{line.color}" stroke-width="2"'
            f' stroke-linejoin="round"><title>{escape(line.name)}</title></polyline>'
        )
    legend = "".join(
        f'<span><i style="border-color: {line.color}"></i>{escape(line.name)}</span>'
        for line in lines
    )
    return (
        f'<figure><div class="legend">{legend}</div>\n'
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="{escape(title)} by row">{"".join(parts)}</svg>\n'
        f"<figcaption>By row. {escape(caption)}</figcaption></figure>\n"
    )


def nice_step(least: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below `least`; 1 for 0."""
    if not least > 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least)
