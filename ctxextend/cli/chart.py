"""Curves over positions in characters: braille dots and half blocks, or plain ASCII where those cannot be shown."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ctxextend.tables.stats import needs_log_scale

__all__ = ["SHARED", "WHOLE_SCREEN", "Curve", "Pieces", "chart_height", "draw", "is_logarithmic", "key_marks"]

# A line as pieces of text, each with the name of its style.
Pieces = list[tuple[str, str]]

# The lowest and the highest step of a column; None where it has no value.
Column = tuple[int, int] | None

# Lines of a chart, and of a screen on which it has all of them.
CHART_LINES = 8
FEWEST_CHART_LINES = 4
WHOLE_SCREEN = 46

# Stands where two curves are in one character.
SHARED = ("▒", "#")

# Of a line, the part that rows in front of position 0 may take at most: a fourth.
FRONT = 4


@dataclass(frozen=True)
class Curve:
    """A row of numbers to draw.

    Attributes:
        values: One for each position; what is no finite number is left out.
        offset: Values in front of position 0, drawn apart from the others.
        style: Gives the style of a position.
    """

    values: Sequence[float]
    offset: Sequence[float]
    style: Callable[[int], str]


@dataclass(frozen=True)
class _Marks:
    """How steps become characters: each holds `across` columns by `up` steps.

    Attributes:
        across: Columns a character.
        up: Steps a character.
        character: Gives the character for the dots that are set, each (column, step from the top).
    """

    across: int
    up: int
    character: Callable[[set[tuple[int, int]]], str]


# The bits of a braille character's dots: The Unicode Standard, section 21.1, "Braille Patterns".
_BITS = {(0, 0): 1, (0, 1): 2, (0, 2): 4, (1, 0): 8, (1, 1): 16, (1, 2): 32, (0, 3): 64, (1, 3): 128}

_BRAILLE = _Marks(2, 4, lambda dots: chr(0x2800 + sum(_BITS[dot] for dot in dots)))
_BLOCKS = _Marks(1, 2, lambda dots: {(True, False): "▀", (False, True): "▄"}.get(((0, 0) in dots, (0, 1) in dots), "█"))
_CROSSES = _Marks(1, 1, lambda dots: "\u00d7")
_ASCII = (_Marks(1, 1, lambda dots: "*"), _Marks(1, 1, lambda dots: "o"), _Marks(1, 1, lambda dots: "x"))
_MARKS = ((_BRAILLE, _BLOCKS, _CROSSES), _ASCII)


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

    def value(self, share: float) -> float:
        """Return the value at a share of the height, 0 the bottom."""
        if self.is_logarithmic:
            return math.exp((1 - share) * math.log(self.low) + share * math.log(self.high))
        return self.low + (self.high - self.low) * share


def draw(curves: Sequence[Curve], width: int, height: int, *, unicode: bool = True) -> list[Pieces]:
    """Draw up to three curves over one axis of positions.

    A column that stands for several positions shows everything from the lowest to the highest of their values, so
    that no single row is lost. The first curve is drawn in braille dots, the second in half blocks, the third in
    crosses (``*``, ``o`` and ``x`` in ASCII), so that they differ without colour too, and a mark of its own stands for
    several. Where the highest value is far above the median, equal steps up are equal factors.

    Args:
        curves: What to draw; the axis is as long as the longest of them.
        width: Characters of a line, labels included.
        height: Lines of the plot, the axis and its labels not included.
        unicode: Whether braille, block and line characters may be used.

    Returns:
        `height` lines, the axis, and its labels.
    """
    scale = _scale(curves)
    labels = {0: _number(scale.value(1)), height // 2: _number(scale.value(0.5)), height - 1: _number(scale.low)}
    margin = max(map(len, labels.values())) + 1
    before = max(len(curve.offset) for curve in curves)
    fronts = min(before, (width - margin) // FRONT)
    columns = max(width - margin - 1 - (fronts + 1 if fronts else 0), 8)
    length = max(len(curve.values) for curve in curves)
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    for curve, marks in reversed(list(zip(curves, _MARKS[not unicode], strict=False))):
        front = Curve(curve.offset, (), lambda position: "offset")
        for part, start, room, positions in ((front, 0, fronts, before), (curve, fronts + 1, columns, length)):
            for (row, column), piece in _cells(part, marks, scale, (room, height, positions)).items():
                place = row, start + column
                cells[place] = (SHARED[not unicode], "axis") if place in cells else piece
    rows = []
    for row in range(height):
        label = labels.get(row, "")
        axis = ("┤" if label else "│") if unicode else "|"
        bar = "┊" if unicode else ":"
        front_cells = [*(cells.get((row, column), (" ", "")) for column in range(fronts)), (bar, "axis")]
        body = [cells.get((row, fronts + 1 + column), (" ", "")) for column in range(columns)]
        rows.append([(f"{label:>{margin}}", "axis"), (axis, "axis"), *(front_cells if fronts else []), *body])
    return [*map(_joined, rows), *_axis(margin, fronts, columns, length, unicode=unicode)]


def key_marks(*, unicode: bool) -> tuple[str, ...]:
    """Return what stands for each curve that `draw` draws, in the key of a chart."""
    return ("\u28ff", "\u2588", "\u00d7") if unicode else ("*", "o", "x")


def chart_height(screen: int) -> int:
    """Return the lines of a chart on a screen of so many: fewer on a small one."""
    return max(CHART_LINES - max(WHOLE_SCREEN - screen, 0), FEWEST_CHART_LINES)


def is_logarithmic(curves: Sequence[Curve]) -> bool:
    """Whether `draw` shows these curves with equal factors as equal steps up."""
    return _scale(curves).is_logarithmic


def _scale(curves: Sequence[Curve]) -> _Scale:
    # A padding row in front is zero; with room for that, little would be seen of the others.
    fronts = (value for curve in curves for value in curve.offset if value > 0)
    every = (*fronts, *(value for curve in curves for value in curve.values))
    values = [value for value in every if math.isfinite(value)]
    if not values:
        return _Scale(0.0, 1.0, is_logarithmic=False)
    offset = np.array([value for curve in curves for value in curve.offset], dtype=np.float64)
    behind = np.array([value for curve in curves for value in curve.values], dtype=np.float64)
    return _Scale(min(values), max(values), is_logarithmic=needs_log_scale(offset, behind))


def _cells(
    curve: Curve, marks: _Marks, scale: _Scale, room: tuple[int, int, int]
) -> dict[tuple[int, int], tuple[str, str]]:
    """Return the characters of a curve with their styles, by line from the top and column."""
    columns, height, length = room
    steps = height * marks.up
    dots: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for x, found in enumerate(_columns(curve.values, columns * marks.across, length, scale, steps)):
        for step in range(found[0], found[1] + 1) if found else ():
            y = steps - 1 - step
            dots.setdefault((y // marks.up, x // marks.across), set()).add((x % marks.across, y % marks.up))
    last = len(curve.values) - 1
    return {
        (row, column): (marks.character(found), curve.style(min(column * length // columns, last)))
        for (row, column), found in dots.items()
    }


def _columns(values: Sequence[float], columns: int, length: int, scale: _Scale, steps: int) -> list[Column]:
    """Return the steps between the lowest and the highest value of every column, joined to the column before."""
    found: list[Column] = []
    for x in range(columns):
        start, stop = x * length // columns, max((x + 1) * length // columns, x * length // columns + 1)
        here = [scale.step(value, steps) for value in values[start:stop] if math.isfinite(value)]
        own = (min(here), max(here)) if here else None
        found.append(own)
    return [_reaching(own, before) for own, before in zip(found, [None, *found], strict=False)]


def _reaching(own: Column, before: Column) -> Column:
    """Return a column's steps, stretched so that no gap is left to the column before it."""
    if own is None or before is None:
        return own
    return min(own[0], before[1] + 1), max(own[1], before[0] - 1)


def _axis(margin: int, fronts: int, columns: int, length: int, *, unicode: bool) -> list[Pieces]:
    """Return the line under the plot with a tick at round positions, and their numbers."""
    step = _round_step(length, max(columns // 10, 1))
    places = {position * columns // length: str(position) for position in range(0, length, step)}
    line, tick, corner = ("─", "┬", "└") if unicode else ("-", "+", "+")
    front = line * fronts + (("┴" if unicode else "+") if fronts else "")
    ruler = "".join(tick if column in places else line for column in range(columns))
    text = [" "] * (columns + 8)
    for column, label in places.items():
        if column + len(label) <= columns:
            text[column : column + len(label)] = label
    gap = " " * (margin + 1 + len(front))
    return [
        [(" " * margin + corner + front + ruler, "axis")],
        [((gap + "".join(text)).rstrip(), "axis")],
    ]


def _round_step(length: int, ticks: int) -> int:
    """Return the distance of ticks: the smallest power of two that leaves at most so many, since lengths are such."""
    step = 1
    while length > step * ticks:
        step *= 2
    return step


def _number(value: float) -> str:
    return f"{value:.3g}"


def _joined(pieces: Pieces) -> Pieces:
    """Return a line with neighbours of one style as one piece."""
    joined: Pieces = []
    for text, style in pieces:
        if joined and joined[-1][1] == style:
            joined[-1] = (joined[-1][0] + text, style)
        else:
            joined.append((text, style))
    return joined
