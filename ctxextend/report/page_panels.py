"""What every panel of the page has: pictures, words, and a table of the same numbers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ctxextend.comparison.reports import Comparison
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.report.axes import Frame, places, round_numbers, top
from ctxextend.report.charts import Said, bar, line_class, picture, rule, series, swatch
from ctxextend.report.markup import Markup, element
from ctxextend.report.words import FIGURES, twice

__all__ = ["CUT", "Bar", "Panel", "bars", "leading", "legend", "number_table", "written"]

# At least and at most so many methods stand in front in pictures of all of them.
LEAST, MOST = 3, 6
# Characters of a method's name beside its bar.
NAME = 23
# Room for a bar, in a picture's units.
BAR = 25

CUT = " Values beyond the picture's edge are cut off; the table has them."


@dataclass(frozen=True)
class Panel:
    """A part of the page.

    Attributes:
        key: A name of its own on the page.
        title: Its heading.
        caption: How to read it.
        pictures: What is drawn.
        numbers: The same as a table.
        is_wide: Whether it takes the page's whole width.
    """

    key: str
    title: str
    caption: str
    pictures: Markup
    numbers: Markup
    is_wide: bool = True


@dataclass(frozen=True)
class Bar:
    """A bar: its name, its value with its error, and the place in the ranking of the method that it is of."""

    name: str
    value: float
    error: float | None
    number: int | None


def leading(comparison: Comparison) -> int:
    """Return how many methods stand in front: those level with the best, where these are neither few nor many."""
    return min(max(sum(row.final.is_level for row in comparison.rows), LEAST), MOST)


def bars(said: Said, label: str, found: Sequence[Bar]) -> tuple[Markup, bool]:
    """Return bars from left to right, the first on top, each with its error, and whether any are cut off.

    That are those of the last fourth that are far longer than all others.
    """
    count = len(found)
    ends = [one.value + sign * (one.error or 0.0) for one in found for sign in (-1, 1)]
    low, high, is_cut = top([0.0, *ends], [0.0, *ends[: 2 * (count - count // 4)]])
    names = [one.name if len(one.name) <= NAME else f"{one.name[: NAME - 1]}…" for one in reversed(found)]
    y = places("", names)
    x = round_numbers(label, low, high)
    # A short error on the wrong side of 0 is no reason for a whole step of room.
    least = max(x.low, 1.2 * low)
    x = replace(x, low=least, ticks=tuple(tick for tick in x.ticks if tick >= least))
    frame = Frame(x, y, 520, count * BAR + 62, (8, 18, 48, 172))
    marks = [bar(frame, count - place - 0.5, one.value, one.error) for place, one in enumerate(found)]
    drawn = [_of(one.number, mark) for one, mark in zip(found, marks, strict=True)]
    return picture(frame, said, *([rule(frame, 0.0)] if low < 0 else []), *drawn), is_cut


def _of(number: int | None, mark: Markup) -> Markup:
    return element("g", mark, class_="original") if number is None else series(number, mark, leads=True)


def legend(comparison: Comparison, *, original: bool) -> Markup:
    """Return the name of each method behind a piece of its line."""
    many = leading(comparison)
    keys = [_key(line_class(number), row.method, number, number < many) for number, row in enumerate(comparison.rows)]
    keys += [_key("original", "the original, in pieces", None, True)] * original
    return element("ul", *keys, class_="legend")


def _key(classes: str, name: str, number: int | None, leads: bool) -> Markup:
    return element("li", swatch(classes), " ", name, class_="lead" if leads else None, data_series=number)


def number_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return numbers as a table that is folded up, the first cell of each row being its name."""
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in heads)))
    body = element("tbody", *(_row(row) for row in rows))
    table = element("table", element("caption", title), head, body)
    scroll = element("div", table, class_="scroll", tabindex=0, role="region", aria_label=title)
    return element("details", element("summary", "The numbers"), scroll, class_="numbers")


def _row(row: Sequence[str]) -> Markup:
    return element("tr", element("th", row[0], scope="row"), *(element("td", text) for text in row[1:]))


def written(estimate: Estimate | None) -> str:
    """Return a mean with two standard errors; a dash for what was not measured."""
    if estimate is None or math.isnan(estimate.mean):
        return "-"
    return FIGURES.number(estimate.mean, twice(estimate.error))
