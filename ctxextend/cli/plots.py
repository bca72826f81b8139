"""Curves over positions, drawn with braille dots and half blocks, or with ASCII if the encoding requires it."""
# plotext always draws a frame of box characters, cannot set reserved rows apart, and lets one curve hide another.

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ctxextend.cli.console import Pieces
from ctxextend.cli.tables import Page
from ctxextend.tables.stats import needs_log_scale

HEIGHT = 8  # lines of a chart
MAX_RESERVED_SHARE = 1 / 4  # of a line, for reserved rows

# How curves are drawn, with and without Unicode: the bit of each dot of a character, by column and by line from the
# bottom, and the characters indexed by the sum of bits. Braille: The Unicode Standard, section 21.1.
Mark = tuple[list[list[int]], str]
BRAILLE = ([[64, 4, 2, 1], [128, 32, 16, 8]], "".join(chr(0x2800 + bits) for bits in range(256)))
MARKS: dict[bool, tuple[Mark, ...]] = {
    True: (BRAILLE, ([[2, 1]], " ▀▄█"), ([[1]], " \u00d7")),
    False: (([[1]], " *"), ([[1]], " o"), ([[1]], " x")),
}
SHARED = {True: "▒", False: "#"}  # several curves in one character
# Vertical axis: tick, line, end of the reserved rows. Horizontal axis: line, tick, corner, end of the reserved rows.
SIDES = {True: ("┤", "│", "┊"), False: ("|", "|", ":")}
AXES = {True: ("─", "┬", "└", "┴"), False: ("-", "+", "+", "+")}


@dataclass(frozen=True)
class Curve:
    """One value per position."""

    values: Sequence[float]  # by position; values that are not finite are not drawn
    styles: Sequence[str]  # style name by position
    reserved: Sequence[float] = ()  # values of reserved rows, drawn before position 0
    name: str = ""  # in the key; empty if it is the only curve
    key: tuple[Pieces, ...] = ()  # key entries for further colours


def add_chart(page: Page, title: str, curves: Sequence[Curve], shared: str) -> None:
    """Add a key and up to three curves; `shared` labels the characters where several curves overlap."""
    parts: list[Pieces] = [[(title, "title")], [(" (logarithmic)" * _is_logarithmic(curves), "")]]
    for curve, (_, characters) in zip(curves, MARKS[page.unicode], strict=False):
        if curve.name:
            key = textwrap.wrap(
                f"  {characters[-1]} {curve.name}", page.width, break_on_hyphens=False
            )
            parts += [[(text, curve.styles[0])] for text in key]
        parts += curve.key
    if len(curves) > 1:
        parts.append([(f"  {SHARED[page.unicode]} {shared}", "faint")])
    page.flow(parts)
    page.lines += draw(curves, page.width, HEIGHT, unicode=page.unicode)


def draw(curves: Sequence[Curve], width: int, height: int, *, unicode: bool = True) -> list[Pieces]:
    """Draw up to three curves over one axis of positions, in `height` lines and two lines for the axis."""
    # A padding row is zero; including it would flatten the rest of the curve.
    values = [
        value
        for curve in curves
        for value in (*filter(lambda value: value > 0, curve.reserved), *curve.values)
    ]
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    scale = np.log if _is_logarithmic(curves) else np.asarray
    low, high = (float(scale(end)) for end in (min(finite), max(finite)))
    middle = float(np.exp((low + high) / 2)) if scale is np.log else low + (high - low) / 2
    is_curved = high - low > 1e-6 * abs(
        high
    )  # the rows of sinusoids have equal norms, except for rounding
    labels = {
        height - 1: f"{min(finite):.3g}",
        height // 2: f"{middle:.3g}",
        0: f"{max(finite):.3g}",
    }

    def heights(values: Sequence[float]) -> NDArray[np.float64]:
        numbers = np.array(values, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (
                np.clip((scale(numbers) - low) / (high - low), 0, 1)
                if is_curved
                else np.full(len(numbers), 0.5)
            )
        return np.where(np.isfinite(numbers), ratio, np.nan)

    margin = max(map(len, labels.values())) + 1
    reserved = max(len(curve.reserved) for curve in curves)
    reserved_columns = min(reserved, int((width - margin) * MAX_RESERVED_SHARE))
    first = reserved_columns + 1 if reserved_columns else 0  # column of position 0
    columns = max(width - margin - 1 - first, 8)
    length = max(len(curve.values) for curve in curves)
    tick, side, border = SIDES[unicode]
    drawn = []
    for curve, mark in zip(curves, MARKS[unicode], strict=False):
        left = _dot_bits(heights(curve.reserved), mark, (height, reserved_columns, reserved))
        right = _dot_bits(heights(curve.values), mark, (height, columns, length))
        bits = np.hstack([left, np.zeros((height, first - reserved_columns), dtype=int), right])
        positions = (
            min(column * length // columns, len(curve.values) - 1) for column in range(columns)
        )
        drawn.append(
            (
                bits,
                mark[1],
                ["reserved"] * first + [curve.styles[position] for position in positions],
            )
        )
    lines = []
    for row in range(height):
        pieces = [(f"{labels.get(row, ''):>{margin}}{tick if row in labels else side}", "faint")]
        for column in range(first + columns):
            cells = [
                (marks[bits[row, column]], styles[column])
                for bits, marks, styles in drawn
                if bits[row, column]
            ]
            if reserved_columns and column == reserved_columns:
                cells = [(border, "faint")]
            pieces.append((SHARED[unicode], "faint") if len(cells) > 1 else (*cells, (" ", ""))[0])
        lines.append(
            [
                ("".join(text for text, _ in same), style)
                for style, same in groupby(pieces, itemgetter(1))
            ]
        )
    return [*lines, *_axis(margin, reserved_columns, columns, length, unicode=unicode)]


def _is_logarithmic(curves: Sequence[Curve]) -> bool:
    reserved = np.array([value for curve in curves for value in curve.reserved], dtype=np.float64)
    return needs_log_scale(
        reserved, np.array([value for curve in curves for value in curve.values], dtype=np.float64)
    )


def _dot_bits(
    heights: NDArray[np.float64], mark: Mark, size: tuple[int, int, int]
) -> NDArray[np.intp]:
    """Return the sum of dot bits of each character, (lines from the top, columns), from relative heights, (n,)."""
    weights, (height, columns, length) = np.array(mark[0]), size  # in lines, columns and positions
    across, up = weights.shape
    steps = np.where(
        np.isnan(heights), -1, np.minimum(heights * height * up, height * up - 1)
    ).astype(int)
    dots = np.zeros((columns * across, height * up), dtype=int)
    previous: list[int] = []
    for x in range(columns * across):
        start, stop = (end * length // (columns * across) for end in (x, x + 1))
        # The range of all positions of a column, so that no single row is lost.
        current = [step for step in steps[start : max(stop, start + 1)].tolist() if step >= 0]
        if current:
            low, high = min(current), max(current)
            if previous:  # no gap to the previous column
                low, high = min(low, max(previous) + 1), max(high, min(previous) - 1)
            dots[x, low : high + 1] = 1
        previous = current
    bits: NDArray[np.intp] = np.einsum(
        "cahu,au->hc", dots.reshape(columns, across, height, up), weights
    )
    return bits[::-1]


def _axis(
    margin: int, reserved_columns: int, columns: int, length: int, *, unicode: bool
) -> list[Pieces]:
    line, tick, corner, end = AXES[unicode]
    step = 2 ** max(
        math.ceil(math.log2(length / max(columns // 10, 1))), 0
    )  # lengths are powers of two
    ticks = {position * columns // length: str(position) for position in range(0, length, step)}
    ruler = "".join(tick if column in ticks else line for column in range(columns))
    numbers = [" "] * columns
    for column, label in ticks.items():
        if column + len(label) <= columns:
            numbers[column : column + len(label)] = label
    left = line * reserved_columns + end * bool(reserved_columns)
    return [
        [(f"{'':{margin}}{corner}{left}{ruler}", "faint")],
        [(f"{'':{margin + 1 + len(left)}}{''.join(numbers)}".rstrip(), "faint")],
    ]
