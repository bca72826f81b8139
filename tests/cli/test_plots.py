"""Terminal charts at every width and encoding."""

import math
import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxextend.cli.console import Pieces
from ctxextend.cli.plots import Curve, draw

HEIGHT = 8
BRAILLE = range(0x2801, 0x2900)
FLOATS = st.one_of(st.floats(0, 1e6), st.just(math.nan), st.just(math.inf), st.just(0.0))


def curve(values: list[float], reserved: list[float] | None = None) -> Curve:
    return Curve(values, ["learned"] * len(values), reserved or [])


def texts(lines: list[Pieces]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def plot_lines(lines: list[Pieces]) -> list[str]:
    """Return the lines of the plot without the axis."""
    plot = []
    for text in texts(lines)[:HEIGHT]:
        _, line = re.split("[┤│|]", text, maxsplit=1)
        plot.append(line)
    return plot


def has_dots(characters: Iterable[str]) -> bool:
    return any(ord(character) in BRAILLE for character in characters)


def drawn_columns(lines: list[Pieces]) -> list[bool]:
    """Return whether each column of a braille plot has a dot."""
    columns = zip(*plot_lines(lines), strict=True)
    return [has_dots(column) for column in columns]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(FLOATS, min_size=1, max_size=300),
    st.lists(FLOATS, max_size=3),
    st.lists(FLOATS, min_size=1, max_size=300),
    st.integers(40, 200),
    st.booleans(),
)
def test_draw_stays_within_its_width_and_height(
    values: list[float], reserved: list[float], other: list[float], width: int, unicode: bool
) -> None:
    first = curve(values, reserved)
    for curves in ([first], [first, curve(other)]):
        lines = texts(draw(curves, width, HEIGHT, unicode=unicode))
        assert len(lines) == HEIGHT + 2
        for text in lines:
            assert len(text) <= width
            assert text.isprintable()
            if not unicode:
                assert text.isascii()


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize(
    ("row", "value", "line"), [(0, 3.0, 0), (4095, 0.0, -1), (5000, 60.0, 0), (16383, 60.0, 0)]
)
def test_draw_shows_a_single_row_of_many(row: int, value: float, line: int, unicode: bool) -> None:
    values = [1.0, 1.1] * 8192
    values[row] = value

    lines = draw([curve(values)], 80, HEIGHT, unicode=unicode)

    axis = texts(lines)[HEIGHT].lstrip()
    width = len(axis) - 1
    characters = plot_lines(lines)[line]
    marked = [column for column, mark in enumerate(characters) if mark not in " \u2800"]
    assert len(marked) in (1, 2)
    assert marked[0] == row * width // len(values)


def test_draw_shows_reserved_rows_in_a_separate_style() -> None:
    styles = set()
    for line in draw([curve([1.0] * 4, [3.0, 0.0])], 60, HEIGHT):
        styles |= {style for text, style in line if text.strip()}
    assert styles - {"faint"} == {"reserved", "learned"}


@pytest.mark.parametrize(
    "values", [[1.0] * 50 + [5.0] * 50, [5.0] * 50 + [1.0] * 50], ids=["up", "down"]
)
def test_draw_leaves_no_gap_at_a_step(values: list[float]) -> None:
    lines = draw([curve(values)], 80, HEIGHT)
    for line in plot_lines(lines):
        assert has_dots(line)


def test_draw_leaves_a_gap_at_values_that_are_not_finite() -> None:
    values = [1.0] * 30 + [math.nan] * 40 + [1.0] * 30
    columns = drawn_columns(draw([curve(values)], 80, HEIGHT))
    gap = [column for column, is_drawn in enumerate(columns) if not is_drawn]
    assert gap[0] == pytest.approx(0.3 * len(columns), abs=1)
    assert gap[-1] == pytest.approx(0.7 * len(columns), abs=1)
    assert gap == list(range(gap[0], gap[-1] + 1))


def test_draw_leaves_a_plot_without_finite_values_empty() -> None:
    lines = draw([curve([math.nan, math.inf])], 60, HEIGHT)
    assert not any(drawn_columns(lines))


def test_draw_shows_a_line_of_zeros() -> None:
    lines = draw([curve([0.0] * 5)], 60, HEIGHT)
    assert all(drawn_columns(lines))
