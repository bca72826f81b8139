"""The panels of bars: what each method costs, and what encoders find."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ctxextend.comparison.reports import LOSS, Comparison, Row
from ctxextend.evaluation.evaluation_result import MODEL, Estimate, Recall
from ctxextend.report.charts import Said
from ctxextend.report.markup import Markup, element
from ctxextend.report.page_panels import CUT, Bar, Panel, bars, number_table
from ctxextend.report.words import FIGURES, signed, twice

__all__ = ["cost_panel", "retrieval_panel"]

Ways = Sequence[tuple[str, int | None, Recall]]


def cost_panel(comparison: Comparison) -> Panel | None:
    """Return how far each method is behind the best, and what short texts pay; None where there are fewer than two."""
    rows = comparison.rows
    if len(rows) < 2:
        return None
    unit = "nats per token" if comparison.metric == LOSS else "mean reciprocal rank"
    behind = [_bar(row.method, number, row.final.behind) for number, row in enumerate(rows)]
    short = [_bar(row.method, number, row.final.short) for number, row in enumerate(rows) if row.final.short]
    drawn = [bars(Said("behind", "Behind the best", _told(behind)), f"behind the best ({unit})", behind)]
    if short:
        title = f"Cost for texts of {comparison.max_len_before:,} tokens"
        drawn.append(bars(Said("short", title, _listed(short)), "cost for short texts (nats per token)", short))
    numbers = number_table(f"In {unit}, ± 2 standard errors", *_figures(rows, has_short=bool(short)))
    title = "What each costs" if short else "Behind the best"
    return _panel(Panel("cost", title, _caption(comparison, unit), Markup(), numbers), drawn)


def _bar(name: str, number: int, difference: Estimate | None) -> Bar:
    """Return a bar of a difference; that of the best, which has none, has no length."""
    if difference is None:
        return Bar(name, 0.0, None, number)
    return Bar(name, difference.mean, twice(difference.error), number)


def _panel(panel: Panel, drawn: Sequence[tuple[Markup, bool]]) -> Panel:
    """Return a panel with pictures side by side."""
    plots = [element("div", plot, class_="plot bars") for plot, _ in drawn]
    caption = panel.caption + CUT * any(is_cut for _, is_cut in drawn)
    return replace(panel, caption=caption, pictures=element("div", *plots, class_="pair"))


def _told(behind: Sequence[Bar]) -> str:
    return f"{behind[0].name} is the best. Behind it: {_listed(behind[1:])}"


def _listed(found: Sequence[Bar]) -> str:
    return f"{', '.join(f'{one.name} {FIGURES.number(one.value, one.error)}' for one in found)}."


def _caption(comparison: Comparison, unit: str) -> str:
    best, pairs = comparison.rows[0].method, "window" if comparison.metric == LOSS else "query"
    caption = (
        f"How much worse than {best} each method is, in {unit}, paired by {pairs}. Lines: ± 2 standard errors; where "
        "they reach 0, the two are not told apart."
    )
    if any(row.final.short for row in comparison.rows):
        caption += (
            f" Cost for short texts: the loss minus the original's, of texts that it can read at once "
            f"({comparison.max_len_before:,} tokens); 0 where they give what they gave."
        )
    return caption


def _figures(rows: Sequence[Row], *, has_short: bool) -> tuple[list[str], list[list[str]]]:
    count = 2 + has_short
    found = [[row.method, signed(row.final.behind) or "best", signed(row.final.short) or "-"][:count] for row in rows]
    return ["method", "behind the best", "short texts"][:count], found


def retrieval_panel(comparison: Comparison) -> Panel | None:
    """Return recall and reciprocal rank of each method and of the original; None where no documents were searched."""
    found = [(number, row, row.final.evaluation.retrieval) for number, row in enumerate(comparison.rows)]
    asked = [(number, row, retrieval) for number, row, retrieval in found if retrieval is not None]
    if not asked:
        return None
    first = asked[0][2]
    ways: list[tuple[str, int | None, Recall]] = []
    ways += [(row.method, number, read.ways[MODEL]) for number, row, read in asked if MODEL in read.ways]
    ways += [(f"original, {name}", None, way) for name, way in first.ways.items() if name != MODEL]
    caption = (
        f"Documents found by {first.queries:,} queries of {first.query_tokens} tokens, out of {first.documents:,} "
        f"documents of {first.length:,} tokens, {first.pooling} pooling; more is better. Lines: ± 2 standard errors. "
        "The original reads their starts alone (truncated), or all of them in pieces (chunks)."
    )
    drawn = [_found("reciprocal-rank", "mean reciprocal rank", ways), _found("recall", "recall@1", ways)]
    return _panel(Panel("retrieval", "Retrieval", caption, Markup(), _numbers(ways)), drawn)


def _found(key: str, label: str, ways: Ways) -> tuple[Markup, bool]:
    values = [(name, number, *_value(key, way)) for name, number, way in ways]
    found = [Bar(name, value, twice(error), number) for name, number, value, error in values]
    told = _listed([one for one in found if not math.isnan(one.value)])
    return bars(Said(key, f"Retrieval: {label}", told), label, found)


def _value(key: str, way: Recall) -> tuple[float, float | None]:
    return (way.recall, way.recall_error) if key == "recall" else (way.reciprocal_rank, way.reciprocal_rank_error)


def _numbers(ways: Ways) -> Markup:
    keys = ("reciprocal-rank", "recall")
    rows = [
        [name, *(FIGURES.number(value, twice(error)) for value, error in (_value(key, way) for key in keys))]
        for name, _, way in ways
    ]
    return number_table("Retrieval, ± 2 standard errors", ["method", "reciprocal rank", "recall@1"], rows)
