"""Curves over positions in characters: braille dots and half blocks, or plain ASCII where those cannot be shown.

plotext always draws a frame of box characters, no rows apart before position 0, and one curve hidden behind another.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ctxextend.cli.output import Pieces
from ctxextend.cli.tables import Page
from ctxextend.tables.stats import needs_log_scale

HEIGHT = 8  # lines of a chart
FRONT = 4  # of a line reserved rows may take the fourth part at most

# What curves are drawn in, with and without Unicode: the bits of a character's dots, by column and by line from
# below, and the characters by the sum of these. Of braille: The Unicode Standard, section 21.1, "Braille Patterns".
Mark = tuple[list[list[int]], str]
BRAILLE = ([[64, 4, 2, 1], [128, 32, 16, 8]], "".join(chr(0x2800 + bits) for bits in range(256)))
MARKS: dict[bool, tuple[Mark, ...]] = {
    True: (BRAILLE, ([[2, 1]], " ▀▄█"), ([[1]], " \u00d7")),
    False: (([[1]], " *"), ([[1]], " o"), ([[1]], " x")),
}
SHARED = {True: "▒", False: "#"}  # where several curves are in one character
# Of the vertical axis its ticks and the rest, then the line between reserved rows and position 0; of the other one.
SIDES = {True: ("┤", "│", "┊"), False: ("|", "|", ":")}
AXES = {True: ("─", "┬", "└", "┴"), False: ("-", "+", "+", "+")}


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
    parts: list[Pieces] = [[(title, "title")], [(" (logarithmic)" * _is_logarithmic(curves), "")]]
    for curve, (_, characters) in zip(curves, MARKS[page.unicode], strict=False):
        if curve.name:
            key = textwrap.wrap(f"  {characters[-1]} {curve.name}", page.width, break_on_hyphens=False)
            parts += [[(text, curve.styles[0])] for text in key]
        parts += curve.key
    if len(curves) > 1:
        parts.append([(f"  {SHARED[page.unicode]} {shared}", "faint")])
    page.flow(parts)
    page.lines += draw(curves, page.width, HEIGHT, unicode=page.unicode)


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

    def shares(values: Sequence[float]) -> NDArray[np.float64]:
        """Return at what part of the height each value is; NaN for what is not finite."""
        numbers = np.array(values, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.clip((scale(numbers) - low) / (high - low), 0, 1) if high > low else np.full(len(numbers), 0.5)
        return np.where(np.isfinite(numbers), found, np.nan)

    margin = max(map(len, labels.values())) + 1
    reserved = max(len(curve.reserved) for curve in curves)
    front = min(reserved, (width - margin) // FRONT)
    first = front + 1 if front else 0  # column of position 0
    columns = max(width - margin - 1 - first, 8)
    length = max(len(curve.values) for curve in curves)
    tick, side, border = SIDES[unicode]
    drawn = []
    for curve, mark in zip(curves, MARKS[unicode], strict=False):
        before = _bits(shares(curve.reserved), mark, (height, front, reserved))
        behind = _bits(shares(curve.values), mark, (height, columns, length))
        bits = np.hstack([before, np.zeros((height, first - front), dtype=int), behind])
        places = (min(column * length // columns, len(curve.values) - 1) for column in range(columns))
        drawn.append((bits, mark[1], ["offset"] * first + [curve.styles[place] for place in places]))
    lines = []
    for row in range(height):
        pieces = [(f"{labels.get(row, ''):>{margin}}{tick if row in labels else side}", "faint")]
        for column in range(first + columns):
            found = [(marks[bits[row, column]], styles[column]) for bits, marks, styles in drawn if bits[row, column]]
            if front and column == front:
                found = [(border, "faint")]
            pieces.append((SHARED[unicode], "faint") if len(found) > 1 else (*found, (" ", ""))[0])
        by_style = groupby(pieces, itemgetter(1))
        lines.append([("".join(text for text, _ in same), style) for style, same in by_style])
    return [*lines, *_axis(margin, front, columns, length, unicode=unicode)]


def _is_logarithmic(curves: Sequence[Curve]) -> bool:
    reserved = np.array([value for curve in curves for value in curve.reserved], dtype=np.float64)
    return needs_log_scale(reserved, np.array([value for curve in curves for value in curve.values], dtype=np.float64))


def _bits(shares: NDArray[np.float64], mark: Mark, size: tuple[int, int, int]) -> NDArray[np.intp]:
    """Return the sum of the dots' bits in each character of a curve, by what part of the height each value is at.

    `size` is in lines, columns, and positions of the axis; the sums are in lines from the top, and columns.
    """
    weights, (height, columns, length) = np.array(mark[0]), size
    across, up = weights.shape
    steps = np.where(np.isnan(shares), -1, np.minimum(shares * height * up, height * up - 1)).astype(int)
    dots = np.zeros((columns * across, height * up), dtype=int)
    before: list[int] = []
    for x in range(columns * across):
        start, stop = (end * length // (columns * across) for end in (x, x + 1))
        here = [step for step in steps[start : max(stop, start + 1)].tolist() if step >= 0]
        if here:
            low, high = min(here), max(here)
            if before:  # leaves no gap to the column before
                low, high = min(low, max(before) + 1), max(high, min(before) - 1)
            dots[x, low : high + 1] = 1
        before = here
    bits: NDArray[np.intp] = np.einsum("cahu,au->hc", dots.reshape(columns, across, height, up), weights)
    return bits[::-1]


def _axis(margin: int, front: int, columns: int, length: int, *, unicode: bool) -> list[Pieces]:
    """Return the line under the plot with a tick at round positions, and their numbers."""
    line, tick, corner, end = AXES[unicode]
    step = 2 ** max(math.ceil(math.log2(length / max(columns // 10, 1))), 0)  # lengths are powers of two
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
