"""Charts as SVG, from the rows of a result. Each has a ground of its own: it reads the same on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks.figures import short

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 76, 20, 48, 56
SMALL = 12  # pixels, of a font
COLOURS = ("#1d4ed8", "#b45309", "#15803d", "#be185d", "#6d28d9", "#475569")
GRID, INK = "#cbd5e1", "#1e293b"


@dataclass(frozen=True)
class Axis:
    """Values to pixels, with a logarithm where the values span more than a factor of twelve."""

    low: float
    high: float
    start: float
    end: float

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high / self.low > 12

    def at(self, value: float) -> float:
        low, high, value = map(self._scaled, (self.low, self.high, value))
        return self.start + (self.end - self.start) * ((value - low) / (high - low) if high > low else 0.5)

    def ticks(self) -> list[float]:
        if not self.log:
            return _steps(self.low, self.high)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1, 2, 5) if self.high / self.low < 100 else (1,)
        marks = [factor * 10.0**power for power in powers for factor in factors]
        return [mark for mark in marks if self.low <= mark <= self.high]

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


def curves(title: str, x: str, unit: str, lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Medians over `x`, with the range of the runs; one line per series."""
    points = [point for line in lines.values() for point in line]
    across = Axis(*_span([p["x"] for p in points], False), LEFT, WIDTH - RIGHT)
    up = Axis(*_span([p[key] for p in points for key in ("min", "max", "median")], True), HEIGHT - BOTTOM, TOP)
    parts = [_grid_x(across, x), _grid_y(up, unit)]
    for colour, (name, line) in zip(_colours(len(lines)), lines.items(), strict=True):
        parts.append(_line(across, up, sorted(line, key=lambda point: point["x"]), colour))
        parts.append(_legend(list(lines).index(name), name, colour) if len(lines) > 1 else "")
    return _picture(title, HEIGHT, "".join(parts))


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Lines of (what, share of the goal's bound, words): 1 is the goal itself, less is better.

    Names, bars and words have a column each, so that no text crosses a bar or the line of the goal.
    """
    height, most = TOP + 30 * len(rows) + 34, max(1.5, min(4.0, max(share for _, share, _ in rows)))
    names_end = RIGHT + text_width(max((name for name, _, _ in rows), key=len))
    words_start = WIDTH - RIGHT - text_width(max((words for _, _, words in rows), key=len))
    across = Axis(0, most, names_end + 8, words_start - 8)
    parts = []
    for number, (name, share, words) in enumerate(rows):
        y = TOP + 8 + 30 * number
        parts.append(_text(names_end, y + 13, name, "end", SMALL) + _bar(across, y, share))
        parts.append(_text(WIDTH - RIGHT, y + 13, words, "end", SMALL))
    goal, end = across.at(1), height - 26
    parts.append(f'<path d="M{goal:.1f} {TOP}V{end}" stroke="{INK}" stroke-dasharray="4 3"/>')
    parts.append(_text(goal, end + 16, "the goal", "middle"))
    return _picture(title, height, "".join(parts))


def text_width(text: str) -> float:
    """Return about how wide a small text is, in pixels: no browser's font of that family is wider on average."""
    return 6.5 * len(text)


def _bar(across: Axis, y: float, share: float) -> str:
    colour, end = ("#15803d" if share <= 1 else "#b45309"), across.at(min(share, across.high))
    width = f"{max(end - across.start, 1):.1f}"
    return f'<rect x="{across.start:.1f}" y="{y}" width="{width}" height="18" rx="2" fill="{colour}"/>'


def _line(across: Axis, up: Axis, points: Sequence[Mapping[str, Any]], colour: str) -> str:
    places = [(across.at(point["x"]), up.at(point["median"])) for point in points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places)
    spread = "".join(
        f'<path d="M{x:.1f} {up.at(at["min"]):.1f}V{up.at(at["max"]):.1f}" stroke="{colour}" stroke-opacity=".45"/>'
        for (x, _), at in zip(places, points, strict=True)
    )
    return f'{spread}<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def _grid_x(axis: Axis, name: str) -> str:
    bottom = HEIGHT - BOTTOM
    lines = "".join(f'<path d="M{axis.at(t):.1f} {TOP}V{bottom}" stroke="{GRID}"/>' for t in axis.ticks())
    texts = "".join(_text(axis.at(t), bottom + 18, short(t), "middle") for t in axis.ticks())
    return lines + texts + _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, name, "middle")


def _grid_y(axis: Axis, unit: str) -> str:
    right = WIDTH - RIGHT
    lines = "".join(f'<path d="M{LEFT} {axis.at(t):.1f}H{right}" stroke="{GRID}"/>' for t in axis.ticks())
    texts = "".join(_text(LEFT - 8, axis.at(t) + 4, short(t), "end") for t in axis.ticks())
    return lines + texts + _text(16, TOP - 10, unit, "start")


def _legend(number: int, name: str, colour: str) -> str:
    y = TOP + 16 + 18 * number
    return f'<rect x="{LEFT + 10}" y="{y - 9}" width="12" height="4" fill="{colour}"/>' + _text(LEFT + 28, y, name)


def _text(x: float, y: float, words: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


def _picture(title: str, height: int, content: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="Helvetica, Arial, sans-serif" fill="{INK}">\n'
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="12" fill="#f8fafc" stroke="{GRID}"/>\n'
        f"{_text(WIDTH / 2, 24, title, 'middle', 15)}{content}\n</svg>\n"
    ).replace("><", ">\n<")


def _span(values: Sequence[float], from_zero: bool) -> tuple[float, float]:
    """Of the axis: a value axis begins at 0 unless it is logarithmic."""
    low, high = min(values), max(values)
    if low > 0 and high / low > 12:
        return (low, high) if not from_zero else (low / 1.3, high * 1.3)
    return (0 if from_zero else low, high * 1.08 if from_zero else high)


def _steps(low: float, high: float) -> list[float]:
    raw = (high - low) / 5 or 1
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step)
    return [step * number for number in range(first, math.floor(high / step) + 1)]


def _colours(number: int) -> Sequence[str]:
    pick: Callable[[int], str] = lambda index: COLOURS[index % len(COLOURS)]  # noqa: E731
    return [pick(index) for index in range(number)]
