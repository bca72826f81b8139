"""Curves over positions, drawn with braille dots and half blocks, or with ASCII characters."""
# plotext always draws a frame of box characters, cannot set reserved rows apart, and lets one curve
# hide another.

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.cli.console import Pieces
from ctxextend.cli.tables import Page
from ctxextend.tables.stats import needs_log_scale

HEIGHT = 8  # lines of a chart
MIN_COLUMNS = 8  # for the values of positions
MAX_RESERVED_SHARE = 1 / 4  # of a line, for reserved rows
LABEL_COLUMNS = 10  # per label of the axis of positions
# A smaller relative range is a flat curve: norms of sinusoids differ by rounding.
RANGE_OF_FLAT_CURVES = 1e-6


class Mark(NamedTuple):
    """How a curve is drawn: characters of one or more dots."""

    dots: Sequence[Sequence[int]]  # the bit of each dot, by column and by line from the bottom
    characters: str  # by the sum of the bits of their dots

    @property
    def full(self) -> str:
        """The character with all dots."""
        return self.characters[-1]


class Alphabet(NamedTuple):
    """The characters of a chart."""

    marks: Sequence[Mark]  # of each curve
    shared: str  # several curves in one character
    side: str  # vertical axis
    side_tick: str
    border: str  # vertical line between reserved rows and position 0
    corner: str
    base: str  # horizontal axis
    base_tick: str
    base_border: str  # where the border meets the horizontal axis


UNICODE = Alphabet(
    marks=(
        # Source: The Unicode Standard, section 21.1, Braille.
        Mark(
            dots=[[64, 4, 2, 1], [128, 32, 16, 8]],
            characters="".join(chr(0x2800 + bits) for bits in range(256)),
        ),
        Mark(dots=[[2, 1]], characters=" ▀▄█"),
        Mark(dots=[[1]], characters=" \u00d7"),
    ),
    shared="▒",
    side="│",
    side_tick="┤",
    border="┊",
    corner="└",
    base="─",
    base_tick="┬",
    base_border="┴",
)
ASCII = Alphabet(
    marks=(
        Mark(dots=[[1]], characters=" *"),
        Mark(dots=[[1]], characters=" o"),
        Mark(dots=[[1]], characters=" x"),
    ),
    shared="#",
    side="|",
    side_tick="|",
    border=":",
    corner="+",
    base="-",
    base_tick="+",
    base_border="+",
)


class Curve(NamedTuple):
    """One value per position."""

    values: Sequence[float]  # by position; values that are not finite are not drawn
    styles: Sequence[str]  # style name by position
    reserved: Sequence[float] = ()  # values of reserved rows, drawn before position 0
    name: str = ""  # in the key; empty if it is the only curve
    key: tuple[Pieces, ...] = ()  # key entries for further colours


class Scale(NamedTuple):
    """The range of values that a chart shows."""

    lowest: float
    highest: float
    is_logarithmic: bool

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value as heights in any unit."""
        if self.is_logarithmic:
            return float(np.log(self.lowest)), float(np.log(self.highest))
        return self.lowest, self.highest

    @property
    def middle(self) -> float:
        """The value at half the height."""
        low, high = self.ends
        if self.is_logarithmic:
            return float(np.exp((low + high) / 2))
        return low + (high - low) / 2

    def labels(self, height: int) -> dict[int, str]:
        """Return the labels of the vertical axis by line from the top."""
        return {
            height - 1: f"{self.lowest:.3g}",
            height // 2: f"{self.middle:.3g}",
            0: f"{self.highest:.3g}",
        }

    def heights(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return values as heights from 0 to 1; NaN for values that are not finite."""
        numbers = np.array(values, dtype=np.float64)
        low, high = self.ends
        if high - low <= RANGE_OF_FLAT_CURVES * abs(high):
            return np.where(np.isfinite(numbers), 0.5, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.log(numbers) if self.is_logarithmic else numbers
            heights = np.clip((scaled - low) / (high - low), 0, 1)
        return np.where(np.isfinite(numbers), heights, np.nan)


class ChartLayout(NamedTuple):
    """How the width of a chart is used, in columns of characters."""

    margin: int  # labels of the vertical axis
    reserved: int  # number of reserved rows
    reserved_columns: int
    length: int  # number of positions
    columns: int  # for positions

    @property
    def first(self) -> int:
        """The column of position 0: after the reserved rows and the border."""
        return self.reserved_columns + 1 if self.reserved_columns else 0


class DrawnCurve(NamedTuple):
    """The characters of a curve."""

    bits: NDArray[np.intp]  # sum of the bits of dots, (lines from the top, columns)
    characters: str
    styles: Sequence[str]  # by column


def add_chart(page: Page, title: str, curves: Sequence[Curve], shared: str) -> None:
    """Add a key and up to three curves; `shared` labels characters where several overlap."""
    alphabet = UNICODE if page.unicode else ASCII
    parts: list[Pieces] = [[(title, "title")]]
    if _is_logarithmic(curves):
        parts.append([(" (logarithmic)", "")])
    for curve, mark in zip(curves, alphabet.marks, strict=False):
        if curve.name:
            entry = f"  {mark.full} {curve.name}"
            lines = textwrap.wrap(entry, page.width, break_on_hyphens=False)
            parts += [[(line, curve.styles[0])] for line in lines]
        parts += curve.key
    if len(curves) > 1:
        parts.append([(f"  {alphabet.shared} {shared}", "faint")])
    page.flow(parts)
    page.lines += draw(curves, page.width, HEIGHT, unicode=page.unicode)


def draw(curves: Sequence[Curve], width: int, height: int, *, unicode: bool = True) -> list[Pieces]:
    """Draw up to three curves over positions, in `height` lines and two lines for the axis."""
    alphabet = UNICODE if unicode else ASCII
    scale = _find_scale(curves)
    labels = scale.labels(height)
    layout = _find_layout(curves, labels.values(), width)
    drawn = [
        _draw_curve(curve, mark, scale, layout, height)
        for curve, mark in zip(curves, alphabet.marks, strict=False)
    ]
    lines = []
    for row in range(height):
        label = labels.get(row, "")
        side = alphabet.side_tick if label else alphabet.side
        cells = [(f"{label:>{layout.margin}}{side}", "faint")]
        cells += _draw_row(row, drawn, layout, alphabet)
        lines.append(_merge_equal_styles(cells))
    return [*lines, *_axis(layout, alphabet)]


def _is_logarithmic(curves: Sequence[Curve]) -> bool:
    reserved = [value for curve in curves for value in curve.reserved]
    values = [value for curve in curves for value in curve.values]
    return needs_log_scale(np.array(reserved, np.float64), np.array(values, np.float64))


def _find_scale(curves: Sequence[Curve]) -> Scale:
    values: list[float] = []
    for curve in curves:
        # A padding row is zero; including it would flatten the rest of the curve.
        values += [value for value in curve.reserved if value > 0]
        values += curve.values
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    return Scale(lowest=min(finite), highest=max(finite), is_logarithmic=_is_logarithmic(curves))


def _find_layout(curves: Sequence[Curve], labels: Iterable[str], width: int) -> ChartLayout:
    margin = max(map(len, labels)) + 1
    reserved = max(len(curve.reserved) for curve in curves)
    reserved_columns = min(reserved, int((width - margin) * MAX_RESERVED_SHARE))
    border = 1 if reserved_columns else 0
    side = 1
    return ChartLayout(
        margin=margin,
        reserved=reserved,
        reserved_columns=reserved_columns,
        length=max(len(curve.values) for curve in curves),
        columns=max(width - margin - side - reserved_columns - border, MIN_COLUMNS),
    )


def _draw_curve(
    curve: Curve, mark: Mark, scale: Scale, layout: ChartLayout, height: int
) -> DrawnCurve:
    reserved = _dot_bits(
        scale.heights(curve.reserved), mark, (height, layout.reserved_columns), layout.reserved
    )
    border = np.zeros((height, layout.first - layout.reserved_columns), dtype=int)
    values = _dot_bits(scale.heights(curve.values), mark, (height, layout.columns), layout.length)
    styles = ["reserved"] * layout.first
    for column in range(layout.columns):
        position = min(column * layout.length // layout.columns, len(curve.values) - 1)
        styles.append(curve.styles[position])
    return DrawnCurve(
        bits=np.hstack([reserved, border, values]), characters=mark.characters, styles=styles
    )


def _dot_bits(
    heights: NDArray[np.float64], mark: Mark, size: tuple[int, int], length: int
) -> NDArray[np.intp]:
    """Return the sum of dot bits of each character, (lines from the top, columns).

    Args:
        heights: From 0 to 1, shape (n,).
        mark: How dots make a character.
        size: Lines and columns.
        length: Number of heights that take all columns, at least n.
    """
    height, columns = size
    weights = np.array(mark.dots)
    across, up = weights.shape
    highest_step = height * up - 1
    steps = np.minimum(heights * height * up, highest_step)
    steps = np.where(np.isnan(heights), -1, steps).astype(int)
    dots = np.zeros((columns * across, height * up), dtype=int)
    previous: list[int] = []
    for x in range(columns * across):
        start = x * length // (columns * across)
        stop = (x + 1) * length // (columns * across)
        # The range of all positions of a column, so that no single row is lost.
        current = [step for step in steps[start : max(stop, start + 1)].tolist() if step >= 0]
        if current:
            low = min(current)
            high = max(current)
            if previous:  # no gap to the previous column
                low = min(low, max(previous) + 1)
                high = max(high, min(previous) - 1)
            dots[x, low : high + 1] = 1
        previous = current
    by_character = dots.reshape(columns, across, height, up)
    bits: NDArray[np.intp] = np.einsum("cahu,au->hc", by_character, weights)
    return bits[::-1]


def _draw_row(
    row: int, drawn: Sequence[DrawnCurve], layout: ChartLayout, alphabet: Alphabet
) -> Iterator[tuple[str, str]]:
    """Yield the characters of a line of the chart, with their styles."""
    for column in range(layout.first + layout.columns):
        curves = [curve for curve in drawn if curve.bits[row, column]]
        if layout.reserved_columns and column == layout.reserved_columns:
            yield alphabet.border, "faint"
        elif len(curves) > 1:
            yield alphabet.shared, "faint"
        elif curves:
            (curve,) = curves
            yield curve.characters[curve.bits[row, column]], curve.styles[column]
        else:
            yield " ", ""


def _merge_equal_styles(cells: Pieces) -> Pieces:
    """Return cells with neighbours of the same style as one."""
    merged = []
    for style, same in groupby(cells, itemgetter(1)):
        merged.append(("".join(text for text, _ in same), style))
    return merged


def _axis(layout: ChartLayout, alphabet: Alphabet) -> list[Pieces]:
    """Return the axis of positions, and its labels."""
    columns = layout.columns
    labels = max(columns // LABEL_COLUMNS, 1)
    step = 2 ** max(math.ceil(math.log2(layout.length / labels)), 0)  # lengths are powers of two
    ticks = {
        position * columns // layout.length: str(position)
        for position in range(0, layout.length, step)
    }
    ruler = [alphabet.base] * columns
    numbers = [" "] * columns
    for column, label in ticks.items():
        ruler[column] = alphabet.base_tick
        if column + len(label) <= columns:
            numbers[column : column + len(label)] = label
    left = alphabet.base * layout.reserved_columns
    if layout.reserved_columns:
        left += alphabet.base_border
    indent = layout.margin + 1 + len(left)
    return [
        [(f"{'':{layout.margin}}{alphabet.corner}{left}{''.join(ruler)}", "faint")],
        [(f"{'':{indent}}{''.join(numbers)}".rstrip(), "faint")],
    ]
