"""A comparison of methods as lines for a terminal."""

import math
from collections.abc import Iterator

from ctxextend.cli.output import Pieces, Screen
from ctxextend.cli.tables import Cell, labelled, sentence, table
from ctxextend.comparison.comparison_result import LOSS, Comparison, Row
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.report.numbers import NumberFormat

WHAT_IS_TRAINED = {"new": "the new rows", "positions": "the position table", "all": "everything"}


def comparison_lines(comparison: Comparison, screen: Screen) -> Iterator[Pieces]:
    """Yield what was compared, the ranking, and in words how it is read."""
    figures = NumberFormat(screen.unicode)
    yield [(comparison.source, "title"), (f" ({comparison.family}, {comparison.kind})", "")]
    yield from labelled(_facts(comparison), screen.width)
    if not comparison.complete:
        text = "incomplete: it ended before all that was asked for was measured"
        yield from sentence(text, screen.width, "wrong")
    if comparison.rows:
        yield []
        yield from _ranking(comparison, figures, screen.width)
    yield []
    for text in _reading(comparison, figures):
        yield from sentence(text, screen.width)
    for name, reason in comparison.left_out.items():
        yield from sentence(f"left out: {name}. {reason}", screen.width, "faint")


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    count = len(comparison.rows)
    methods = f"{count} method{'s' * (count != 1)}"
    yield "gives", f"{comparison.max_len_before} -> {comparison.max_len_after} positions, by {methods}"
    documents = f"{comparison.documents:,} document{'s' * (comparison.documents != 1)}"
    yield "text", f"{documents}, {comparison.tokens:,} tokens of {'it' if comparison.documents == 1 else 'them'} used"
    if comparison.steps:
        what = WHAT_IS_TRAINED.get(comparison.trainable, comparison.trainable)
        steps = f"{comparison.steps:,} step{'s' * (comparison.steps != 1)}"
        yield "trained", f"{what}, {steps}, over {comparison.seq_len} positions"
    yield "run", f"in {comparison.precision}, seed {comparison.seed}"


def _ranking(comparison: Comparison, figures: NumberFormat, width: int) -> Iterator[Pieces]:
    """Yield the methods as a table, the best first."""
    has_short = any(row.final.short is not None for row in comparison.rows)
    scored, unit = ("perplexity", ", nats") if comparison.metric == LOSS else ("MRR", "")
    header = ["   method", f"{scored}{', trained' * bool(comparison.steps)}", f"behind the best{unit}"]
    header += ["untrained"] * bool(comparison.steps) + ["short texts, nats"] * has_short
    rows = [_cells(number, row, comparison, figures)[: len(header)] for number, row in enumerate(comparison.rows, 1)]
    yield from table(header, rows, width)


def _cells(number: int, row: Row, comparison: Comparison, figures: NumberFormat) -> list[Cell]:
    outcome, short = row.trained if comparison.steps else row.untrained, row.final.short
    score, behind, style = "-", "-", ""
    if outcome is not None:
        score = _score(outcome.score, comparison, figures)
        style = "right" if outcome.behind is None or outcome.is_level else ""
        level = "level  " if outcome.is_level else ""
        behind = "the best" if outcome.behind is None else f"{level}{figures.change(outcome.behind)}"
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
        of = " of masked tokens" if comparison.kind == "masked" else ""
        overlapping = f"The original reads the same in pieces of {length} tokens that overlap by half"
        averaged = f"The original finds them by the mean vector of pieces of {length} tokens: MRR {score}."
        yield f"{overlapping}: perplexity{of} {score}." if is_loss else averaged
    by = "window" if is_loss else "document"
    behind = [(row.final, row.final.behind) for row in comparison.rows if row.final.behind is not None]
    if any(outcome.is_level for outcome, _ in behind):
        yield (
            f"level: behind the best by no more than two standard errors of the difference, paired by {by}. "
            "On this text the two are not told apart."
        )
    elif any(change.error is None for _, change in behind):
        yield f"One {by} was read, so that nothing tells how sure the differences are."
    elif any(not math.isfinite(change.mean) for _, change in behind):
        yield "Losses that are no finite numbers cannot be ranked."
    elif len(comparison.rows) > 1:
        yield f"No other is level with the best: each is more than two standard errors behind it, paired by {by}."
    if comparison.rows:
        yield "Errors are single standard errors."
    if any(row.final.short is not None for row in comparison.rows):
        yield (
            f"short texts: the loss minus the original's where both read {length} tokens at once, "
            "which is what texts pay that fitted before."
        )
