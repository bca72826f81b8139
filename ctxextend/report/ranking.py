"""The ranking as a table that can be sorted."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ctxextend.comparison.reports import LOSS, Comparison, Outcome, Row
from ctxextend.evaluation.evaluation_result import MODEL, Estimate, Recall
from ctxextend.report.charts import line_class, swatch
from ctxextend.report.markup import Markup, element, joined
from ctxextend.report.words import FIGURES, against_original, score_text, signed, twice

__all__ = ["ranking"]


@dataclass(frozen=True)
class Cell:
    """A cell: what it says, and what it is sorted by; None stands last."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """A column: its head, what that means, and its cell of each method."""

    head: str
    meaning: str
    cell: Callable[[Row], Cell]


def ranking(comparison: Comparison) -> Markup:
    """Return the table, the original at its foot, in a container in which it scrolls where there is little room."""
    columns = _columns(comparison)
    heads = [element("th", "#", scope="col", title="place"), element("th", "method", scope="col", class_="name")]
    heads += [element("th", column.head, scope="col", title=column.meaning) for column in columns]
    rows = [_row(number, row, columns) for number, row in enumerate(comparison.rows)]
    parts = [element("thead", element("tr", *heads)), element("tbody", *rows)]
    if comparison.original is not None:
        parts.append(element("tfoot", _original(comparison, comparison.original, columns)))
    table = element("table", element("caption", "The methods, the best first"), *parts, class_="ranking")
    return joined(
        element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Ranking"), _key(columns)
    )


def _row(number: int, row: Row, columns: list[Column]) -> Markup:
    name = element("th", swatch(line_class(number)), " ", row.method, scope="row", class_="name", data_value=row.method)
    cells = [column.cell(row) for column in columns]
    written = [element("td", cell.text, data_value=_sortable(cell.value)) for cell in cells]
    return element("tr", element("td", str(number + 1), data_value=number + 1), name, *written)


def _sortable(value: float | None) -> str | None:
    return None if value is None or not math.isfinite(value) else repr(float(value))


def _original(comparison: Comparison, score: Estimate, columns: list[Column]) -> Markup:
    name = f"the original, in pieces of {comparison.max_len_before:,}"
    known = [score_text(score, comparison.metric)]
    known += [FIGURES.number(score.mean, twice(score.error))] * (comparison.metric == LOSS)
    empty = [element("td")] * (len(columns) - len(known))
    return element("tr", element("td"), element("th", name, scope="row", class_="name"), *map(_td, known), *empty)


def _td(text: str) -> Markup:
    return element("td", text)


def _key(columns: list[Column]) -> Markup:
    """Return what the columns mean."""
    terms = [part for column in columns for part in (element("dt", column.head), element("dd", column.meaning))]
    return element("details", element("summary", "What the columns mean"), element("dl", *terms, class_="key"))


def _columns(comparison: Comparison) -> list[Column]:
    """Return the columns that hold anything."""
    measured = _losses if comparison.metric == LOSS else _ranks
    columns = [*measured(), Column("behind the best", BEHIND, lambda row: _behind(row.final)), *_others(comparison)]
    return [column for column in columns if any(column.cell(row).text for row in comparison.rows)]


BEHIND = "how much worse than the best, paired by window or query, ± 2 standard errors; level: within them"


def _losses() -> list[Column]:
    meaning = "mean loss over all positions, in nats per token, ± 2 standard errors"
    return [
        Column("perplexity", "e to the power of the loss, ± 2 standard errors", lambda row: _score(row.final, LOSS)),
        Column("loss", meaning, lambda row: _figure(row.final.score)),
    ]


def _ranks() -> list[Column]:
    meaning = "mean of 1 / rank of the document that a query was cut from, ± 2 standard errors; more is better"
    recall = "share of queries whose own document came first, ± 2 standard errors"
    return [
        Column("reciprocal rank", meaning, lambda row: _figure(row.final.score)),
        Column("recall@1, %", recall, _recall),
    ]


def _others(comparison: Comparison) -> list[Column]:
    return [
        Column(
            "against the original",
            f"loss minus that of the original in pieces of {comparison.max_len_before:,} tokens that overlap by half, "
            "paired by token, ± 2 standard errors; below 0 is better",
            lambda row: _change(against_original(row.final)),
        ),
        Column(
            "short texts",
            f"loss minus the original's on texts that it can read at once ({comparison.max_len_before:,} tokens), "
            "paired, ± 2 standard errors: what texts pay that fitted before",
            lambda row: _change(row.final.short),
        ),
        Column("untrained", "the same without any training", lambda row: _untrained(row, comparison.metric)),
        Column(
            "learned rows",
            "whether every learned row stays as it is before any training",
            lambda row: Cell("kept" if row.keeps_learned_rows else "moved", float(not row.keeps_learned_rows)),
        ),
    ]


def _score(outcome: Outcome, metric: str) -> Cell:
    return Cell(score_text(outcome.score, metric), outcome.score.mean)


def _untrained(row: Row, metric: str) -> Cell:
    if row.trained is None:
        return Cell("")
    score = _score(row.untrained, metric)
    return Cell(joined(score.text, *_mark(row.untrained)), score.value)


def _figure(estimate: Estimate) -> Cell:
    return Cell(FIGURES.number(estimate.mean, twice(estimate.error)), estimate.mean)


def _change(estimate: Estimate | None) -> Cell:
    return Cell(signed(estimate), estimate.mean if estimate else None)


def _behind(outcome: Outcome) -> Cell:
    if outcome.behind is None:
        return Cell(joined(*_mark(outcome)), 0.0)
    change = _change(outcome.behind)
    return Cell(joined(change.text, *_mark(outcome)), change.value)


def _mark(outcome: Outcome) -> list[str]:
    word = "best" if outcome.behind is None else "level"
    return [" ", element("span", word, class_="mark")] * outcome.is_level


def _recall(row: Row) -> Cell:
    found = recall_of(row.final)
    if found is None:
        return Cell("")
    return Cell(FIGURES.percent(found.recall, twice(found.recall_error)), found.recall)


def recall_of(outcome: Outcome) -> Recall | None:
    """Return how well documents were found by reading all of them at once; None where that was not measured."""
    retrieval = outcome.evaluation.retrieval
    return None if retrieval is None else retrieval.ways.get(MODEL)
