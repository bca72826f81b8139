"""Curves over positions in characters: braille dots and half blocks, or plain ASCII where those cannot be shown.

plotext draws curves too, but always in a frame of box characters, without rows set apart in front of position 0, and
with one curve hidden behind another.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from ctxextend.cli.output import Pieces
from ctxextend.tables.stats import needs_log_scale

# Of a line, the part that reserved rows may take at most: a fourth.
FRONT = 4

# The bits of a braille character's dots: The Unicode Standard, section 21.1, "Braille Patterns".
BITS = {(0, 0): 1, (0, 1): 2, (0, 2): 4, (1, 0): 8, (1, 1): 16, (1, 2): 32, (0, 3): 64, (1, 3): 128}
HALVES = {frozenset({(0, 0)}): "▀", frozenset({(0, 1)}): "▄"}

Dots = set[tuple[int, int]]


@dataclass(frozen=True)
class Curve:
    """A row of numbers to draw.

    Attributes:
        values: One for each position; what is no finite number is left out.
        styles: The style of each position.
        reserved: Values of rows before position 0, drawn apart from the others.
    """

    values: Sequence[float]
    styles: Sequence[str]
    reserved: Sequence[float] = ()


@dataclass(frozen=True)
class _Mark:
    """What a curve is drawn in: a character shows `across` x `up` dots, each (column, line from the top)."""

    across: int
    up: int
    character: Callable[[Dots], str]


UNICODE_MARKS = (
    _Mark(2, 4, lambda dots: chr(0x2800 + sum(BITS[dot] for dot in dots))),
    _Mark(1, 2, lambda dots: HALVES.get(frozenset(dots), "█")),
    _Mark(1, 1, lambda dots: "\u00d7"),
)
ASCII_MARKS = (_Mark(1, 1, lambda dots: "*"), _Mark(1, 1, lambda dots: "o"), _Mark(1, 1, lambda dots: "x"))


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    is_logarithmic: bool

    def step(self, value: float, steps: int) -> int:
        """Return the step that a value is at, 0 the lowest."""
        if value < self.low:  # a padding row
            return 0
        low, high, at = (math.log(v) if self.is_logarithmic else v for v in (self.low, self.high, value))
        return min(int((at - low) / (high - low) * steps), steps - 1) if high > low else steps // 2

    def label(self, share: float) -> str:
        """Return the value at a share of the height, 0 the bottom."""
        if self.is_logarithmic:
            return f"{math.exp((1 - share) * math.log(self.low) + share * math.log(self.high)):.3g}"
        return f"{self.low + (self.high - self.low) * share:.3g}"


def draw(curves: Sequence[Curve], width: int, height: int, *, unicode: bool = True) -> list[Pieces]:
    """Draw up to three curves over one axis of positions.

    A column that stands for several positions shows everything from the lowest to the highest of their values, so
    that no single row is lost. The curves are drawn in marks of their own, so that they differ without colour too,
    and another mark stands for several. Where the highest value is far above the median, equal steps up are equal
    factors.

    Args:
        curves: What to draw; the axis is as long as the longest of them.
        width: Characters of a line, labels included.
        height: Lines of the plot, the axis and its labels not included.
        unicode: Whether braille, block and line characters may be used.

    Returns:
        `height` lines, the axis, and its labels.
    """
    scale = _scale(curves)
    labels = {height - 1: f"{scale.low:.3g}", height // 2: scale.label(0.5), 0: scale.label(1)}
    margin = max(map(len, labels.values())) + 1
    reserved = max(len(curve.reserved) for curve in curves)
    front = min(reserved, (width - margin) // FRONT)
    first = front + 1 if front else 0  # column of position 0
    columns = max(width - margin - 1 - first, 8)
    length = max(len(curve.values) for curve in curves)
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    for curve, mark in reversed(list(zip(curves, UNICODE_MARKS if unicode else ASCII_MARKS, strict=False))):
        drawn = _cells(curve.reserved, ["offset"] * reserved, mark, scale, height, front, reserved)
        body = _cells(curve.values, curve.styles, mark, scale, height, columns, length)
        drawn |= {(row, first + column): cell for (row, column), cell in body.items()}
        for place, cell in drawn.items():
            cells[place] = (shared_mark(unicode=unicode), "axis") if place in cells else cell
    if front:
        cells |= {(row, front): ("┊" if unicode else ":", "axis") for row in range(height)}
    lines = []
    for row in range(height):
        axis = ("┤" if row in labels else "│") if unicode else "|"
        pieces = [cells.get((row, column), (" ", "")) for column in range(first + columns)]
        pieces.insert(0, (f"{labels.get(row, ''):>{margin}}{axis}", "axis"))
        by_style = groupby(pieces, itemgetter(1))
        lines.append([("".join(text for text, _ in same), style) for style, same in by_style])
    return [*lines, *_axis(margin, front, columns, length, unicode=unicode)]


def key_marks(*, unicode: bool) -> tuple[str, ...]:
    """Return what stands for each curve that `draw` draws, in the key of a chart."""
    return ("\u28ff", "\u2588", "\u00d7") if unicode else ("*", "o", "x")


def shared_mark(*, unicode: bool) -> str:
    """Return what stands where several curves are in one character."""
    return "▒" if unicode else "#"


def is_logarithmic(curves: Sequence[Curve]) -> bool:
    """Whether `draw` shows these curves with equal factors as equal steps up."""
    return _scale(curves).is_logarithmic


def _scale(curves: Sequence[Curve]) -> _Scale:
    reserved = [value for curve in curves for value in curve.reserved]
    values = [value for curve in curves for value in curve.values]
    # A padding row is zero; with room for that, little would be seen of the others.
    finite = [value for value in (*filter(lambda value: value > 0, reserved), *values) if math.isfinite(value)]
    if not finite:
        return _Scale(0.0, 1.0, is_logarithmic=False)
    spread = needs_log_scale(np.array(reserved, dtype=np.float64), np.array(values, dtype=np.float64))
    return _Scale(min(finite), max(finite), is_logarithmic=spread)


def _cells(
    values: Sequence[float],
    styles: Sequence[str],
    mark: _Mark,
    scale: _Scale,
    height: int,
    columns: int,
    length: int,
) -> dict[tuple[int, int], tuple[str, str]]:
    """Return the characters of a curve with their styles, by line from the top and column."""
    dots: dict[tuple[int, int], Dots] = {}
    across, steps, before = columns * mark.across, height * mark.up, None
    for x in range(across):
        start, stop = x * length // across, max((x + 1) * length // across, x * length // across + 1)
        here = [scale.step(value, steps) for value in values[start:stop] if math.isfinite(value)]
        if here:
            low, high = min(here), max(here)
            reached = (min(low, before[1] + 1), max(high, before[0] - 1)) if before else (low, high)  # leaves no gap
            for y in range(steps - 1 - reached[1], steps - reached[0]):
                dots.setdefault((y // mark.up, x // mark.across), set()).add((x % mark.across, y % mark.up))
        before = (low, high) if here else None
    last = len(values) - 1
    return {
        (row, column): (mark.character(found), styles[min(column * length // columns, last)])
        for (row, column), found in dots.items()
    }


def _axis(margin: int, front: int, columns: int, length: int, *, unicode: bool) -> list[Pieces]:
    """Return the line under the plot with a tick at round positions, and their numbers."""
    step = 1  # a power of two, since lengths are such
    while length > step * max(columns // 10, 1):
        step *= 2
    ticks = {position * columns // length: str(position) for position in range(0, length, step)}
    line, tick, corner, end = ("─", "┬", "└", "┴") if unicode else ("-", "+", "+", "+")
    ruler = "".join(tick if column in ticks else line for column in range(columns))
    numbers = [" "] * columns
    for column, label in ticks.items():
        if column + len(label) <= columns:
            numbers[column : column + len(label)] = label
    before = line * front + end * bool(front)
    return [
        [(f"{'':{margin}}{corner}{before}{ruler}", "axis")],
        [(f"{'':{margin + 1 + len(before)}}{''.join(numbers)}".rstrip(), "axis")],
    ]
