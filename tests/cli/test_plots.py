"""Terminal charts at every width."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxextend.cli.console import Page
from ctxextend.cli.plots import HEIGHT, Curve, add_chart
from tests.helpers.imports import command, loaded_after

FLOATS = st.one_of(st.floats(0, 1e6), st.just(math.nan), st.just(math.inf), st.just(0.0))
FRAME = " │┤┌┐└┘─┬.e+-"


def curve(values: list[float]) -> Curve:
    return Curve(values, ["learned"] * len(values))


def chart(*curves: Curve, width: int = 80) -> list[str]:
    """Return the lines of a chart, without its key."""
    page = Page(width)
    add_chart(page, "Title", curves)
    return ["".join(text for text, _ in line) for line in page.lines[1:]]


def columns(line: str) -> list[int]:
    """Return the columns of a line in which a curve is drawn."""
    _, _, inside = line.replace("┤", "│").partition("│")
    return [column for column, mark in enumerate(inside) if mark not in FRAME]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(FLOATS, min_size=1, max_size=300),
    st.lists(FLOATS, min_size=1, max_size=300),
    st.integers(40, 200),
)
def test_chart_stays_within_its_width_and_height(
    values: list[float], other: list[float], width: int
) -> None:
    for curves in ([curve(values)], [curve(values), curve(other)]):
        lines = chart(*curves, width=width)
        assert len(lines) in (0, HEIGHT)
        for line in lines:
            assert len(line) <= width
            assert line.isprintable()


@pytest.mark.parametrize(
    ("row", "value", "line"), [(0, 3.0, 1), (4095, 0.0, -3), (5000, 60.0, 1), (16383, 60.0, 1)]
)
def test_chart_shows_a_single_row_of_many(row: int, value: float, line: int) -> None:
    values = [1.0, 1.1] * 8192
    values[row] = value
    drawn = chart(curve(values))[line]
    marked = columns(drawn)
    assert len(marked) in (1, 2)
    width = len(drawn.replace("┤", "│").split("│")[1])
    assert marked[0] == pytest.approx(row * width / len(values), abs=1)


def test_chart_shows_a_line_of_equal_values() -> None:
    for value in (0.0, 5.0):
        lines = chart(curve([value] * 5), width=60)
        assert any(len(columns(line)) > 50 for line in lines)


def test_wide_ranges_are_logarithmic() -> None:
    page = Page(80)
    add_chart(page, "Title", [curve([10.0**power for power in range(5)])])
    assert page.lines[0] == [("Title", "title"), (" (logarithmic)", "")]
    text = "\n".join("".join(text for text, _ in line) for line in page.lines)
    for label in ("1e+04┤", "100┤", "1┤"):
        assert label in text


@pytest.mark.parametrize(
    ("flags", "is_drawn"),
    [
        ([], False),
        (["--json"], False),
        (["--check"], False),
        (["--rows", "0", "--check"], False),
        (["--rows", "all", "--json"], False),
        (["--rows", "0"], True),
    ],
)
def test_inspect_imports_plotext_only_to_draw(flags: list[str], is_drawn: bool) -> None:
    loaded = loaded_after(command("inspect", "tiny-gpt2", *flags))
    assert "ctxextend" in loaded
    assert ("plotext" in loaded) is is_drawn
