"""Curves over positions in a terminal, drawn by plotext."""

import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotext

from ctxextend.cli.console import Page, Pieces
from ctxextend.tables.stats import needs_log_scale

HEIGHT = 11  # lines of a chart, with its frame and the labels of positions
LABEL_COLUMNS = 10  # per label of the axis of positions
MARKER_NAMES = ("braille", "hd", "\u00d7")  # how plotext draws each curve
GLYPHS = ("\u28ff", "\u2588", "\u00d7")  # how that looks
CURVE_STYLES = ("learned", "second", "new", "faint")  # of curves, by the colour that plotext writes
COLOUR = re.compile(r"\x1b\[(?:38;5;(\d+)|0)m")
# A smaller relative range is a flat curve: norms of sinusoids differ by rounding.
RANGE_OF_FLAT_CURVES = 1e-6


class Curve(NamedTuple):
    """One value per position."""

    values: Any  # by position; values that are not finite are not drawn
    style: str
    name: str  # in the key


def add_chart(page: Page, title: str, curves: Sequence[Curve]) -> None:
    """Add a key and up to three curves; nothing if no value is finite."""
    curves = [curve for curve in curves if np.isfinite(curve.values).any()]
    if not curves:
        return
    values = np.concatenate([curve.values for curve in curves])
    values = values[np.isfinite(values)]
    is_logarithmic = needs_log_scale(np.array([]), values)
    if is_logarithmic:
        title += " (logarithmic)"
    parts: list[Pieces] = [[(title, "title")]]
    for curve, mark in zip(curves, GLYPHS, strict=False):
        lines = textwrap.wrap(f"  {mark} {curve.name}", page.width, break_on_hyphens=False)
        parts += [[(line, curve.style)] for line in lines]
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
        positions = np.flatnonzero(np.isfinite(heights))
        marker = plotext.marker(mark, plotext.pixel(CURVE_STYLES.index(curve.style)))
        signal = figure.signal(positions.tolist(), heights[positions].tolist(), marker=marker)
        figure.draw(signal.lines(True))
    length = max(len(curve.values) for curve in curves)
    # Lengths are powers of two.
    step = 2 ** max(math.ceil(math.log2(length * LABEL_COLUMNS / page.width)), 0)
    figure.ruler("x").ticks(list(range(0, length, step)))
    lowest = values.min()
    highest = values.max()
    if is_logarithmic:
        lowest = math.log10(lowest)
        highest = math.log10(highest)
    if highest - lowest <= RANGE_OF_FLAT_CURVES * abs(highest):
        lowest -= 1
        highest += 1
    heights = np.array([lowest, (lowest + highest) / 2, highest])
    shown = 10**heights if is_logarithmic else heights
    ruler = figure.ruler("y")
    ruler.lim(lowest, highest)
    ruler.ticks(heights.tolist(), [f"{value:.3g}" for value in shown])
    for line in figure.build().string().splitlines():
        _, *colours = COLOUR.split(line)
        pieces = list[tuple[str, str]]()
        for number, text in zip(colours[::2], colours[1::2], strict=True):
            style = "faint" if number is None else CURVE_STYLES[int(number)]
            if text:
                pieces.append((text, style))
        page.lines.append(pieces)
