"""Terminal charts at every width and encoding."""

import math
import re

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
    return [re.split("[┤│|]", text, maxsplit=1)[1] for text in texts(lines)[:HEIGHT]]


def drawn_columns(lines: list[Pieces]) -> list[bool]:
    """Return whether each column of a braille plot has a dot."""
    return [
        any(ord(character) in BRAILLE for character in column)
        for column in zip(*plot_lines(lines), strict=True)
    ]


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
    for curves in ([curve(values, reserved)], [curve(values, reserved), curve(other)]):
        lines = texts(draw(curves, width, HEIGHT, unicode=unicode))
        assert len(lines) == HEIGHT + 2
        assert all(len(text) <= width and text.isprintable() for text in lines)
        assert unicode or all(text.isascii() for text in lines)


@pytest.mark.parametrize(("row", "value"), [(0, 3.0), (4095, 0.0), (5000, 60.0), (16383, 60.0)])
@pytest.mark.parametrize("unicode", [True, False])
def test_draw_shows_a_single_row_of_many(row: int, value: float, unicode: bool) -> None:
    values = [1.0 + (i % 2) / 10 for i in range(16384)]
    values[row] = value
    lines = draw([curve(values)], 80, HEIGHT, unicode=unicode)
    line = plot_lines(lines)[0 if value > 1 else -1]
    marked = [column for column, character in enumerate(line) if character not in " \u2800"]
    assert len(marked) in (1, 2)
    assert marked[0] == row * (len(texts(lines)[HEIGHT].lstrip()) - 1) // len(values)


def test_draw_shows_reserved_rows_in_a_separate_style() -> None:
    lines = draw([curve([1.0] * 4, [3.0, 0.0])], 60, HEIGHT)
    styles = {style for line in lines for text, style in line if text.strip() and style != "faint"}
    assert styles == {"reserved", "learned"}


@pytest.mark.parametrize("values", [[1.0] * 50 + [5.0] * 50, [5.0] * 50 + [1.0] * 50])
def test_draw_leaves_no_gap_at_a_step(values: list[float]) -> None:
    lines = plot_lines(draw([curve(values)], 80, HEIGHT))
    assert all(any(ord(character) in BRAILLE for character in line) for line in lines)


def test_draw_leaves_a_gap_at_values_that_are_not_finite() -> None:
    has_dots = drawn_columns(draw([curve([1.0] * 30 + [math.nan] * 40 + [1.0] * 30)], 80, HEIGHT))
    gap = [column for column, is_drawn in enumerate(has_dots) if not is_drawn]
    assert [gap[0], gap[-1]] == pytest.approx([0.3 * len(has_dots), 0.7 * len(has_dots)], abs=1)
    assert gap == list(range(gap[0], gap[-1] + 1))
    assert not any(drawn_columns(draw([curve([math.nan, math.inf])], 60, HEIGHT)))
    assert all(drawn_columns(draw([curve([0.0] * 5)], 60, HEIGHT)))
