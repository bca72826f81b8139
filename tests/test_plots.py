"""Curves in characters: what they show, whatever the width and the encoding."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxextend.cli.output import Pieces
from ctxextend.cli.plots import Curve, draw

HEIGHT = 8
BITS = {(0, 0): 1, (0, 1): 2, (0, 2): 4, (1, 0): 8, (1, 1): 16, (1, 2): 32, (0, 3): 64, (1, 3): 128}
FLOATS = st.one_of(st.floats(0, 1e6), st.just(math.nan), st.just(math.inf), st.just(0.0))


def curve(values: list[float], offset: tuple[float, ...] = (), start: int | None = None) -> Curve:
    """A curve that is new from a position on."""
    return Curve(
        values, ["new" if start is not None and at >= start else "learned" for at in range(len(values))], offset
    )


def texts(lines: list[Pieces]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def body(lines: list[Pieces]) -> list[str]:
    """The plot alone, behind the axis."""
    return [re.split("[┤│|]", text, maxsplit=1)[1] for text in texts(lines)[:HEIGHT]]


def dots(lines: list[Pieces]) -> dict[int, set[int]]:
    """By each column of dots, the lines of dots that are set, 0 the lowest."""
    found: dict[int, set[int]] = {}
    for row, text in enumerate(body(lines)):
        for column, character in enumerate(text):
            bits = ord(character) - 0x2800 if 0x2800 <= ord(character) <= 0x28FF else 0
            for (x, y), bit in BITS.items():
                if bits & bit:
                    found.setdefault(2 * column + x, set()).add(4 * HEIGHT - 1 - (4 * row + y))
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(FLOATS, min_size=1, max_size=300),
    st.lists(FLOATS, max_size=3),
    st.lists(FLOATS, min_size=1, max_size=300),
    st.integers(40, 200),
    st.booleans(),
)
def test_draw_keeps_to_its_width_and_height(
    values: list[float], offset: list[float], other: list[float], width: int, unicode: bool
) -> None:
    for curves in ([curve(values, tuple(offset))], [curve(values, tuple(offset)), curve(other, start=3)]):
        found = texts(draw(curves, width, HEIGHT, unicode=unicode))
        assert len(found) == HEIGHT + 2
        assert all(len(text) <= width and text.isprintable() for text in found)
        assert unicode or all(text.isascii() for text in found)


@pytest.mark.parametrize(("row", "value"), [(0, 3.0), (4095, 0.0), (5000, 60.0), (16383, 60.0)])
@pytest.mark.parametrize("unicode", [True, False])
def test_draw_shows_a_single_row_of_many(row: int, value: float, unicode: bool) -> None:
    values = [1.0 + (i % 2) / 10 for i in range(16384)]
    values[row] = value
    lines = draw([curve(values)], 80, HEIGHT, unicode=unicode)
    marked = [at for at, character in enumerate(body(lines)[0 if value > 1 else -1]) if character not in " \u2800"]
    assert len(marked) in (1, 2)
    assert marked[0] == row * (len(texts(lines)[HEIGHT].lstrip()) - 1) // len(values)


@pytest.mark.parametrize("width", [40, 300])
def test_draw_a_line_goes_from_corner_to_corner(width: int) -> None:
    found = dots(draw([curve([float(i) for i in range(1000)])], width, HEIGHT))
    assert min(found[0]) == 0
    assert max(found[max(found)]) == 4 * HEIGHT - 1
    assert sorted(found) == list(range(max(found) + 1))
    heights = [max(found[column]) for column in sorted(found)]
    assert heights == sorted(heights)


def test_draw_two_curves_over_one_axis() -> None:
    lines = draw([curve([1.0] * 100), curve([2.0] * 400)], 80, HEIGHT)
    lowest, highest = body(lines)[-1], body(lines)[0]
    assert len(lowest.rstrip()) == pytest.approx(len(highest.rstrip()) / 4, abs=1)
    assert set(highest.strip()) == {"▀"}
    assert all(0x2800 < ord(character) <= 0x28FF for character in lowest.strip())


def test_draw_keeps_offset_rows_apart_in_a_style_of_their_own() -> None:
    lines = draw([curve([1.0, 1.0, 1.0, 1.0], (3.0, 0.0))], 60, HEIGHT)
    styles = {style for line in lines for text, style in line if text.strip() and style != "faint"}
    assert styles == {"offset", "learned"}
    assert all("┊" in text for text in texts(lines)[:HEIGHT])
    assert not any("┊" in text for text in texts(draw([curve([1.0])], 60, HEIGHT)))
    assert texts(lines)[-1].split() == ["0", "1", "2", "3"]


def test_draw_colours_new_positions_by_the_columns_that_hold_them() -> None:
    lines = draw([curve([1.0] * 400, start=100)], 80, HEIGHT)
    ((learned, _), (new, _)) = [(text, style) for line in lines for text, style in line if style in ("learned", "new")]
    assert len(learned) * 3 == pytest.approx(len(new), abs=4)


@pytest.mark.parametrize(
    ("length", "labels"), [(512, [0, 128, 256, 384]), (16, [0, 4, 8, 12]), (1, [0]), (3, [0, 1, 2])]
)
def test_draw_marks_round_positions(length: int, labels: list[int]) -> None:
    lines = texts(draw([curve([1.0] * length)], 80, HEIGHT))
    assert [int(label) for label in lines[-1].split()] == labels
    for label in labels:
        assert lines[-2][lines[-1].index(str(label))] == "┬"


def test_draw_where_one_row_towers_takes_equal_factors_for_equal_steps() -> None:
    towering = [1.0] * 50 + [100.0]
    lines = texts(draw([Curve(towering, [""] * 51, (0.0,))], 60, HEIGHT))
    assert [float(lines[row].split("┤")[0]) for row in (0, HEIGHT - 1)] == [100, 1]  # a padding row is left out
    assert float(lines[HEIGHT // 2].split("┤")[0]) == pytest.approx(10)


@pytest.mark.parametrize("values", [[1.0] * 50 + [5.0] * 50, [5.0] * 50 + [1.0] * 50])
def test_draw_leaves_no_gap_at_a_step(values: list[float]) -> None:
    found = dots(draw([curve(values)], 80, HEIGHT))
    assert set().union(*found.values()) == set(range(4 * HEIGHT))


@pytest.mark.parametrize("values", [[math.nan] * 5, [math.inf], [0.0] * 5, [7.0]])
def test_draw_of_nothing_or_one_height(values: list[float]) -> None:
    lines = draw([curve(values)], 60, HEIGHT)
    assert len(lines) == HEIGHT + 2
    assert bool("".join(body(lines)).strip()) == math.isfinite(values[0])


def test_draw_leaves_a_gap_where_rows_hold_no_numbers() -> None:
    found = dots(draw([curve([1.0] * 30 + [math.nan] * 40 + [1.0] * 30)], 80, HEIGHT))
    columns = max(found) + 1
    gap = [column for column in range(columns) if column not in found]
    assert gap[0] == pytest.approx(0.3 * columns, abs=2)
    assert gap[-1] == pytest.approx(0.7 * columns, abs=2)
