"""Curves over positions in characters: braille dots and half blocks, or plain ASCII where those cannot be shown.

plotext draws curves too, but always in a frame of box characters, without rows set apart before position 0, and with
one curve hidden behind another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from ctxextend.cli.output import Pieces
from ctxextend.cli.tables import Page
from ctxextend.tables.stats import needs_log_scale

# Of a line, the part that reserved rows may take at most: a fourth.
FRONT = 4

# What curves are drawn in, with and without Unicode: dots across and up in a character, and the characters by the sum
# of their dots' bits. Of braille: The Unicode Standard, section 21.1, "Braille Patterns".
BITS = {(0, 0): 1, (0, 1): 2, (0, 2): 4, (1, 0): 8, (1, 1): 16, (1, 2): 32, (0, 3): 64, (1, 3): 128}
BRAILLE = "".join(chr(0x2800 + bits) for bits in range(256))
Mark = tuple[int, int, str]
MARKS: dict[bool, tuple[Mark, ...]] = {
    True: ((2, 4, BRAILLE), (1, 2, " ▀▄█"), (1, 1, " \u00d7")),
    False: ((1, 1, " *"), (1, 1, " o"), (1, 1, " x")),
}
SHARED = {True: "▒", False: "#"}  # where several curves are in one character
# Of the vertical axis its ticks and the rest, then the line between reserved rows and position 0; of the other one.
SIDES = {True: ("┤", "│", "┊"), False: ("|", "|", ":")}
AXES = {True: ("─", "┬", "└", "┴"), False: ("-", "+", "+", "+")}

# What a character shows and in which style, by its line from the top and its column.
Cells = dict[tuple[int, int], tuple[str, str]]


@dataclass(frozen=True)
class Curve:
    """A row of numbers to draw."""

    values: Sequence[float]  # one for each position; what is no finite number is left out
    styles: Sequence[str]  # the style of each position
    reserved: Sequence[float] = ()  # values of rows before position 0, drawn apart from the others
    name: str = ""  # what it is called in the key; empty where it is alone
    key: tuple[Pieces, ...] = ()  # what its other colours mean


def add_chart(page: Page, title: str, curves: Sequence[Curve], shared: str) -> None:
    """Add up to three curves below a key to what is what; `shared` names what several of them have in common."""
    parts: list[Pieces] = [[(title, "title"), (" (logarithmic)" * _is_logarithmic(curves), "")]]
    for curve, (_, _, characters) in zip(curves, MARKS[page.unicode], strict=False):
        if curve.name:
            parts.append([(f"  {characters[-1]} {curve.name}", curve.styles[0])])
        parts += curve.key
    if len(curves) > 1:
        parts.append([(f"  {SHARED[page.unicode]} {shared}", "faint")])
    page.flow(parts)
    page.lines += draw(curves, page.width, page.chart_height, unicode=page.unicode)


def draw(curves: Sequence[Curve], width: int, height: int, *, unicode: bool = True) -> list[Pieces]:
    """Draw up to three curves over one axis of positions: `height` lines, the axis, and its labels.

    A column that stands for several positions shows everything from the lowest to the highest of their values, so
    that no single row is lost. Where the highest value is far above the median, equal steps up are equal factors.
    """
    # A padding row is zero; with room for that, little would be seen of the others.
    shown = [value for curve in curves for value in (*filter(lambda value: value > 0, curve.reserved), *curve.values)]
    finite = [value for value in shown if math.isfinite(value)] or [0.0, 1.0]
    scale = np.log if _is_logarithmic(curves) else np.asarray
    low, high = (float(scale(end)) for end in (min(finite), max(finite)))
    middle = float(np.exp((low + high) / 2)) if scale is np.log else low + (high - low) / 2
    labels = {height - 1: f"{min(finite):.3g}", height // 2: f"{middle:.3g}", 0: f"{max(finite):.3g}"}

    def shares(values: Sequence[float]) -> list[float]:
        """Return at what part of the height each value is; NaN for what is not finite."""
        numbers = np.array(values, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.clip((scale(numbers) - low) / (high - low), 0, 1) if high > low else np.full(len(numbers), 0.5)
        return [float(value) for value in np.where(np.isfinite(numbers), found, np.nan)]

    margin = max(map(len, labels.values())) + 1
    reserved = max(len(curve.reserved) for curve in curves)
    front = min(reserved, (width - margin) // FRONT)
    first = front + 1 if front else 0  # column of position 0
    columns = max(width - margin - 1 - first, 8)
    length = max(len(curve.values) for curve in curves)
    tick, side, border = SIDES[unicode]
    cells: Cells = {}
    for curve, mark in reversed(list(zip(curves, MARKS[unicode], strict=False))):
        drawn = _cells(shares(curve.reserved), ["offset"] * reserved, mark, (height, front, reserved))
        body = _cells(shares(curve.values), curve.styles, mark, (height, columns, length))
        drawn |= {(row, first + column): cell for (row, column), cell in body.items()}
        for place, cell in drawn.items():
            cells[place] = (SHARED[unicode], "faint") if place in cells else cell
    lines = []
    for row in range(height):
        if front:
            cells[row, front] = border, "faint"
        pieces = [(f"{labels.get(row, ''):>{margin}}{tick if row in labels else side}", "faint")]
        pieces += [cells.get((row, column), (" ", "")) for column in range(first + columns)]
        by_style = groupby(pieces, itemgetter(1))
        lines.append([("".join(text for text, _ in same), style) for style, same in by_style])
    return [*lines, *_axis(margin, front, columns, length, unicode=unicode)]


def _is_logarithmic(curves: Sequence[Curve]) -> bool:
    reserved = np.array([value for curve in curves for value in curve.reserved], dtype=np.float64)
    return needs_log_scale(reserved, np.array([value for curve in curves for value in curve.values], dtype=np.float64))


def _cells(shares: Sequence[float], styles: Sequence[str], mark: Mark, size: tuple[int, int, int]) -> Cells:
    """Return the characters of a curve, by what part of the height each value is at.

    `size` is in lines, columns, and positions of the axis.
    """
    (across, up, characters), (height, columns, length) = mark, size
    bits: dict[tuple[int, int], int] = {}
    before: list[int] = []
    for x in range(columns * across):
        start, stop = (end * length // (columns * across) for end in (x, x + 1))
        here = [share for share in shares[start : max(stop, start + 1)] if not math.isnan(share)]
        steps = [min(int(share * height * up), height * up - 1) for share in here]
        if steps:
            low, high = min(steps), max(steps)
            if before:  # leaves no gap to the column before
                low, high = min(low, max(before) + 1), max(high, min(before) - 1)
            for y in range(height * up - 1 - high, height * up - low):
                place = y // up, x // across
                bits[place] = bits.get(place, 0) | BITS[x % across, y % up]
        before = steps
    return {
        (row, column): (characters[found], styles[min(column * length // columns, len(shares) - 1)])
        for (row, column), found in bits.items()
    }


def _axis(margin: int, front: int, columns: int, length: int, *, unicode: bool) -> list[Pieces]:
    """Return the line under the plot with a tick at round positions, and their numbers."""
    line, tick, corner, end = AXES[unicode]
    step = 1  # a power of two, since lengths are such
    while length > step * max(columns // 10, 1):
        step *= 2
    ticks = {position * columns // length: str(position) for position in range(0, length, step)}
    ruler = "".join(tick if column in ticks else line for column in range(columns))
    numbers = [" "] * columns
    for column, label in ticks.items():
        if column + len(label) <= columns:
            numbers[column : column + len(label)] = label
    before = line * front + end * bool(front)
    return [
        [(f"{'':{margin}}{corner}{before}{ruler}", "faint")],
        [(f"{'':{margin + 1 + len(before)}}{''.join(numbers)}".rstrip(), "faint")],
    ]
