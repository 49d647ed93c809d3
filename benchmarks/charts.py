"""Charts as SVG text: bars on a logarithmic scale, and lines over one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["bars", "lines"]

#: Of series, in their order; readable on white, also by people who do not tell red from green.
COLOURS = ("#3f51b5", "#ef6c00", "#00897b", "#8e24aa", "#6d4c41", "#9e9e9e")
_WIDTH, _LEFT, _RIGHT, _TOP = 860, 340, 80, 58


def _frame(title: str, height: int, body: Sequence[str]) -> str:
    style = (
        "text{font:12px system-ui,sans-serif;fill:#222}.t{font-size:15px;font-weight:600}"
        ".g{stroke:#ddd}.s{fill:#666}"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title><style>{style}</style>'
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
        f'<text class="t" x="16" y="24">{escape(title)}</text>'
    )
    return "\n".join([head, *body, "</svg>"]) + "\n"


def _legend(series: Sequence[str]) -> list[str]:
    parts, x = [], 16.0
    for name, colour in zip(series, COLOURS):
        parts.append(f'<rect x="{x:.0f}" y="34" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16:.0f}" y="44">{escape(name)}</text>')
        x += 32 + 7 * len(name)
    return parts


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**e for e in range(first, last + 1)]


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def bars(title: str, groups: Mapping[str, Mapping[str, float]], series: Sequence[str]) -> str:
    """A group of bars for each row of `groups`, one bar for each series that it has."""
    values = [value for row in groups.values() for value in row.values()]
    ticks = _decades(min(values), max(values))
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])

    def place(value: float) -> float:
        return _LEFT + (math.log10(value) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    body, y = _legend(series), float(_TOP)
    for name, row in groups.items():
        body.append(f'<text x="{_LEFT - 10}" y="{y + 8 * len(row):.0f}" text-anchor="end">')
        body.append(f"{escape(name)}</text>")
        for one in (s for s in series if s in row):
            wide = max(place(row[one]) - _LEFT, 2)
            colour = COLOURS[list(series).index(one)]
            body.append(
                f'<rect x="{_LEFT}" y="{y:.0f}" width="{wide:.1f}" height="11" fill="{colour}"/>'
                f'<text class="s" x="{_LEFT + wide + 5:.1f}" y="{y + 10:.0f}">'
                f"{_short(row[one])}</text>"
            )
            y += 13
        y += 11
    grid = [
        f'<line class="g" x1="{place(t):.1f}" x2="{place(t):.1f}" y1="{_TOP - 4}" y2="{y:.0f}"/>'
        f'<text class="s" x="{place(t):.1f}" y="{y + 14:.0f}" text-anchor="middle">'
        f"{_short(t)}</text>"
        for t in ticks
    ]
    return _frame(title, int(y) + 24, [*grid, *body])


def lines(title: str, curves: Mapping[str, Mapping[float, float]]) -> str:
    """Curves over a logarithmic axis, from zero up."""
    height, bottom, left = 330, 292.0, 60
    xs = [x for curve in curves.values() for x in curve]
    ticks = _decades(min(xs), max(xs))
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    most = max(y for curve in curves.values() for y in curve.values())
    step = 10.0 ** math.floor(math.log10(most))
    top = math.ceil(most / step) * step

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + (math.log10(x) - low) / (high - low) * (_WIDTH - left - 40)
        return across, bottom - y / top * (bottom - _TOP)

    body = _legend(list(curves))
    for i in range(int(top / step) + 1):
        _, y = at(ticks[0], i * step)
        body.append(f'<line class="g" x1="{left}" x2="{_WIDTH - 40}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(f'<text class="s" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">')
        body.append(f"{_short(i * step)}</text>")
    for t in ticks:
        x, _ = at(t, 0)
        body.append(f'<text class="s" x="{x:.1f}" y="{bottom + 18:.0f}" text-anchor="middle">')
        body.append(f"{_short(t)}</text>")
    for colour, curve in zip(COLOURS, curves.values()):
        points = [at(x, y) for x, y in curve.items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
    return _frame(title, height, body)
