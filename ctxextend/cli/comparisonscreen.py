"""A comparison of methods as lines for a terminal."""

import math
from collections.abc import Iterator

from ctxextend.cli.chart import Pieces
from ctxextend.cli.lines import Cell, Screen, labelled, table
from ctxextend.comparison.reports import LOSS, Comparison, Outcome, Row
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.report.numbers import Figures

__all__ = ["comparison_lines"]

WHAT_IS_TRAINED = {"new": "the new rows", "positions": "the position table", "all": "everything"}


def comparison_lines(comparison: Comparison, width: int, *, unicode: bool) -> Iterator[Pieces]:
    """Yield the screen: what was compared, the ranking, and in words how it is read.

    Args:
        comparison: What was found.
        width: Characters of a line.
        unicode: Whether figures may use more than ASCII.
    """
    screen, figures = Screen(width, 0, unicode), Figures(unicode)
    yield [(comparison.source, "title"), (f" ({comparison.family}, {comparison.kind})", "")]
    yield from labelled(_facts(comparison), width)
    if not comparison.complete:
        yield from screen.says("incomplete: it ended before all that was asked for was measured", "wrong")
    if comparison.rows:
        yield []
        yield from _ranking(comparison, figures, width)
    yield []
    for sentence in _reading(comparison, figures):
        yield from screen.says(sentence)
    for name, reason in comparison.left_out.items():
        yield from screen.says(f"left out: {name}. {reason}", "faint")


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


def _ranking(comparison: Comparison, figures: Figures, width: int) -> Iterator[Pieces]:
    """Yield the methods as a table, the best first."""
    scored = "perplexity" if comparison.metric == LOSS else "MRR"
    unit = ", nats" if comparison.metric == LOSS else ""
    trained, untrained = (", trained", ["untrained"]) if comparison.steps else ("", [])
    short = ["short texts, nats"] * any(row.final.short is not None for row in comparison.rows)
    header = ["   method", f"{scored}{trained}", f"behind the best{unit}", *untrained, *short]
    rows = [_row(number, row, comparison, figures)[: len(header)] for number, row in enumerate(comparison.rows, 1)]
    yield from table(header, rows, width)


def _row(number: int, row: Row, comparison: Comparison, figures: Figures) -> list[Cell]:
    outcome = row.trained if comparison.steps else row.untrained
    cells: list[Cell] = [(f"{number:>2} {row.method}", ""), ("-", ""), ("-", "")]
    if outcome is not None:
        cells[1:] = [(_score(outcome.score, comparison, figures), ""), _behind(outcome, figures)]
    if comparison.steps:
        cells.append((_score(row.untrained.score, comparison, figures), ""))
    return [*cells, (_short(row.final.short, figures), "")]


def _score(score: Estimate, comparison: Comparison, figures: Figures) -> str:
    is_loss = comparison.metric == LOSS and not math.isnan(score.mean)
    return figures.perplexity(score) if is_loss else figures.number(score.mean, score.error)


def _behind(outcome: Outcome, figures: Figures) -> Cell:
    if outcome.behind is None:
        return "the best", "right"
    level = "level  " if outcome.is_level else ""
    return f"{level}{figures.change(outcome.behind)}", "right" if outcome.is_level else ""


def _short(change: Estimate | None, figures: Figures) -> str:
    """Return what short texts cost, and nothing to the last bit in a word."""
    if change is None:
        return "-"
    return "as before" if change.mean == 0 and not change.error else figures.change(change)


def _reading(comparison: Comparison, figures: Figures) -> Iterator[str]:
    """Yield how the table is to be read."""
    if comparison.original is not None:
        yield _original(comparison, comparison.original, figures)
    by = "window" if comparison.metric == LOSS else "document"
    if any(row.final.behind is not None and row.final.is_level for row in comparison.rows):
        yield (
            f"level: behind the best by no more than two standard errors of the difference, paired by {by}. "
            "On this text the two are not told apart."
        )
    elif any(row.final.behind is not None and row.final.behind.error is None for row in comparison.rows):
        yield f"One {by} was read, so that nothing tells how sure the differences are."
    elif any(row.final.behind is not None and not math.isfinite(row.final.behind.mean) for row in comparison.rows):
        yield "Losses that are no finite numbers cannot be ranked."
    elif len(comparison.rows) > 1:
        yield f"No other is level with the best: each is more than two standard errors behind it, paired by {by}."
    if comparison.rows:
        yield "Errors are single standard errors."
    if any(row.final.short is not None for row in comparison.rows):
        yield (
            f"short texts: the loss minus the original's where both read {comparison.max_len_before} tokens at once, "
            "which is what texts pay that fitted before."
        )


def _original(comparison: Comparison, score: Estimate, figures: Figures) -> str:
    length, shown = comparison.max_len_before, _score(score, comparison, figures)
    if comparison.metric == LOSS:
        of = " of masked tokens" if comparison.kind == "masked" else ""
        return f"The original reads the same in pieces of {length} tokens that overlap by half: perplexity{of} {shown}."
    return f"The original finds them by the mean vector of pieces of {length} tokens: MRR {shown}."
