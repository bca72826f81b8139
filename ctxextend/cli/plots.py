"""Curves over positions in a terminal, drawn by plotext."""

import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotext
from numpy.typing import NDArray

from ctxextend.cli.console import Page, Pieces
from ctxextend.tables.stats import needs_log_scale

HEIGHT = 11  # lines of a chart, with its frame and the labels of positions
LABEL_COLUMNS = 10  # per label of the axis of positions
POINTS_PER_COLUMN = 4  # of many, the lowest and highest of each half
MARKER_NAMES = ("braille", "hd", "\u00d7")  # how plotext draws each curve
GLYPHS = ("\u28ff", "\u2588", "\u00d7")  # how that looks
CURVE_STYLES = ("learned", "second", "new", "faint")  # of curves, by the colour that plotext writes
COLOUR = re.compile(r"\x1b\[(?:38;5;(\d+)|0)m")
# A smaller relative range is a flat curve: norms of sinusoids differ by rounding.
RANGE_OF_FLAT_CURVES = 1e-6


class Curve(NamedTuple):
    """One value per position."""

    values: Sequence[float]  # by position; values that are not finite are not drawn
    styles: Sequence[str]  # style name by position
    name: str = ""  # in the key; empty if it is the only curve
    key: tuple[Pieces, ...] = ()  # key entries for further colours


def add_chart(page: Page, title: str, curves: Sequence[Curve]) -> None:
    """Add a key and up to three curves; nothing if no value is finite."""
    curves = [curve for curve in curves if np.isfinite(curve.values).any()]
    if not curves:
        return
    values = np.concatenate([curve.values for curve in curves])
    values = values[np.isfinite(values)]
    is_logarithmic = needs_log_scale(np.array([]), values)
    parts: list[Pieces] = [[(title, "title")]]
    if is_logarithmic:
        parts.append([(" (logarithmic)", "")])
    for curve, mark in zip(curves, GLYPHS, strict=False):
        if curve.name:
            lines = textwrap.wrap(f"  {mark} {curve.name}", page.width, break_on_hyphens=False)
            parts += [[(line, curve.styles[0])] for line in lines]
        parts += curve.key
    page.flow(parts)

    figure = plotext.figure
    figure.clear()
    plotext.terminal.limit(False, False)
    figure.plot_size(page.width, HEIGHT)
    figure.theme("simple")
    for curve, mark in zip(curves, MARKER_NAMES, strict=False):
        heights = np.array(curve.values, np.float64)
        if is_logarithmic:
            heights = np.log10(heights)
        figure.draw(_signal(figure, heights, curve.styles, mark, POINTS_PER_COLUMN * page.width))
    length = max(len(curve.values) for curve in curves)
    # Lengths are powers of two.
    step = 2 ** max(math.ceil(math.log2(length * LABEL_COLUMNS / page.width)), 0)
    figure.ruler("x").ticks(list(range(0, length, step)))
    _label_heights(figure, values.min(), values.max(), is_logarithmic=is_logarithmic)
    for line in figure.build().string().splitlines():
        _, *colours = COLOUR.split(line)
        pieces = list[tuple[str, str]]()
        for number, text in zip(colours[::2], colours[1::2], strict=True):
            style = "faint" if number is None else CURVE_STYLES[int(number)]
            if text:
                pieces.append((text, style))
        page.lines.append(pieces)


def _signal(
    figure: Any, heights: NDArray[np.float64], styles: Sequence[str], mark: str, most: int
) -> Any:
    """Return a line through the finite heights; through the extremes if they are many."""
    positions = np.flatnonzero(np.isfinite(heights))
    if len(positions) > most:
        blocks = np.array_split(positions, most // 2)
        lowest = [block[heights[block].argmin()] for block in blocks]
        highest = [block[heights[block].argmax()] for block in blocks]
        positions = np.unique([*lowest, *highest])
    marks = {
        style: plotext.marker(mark, plotext.pixel(number))
        for number, style in enumerate(CURVE_STYLES)
    }
    signal = figure.signal(
        positions.tolist(),
        heights[positions].tolist(),
        marker=[marks[styles[position]] for position in positions.tolist()],
    )
    return signal.lines(True)


def _label_heights(figure: Any, lowest: float, highest: float, *, is_logarithmic: bool) -> None:
    if is_logarithmic:
        lowest = math.log10(lowest)
        highest = math.log10(highest)
    if highest - lowest <= RANGE_OF_FLAT_CURVES * abs(highest):
        lowest -= 1
        highest += 1
    heights = [lowest, (lowest + highest) / 2, highest]
    shown = heights
    if is_logarithmic:
        shown = [10**height for height in heights]
    ruler = figure.ruler("y")
    ruler.lim(lowest, highest)
    ruler.ticks(heights, [f"{value:.3g}" for value in shown])
