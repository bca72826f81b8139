"""The panels of bars: how far each method is behind the best, and what encoders find."""

import math
from collections.abc import Sequence

from ctxextend.comparison.reports import LOSS, Comparison, Row
from ctxextend.evaluation.reports import MODEL, Recall
from ctxextend.page.charts import Said
from ctxextend.page.markup import Markup, element
from ctxextend.page.panels import Bar, Panel, bars, number_table
from ctxextend.page.words import FIGURES, twice

__all__ = ["behind_panel", "retrieval_panel"]


def behind_panel(comparison: Comparison) -> Panel | None:
    """Return how much worse than the best each method is; None where there are fewer than two."""
    if len(comparison.rows) < 2:
        return None
    found = [_behind(number, row) for number, row in enumerate(comparison.rows)]
    unit = "nats per token" if comparison.metric == LOSS else "mean reciprocal rank"
    said = Said("behind", "Behind the best", _told(found))
    caption = (
        f"How much worse than {comparison.rows[0].method} each method is, in {unit}, paired by "
        f"{'window' if comparison.metric == LOSS else 'query'}. Lines: ± 2 standard errors; where they reach 0, the "
        "two are not told apart."
    )
    rows = [[one.name, FIGURES.number(one.value, one.error, signed=True)] for one in found]
    numbers = number_table(f"Behind the best, in {unit}, ± 2 standard errors", ["method", "behind"], rows)
    drawn = element("div", bars(said, f"behind ({unit})", found), class_="plot bars")
    return Panel("behind", "Behind the best", caption, drawn, numbers, is_wide=False)


def _behind(number: int, row: Row) -> Bar:
    behind = row.final.behind
    if behind is None:
        return Bar(row.method, 0.0, None, number)
    return Bar(row.method, behind.mean, twice(behind.error), number)


def _told(found: Sequence[Bar]) -> str:
    parts = [f"{one.name} {FIGURES.number(one.value, one.error)}" for one in found[1:]]
    return f"{found[0].name} is the best. Behind it: {', '.join(parts)}; each ± 2 standard errors."


def retrieval_panel(comparison: Comparison) -> Panel | None:
    """Return recall and reciprocal rank of each method and of the original; None where no documents were searched."""
    found = [(number, row, row.final.evaluation.retrieval) for number, row in enumerate(comparison.rows)]
    asked = [(number, row, retrieval) for number, row, retrieval in found if retrieval is not None]
    if not asked:
        return None
    ways: list[tuple[str, int | None, Recall]] = []
    ways += [(row.method, number, read.ways[MODEL]) for number, row, read in asked if MODEL in read.ways]
    first = asked[0][2]
    ways += [(f"the original, {name}", None, way) for name, way in first.ways.items() if name != MODEL]
    caption = (
        f"Documents found by {first.queries:,} queries of {first.query_tokens} tokens, out of {first.documents:,} "
        f"documents of {first.length:,} tokens, {first.pooling} pooling; more is better. Lines: ± 2 standard errors."
    )
    drawn = [_picture("reciprocal-rank", "mean reciprocal rank", ways), _picture("recall", "recall@1", ways)]
    return Panel("retrieval", "Retrieval", caption, element("div", *drawn, class_="pair"), _numbers(ways))


Ways = Sequence[tuple[str, int | None, Recall]]


def _picture(key: str, label: str, ways: Ways) -> Markup:
    values = [(name, number, *_value(key, way)) for name, number, way in ways]
    found = [Bar(name, value, twice(error), number) for name, number, value, error in values]
    parts = [f"{one.name} {FIGURES.number(one.value, one.error)}" for one in found if not math.isnan(one.value)]
    said = Said(key, f"Retrieval: {label}", f"{', '.join(parts)}; each ± 2 standard errors.")
    return element("div", bars(said, label, found), class_="plot bars")


def _value(key: str, way: Recall) -> tuple[float, float | None]:
    return (way.recall, way.recall_error) if key == "recall" else (way.reciprocal_rank, way.reciprocal_rank_error)


def _numbers(ways: Ways) -> Markup:
    rows = [
        [name, *(FIGURES.number(value, twice(error)) for value, error in (_value("", way), _value("recall", way)))]
        for name, _, way in ways
    ]
    return number_table("Retrieval, ± 2 standard errors", ["method", "reciprocal rank", "recall@1"], rows)
