"""Terminal charts at every width."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from ctxextend.cli.console import Page
from ctxextend.cli.plots import HEIGHT, Curve, add_chart

FLOATS = st.one_of(st.floats(0, 1e6), st.just(math.nan), st.just(math.inf), st.just(0.0))
FRAME = " │┤┌┐└┘─┬.e+-"


def curve(values: list[float]) -> Curve:
    return Curve(values, "learned", "norms")


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


def test_chart_shows_a_line_of_equal_values() -> None:
    for value in (0.0, 5.0):
        lines = chart(curve([value] * 5), width=60)
        assert any(len(columns(line)) > 50 for line in lines)


def test_wide_ranges_are_logarithmic() -> None:
    page = Page(80)
    add_chart(page, "Title", [curve([10.0**power for power in range(5)])])
    assert page.lines[0][0] == ("Title (logarithmic)", "title")
    text = "\n".join("".join(text for text, _ in line) for line in page.lines)
    for label in ("1e+04┤", "100┤", "1┤"):
        assert label in text
