"""A comparison of methods on a terminal."""

import math
from collections.abc import Iterator

from ctxextend.cli.tables import Cell, Page, counted
from ctxextend.comparison.comparison_result import LOSS, Comparison, Row
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.report.numbers import NumberFormat

WHAT_IS_TRAINED = {"new": "the new rows", "positions": "the position table", "all": "everything"}


def add_comparison(page: Page, comparison: Comparison) -> None:
    """Add what was compared, the ranking, and in words how it is read."""
    figures = NumberFormat(page.unicode)
    page.line((comparison.source, "title"), f" ({comparison.family}, {comparison.kind})")
    methods, read = counted(len(comparison.rows), "method"), counted(comparison.documents, "document")
    items = [
        ("gives", f"{comparison.max_len_before} -> {comparison.max_len_after} positions, by {methods}"),
        ("text", f"{comparison.tokens:,} tokens of {read}"),
        ("run", f"in {comparison.precision}, seed {comparison.seed}"),
    ]
    if comparison.steps:
        what, steps = WHAT_IS_TRAINED.get(comparison.trainable, comparison.trainable), counted(comparison.steps, "step")
        items.insert(2, ("trained", f"{what}, {steps}, over {comparison.seq_len} positions"))
    page.values(items)
    if not comparison.complete:
        page.text("Incomplete: it ended before all was measured.", "wrong")
    if comparison.rows:
        page.line()
        _add_ranking(page, comparison, figures)
    page.line()
    for text in _reading(comparison, figures):
        page.text(text)
    for name, reason in comparison.left_out.items():
        page.text(f"Left out: {name}. {reason}", "faint")


def _add_ranking(page: Page, comparison: Comparison, figures: NumberFormat) -> None:
    """Add the methods as a table, the best first."""
    has_short = any(row.final.short is not None for row in comparison.rows)
    scored, unit = ("perplexity", ", nats") if comparison.metric == LOSS else ("MRR", "")
    header = ["   method", f"{scored}{', trained' * bool(comparison.steps)}", f"behind the best{unit}"]
    header += ["untrained"] * bool(comparison.steps) + ["short texts, nats"] * has_short
    rows = [_cells(number, row, comparison, figures)[: len(header)] for number, row in enumerate(comparison.rows, 1)]
    page.table(header, rows)


def _cells(number: int, row: Row, comparison: Comparison, figures: NumberFormat) -> list[Cell]:
    outcome, short = row.trained if comparison.steps else row.untrained, row.final.short
    score, behind, style = "-", "-", ""
    if outcome is not None:
        score = _score(outcome.score, comparison, figures)
        style = "right" if outcome.behind is None or outcome.is_level else ""
        behind = "the best"
        if outcome.behind is not None:
            behind = "level  " * outcome.is_level + figures.change(outcome.behind)
    cells: list[Cell] = [f"{number:>2} {row.method}", score, (behind, style)]
    if comparison.steps:
        cells.append(_score(row.untrained.score, comparison, figures))
    if short is not None and short.mean == 0 and not short.error:  # nothing to the last bit
        return [*cells, "as before"]
    return [*cells, "-" if short is None else figures.change(short)]


def _score(score: Estimate, comparison: Comparison, figures: NumberFormat) -> str:
    is_loss = comparison.metric == LOSS and not math.isnan(score.mean)
    return figures.perplexity(score) if is_loss else figures.estimate(score)


def _reading(comparison: Comparison, figures: NumberFormat) -> Iterator[str]:
    """Yield how the table is to be read."""
    length, is_loss = comparison.max_len_before, comparison.metric == LOSS
    if comparison.original is not None:
        score = _score(comparison.original, comparison, figures)
        if is_loss:
            yield f"The original in windows of {length} tokens that overlap by half: perplexity {score}."
        else:
            yield f"The original by the mean vector of pieces of {length} tokens: MRR {score}."
    by = "window" if is_loss else "document"
    behind = [(row.final, row.final.behind) for row in comparison.rows if row.final.behind is not None]
    if any(outcome.is_level for outcome, _ in behind):
        yield f"Level: behind the best by no more than two standard errors of the difference, paired by {by}."
    elif any(change.error is None for _, change in behind):
        yield f"One {by} was read: nothing says how sure the differences are."
    elif any(not math.isfinite(change.mean) for _, change in behind):
        yield "Losses that are no finite numbers cannot be ranked."
    elif len(comparison.rows) > 1:
        yield f"Every other is more than two standard errors behind the best, paired by {by}."
    if comparison.rows:
        yield "Errors are single standard errors."
    if any(row.final.short is not None for row in comparison.rows):
        yield f"Short texts: the loss minus the original's, both with {length} tokens."
