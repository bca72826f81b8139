"""Verdicts of evaluations and comparisons: one function per clause, joined at the end."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ctxextend.comparison.comparison_result import Comparison, Row
from ctxextend.comparison.metrics import FOUND, LOSS, NDCG
from ctxextend.errors import joined
from ctxextend.evaluation.evaluation_result import (
    CHUNKS,
    MODEL,
    SAME_TEXT,
    SLIDING,
    DocumentScores,
    Estimate,
    Evaluation,
)
from ctxextend.report.effective_text import effective_verdict
from ctxextend.report.numbers import LOSS_UNIT, NUMBERS, ONE_WINDOW, NumberFormat
from ctxextend.report.phrases import chunks_name, metric_column, metric_phrase

# What a sample of a metric is called; of others, a document.
SAMPLES = {LOSS: ("window", "windows"), NDCG: ("query", "queries"), FOUND: ("text", "texts")}
MAX_NAMED = 2  # methods that are worse than the best one and are listed with their differences

# ------------------------------------------------------------------------------------------------
# Evaluations
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContextEffect:
    """How a measurement changes with the longer context."""

    change: Estimate
    better: int  # the sign of a change for the better: -1 of losses, 1 of scores
    amount: str  # the change in words


def evaluation_verdict(evaluation: Evaluation, numbers: NumberFormat = NUMBERS) -> str:
    """Return one sentence on whether the longer context helps or else on another measurement."""
    effect = _context_effect(evaluation, numbers)
    if effect is not None and math.isfinite(effect.change.mean):
        return _effect_verdict(effect, evaluation, numbers)
    if evaluation.positions and MODEL in evaluation.positions.losses:
        return _perplexity_verdict(evaluation, numbers)
    if evaluation.search:
        score = numbers.estimate(evaluation.search.scores[MODEL]["nDCG@10"])
        return f"nDCG@10 {score} at {evaluation.search.length:,} tokens."
    if evaluation.effective:
        return effective_verdict(evaluation.effective)
    return "No longer context was measured."


def _context_effect(evaluation: Evaluation, numbers: NumberFormat) -> ContextEffect | None:
    """Return the effect of the longer context on losses or else on search or on retrieval."""
    contexts = evaluation.contexts
    if contexts and contexts.points[-1].context > contexts.reference:
        return _effect_on_losses(evaluation, numbers)
    if evaluation.search and MODEL in evaluation.search.changes:
        return _effect_on_search(evaluation, numbers)
    if evaluation.retrieval and evaluation.retrieval.modes[MODEL].change is not None:
        return _effect_on_retrieval(evaluation, numbers)
    return None


def _effect_on_losses(evaluation: Evaluation, numbers: NumberFormat) -> ContextEffect:
    contexts = evaluation.contexts
    assert contexts is not None
    longest = contexts.points[-1]
    amount = _shown_change(longest.change, numbers)
    lengths = f"at {longest.context:,} vs. {contexts.reference:,}"
    return ContextEffect(change=longest.change, better=-1, amount=f"{amount} {LOSS_UNIT} {lengths}")


def _effect_on_search(evaluation: Evaluation, numbers: NumberFormat) -> ContextEffect:
    search = evaluation.search
    assert search is not None
    change = search.changes[MODEL]
    amount = f"nDCG@10 {_shown_change(change, numbers)} {_lengths(search.length, evaluation)}"
    clauses = [amount, *against_chunks(search, numbers)]
    return ContextEffect(change=change, better=1, amount="; ".join(clauses))


def against_chunks(measured: DocumentScores, numbers: NumberFormat) -> Iterator[str]:
    """Yield how the model compares to the base in chunks, of the same text and of the whole."""
    for mode in (SAME_TEXT, CHUNKS):
        if mode in measured.differences:
            change = measured.differences[mode][measured.ranked_by]
            name = chunks_name(measured.tokens_read, mode)
            yield numbers.compared(change, name, measured.ranked_by)


def _effect_on_retrieval(evaluation: Evaluation, numbers: NumberFormat) -> ContextEffect:
    retrieval = evaluation.retrieval
    assert retrieval is not None
    change = retrieval.modes[MODEL].change
    assert change is not None
    if change.sign is None:
        points = numbers.number(100 * change.mean, None, signed=True)
    else:
        points = numbers.percent(change, signed=True)
    amount = f"recall@1 {points} points {_lengths(retrieval.length, evaluation)}"
    return ContextEffect(change=change, better=1, amount=amount)


def _lengths(length: int, evaluation: Evaluation) -> str:
    base_length = evaluation.base_max_len or 0
    return f"at {length:,} vs. {base_length:,}"


def _effect_verdict(effect: ContextEffect, evaluation: Evaluation, numbers: NumberFormat) -> str:
    sign = effect.change.sign
    if sign is None:
        return f"Longer context: {effect.amount}, {ONE_WINDOW}."
    if sign == effect.better:
        outcome = "Longer context helps"
    elif sign == -effect.better:
        outcome = "Longer context hurts"
    else:
        outcome = "No significant effect of the longer context"
    result = f"{outcome}: {effect.amount}"
    against_base = _against_sliding_windows(evaluation, numbers)
    if _contradicts_base(effect, evaluation):
        return f"{result}. All the same, the model is {against_base[0]}."
    return f"{'; '.join([result, *against_base])}."


def _contradicts_base(effect: ContextEffect, evaluation: Evaluation) -> bool:
    """Whether the model gets worse with context and is better than the base, or the reverse."""
    positions = evaluation.positions
    if positions is None or SLIDING not in positions.changes:
        return False
    change = positions.changes[SLIDING].sign
    if not change or not effect.change.sign:
        return False
    return (effect.change.sign == effect.better) != (change < 0)


def _perplexity_verdict(evaluation: Evaluation, numbers: NumberFormat) -> str:
    positions = evaluation.positions
    assert positions is not None
    perplexity = numbers.perplexity(positions.losses[MODEL])
    clauses = [
        f"Perplexity {perplexity} at {positions.length:,} tokens",
        *_against_sliding_windows(evaluation, numbers),
    ]
    return f"{', '.join(clauses)}."


def _against_sliding_windows(evaluation: Evaluation, numbers: NumberFormat) -> list[str]:
    """Return how the model compares to the base that reads the same text in sliding windows."""
    positions = evaluation.positions
    if positions is None or SLIDING not in positions.changes:
        return []
    return [numbers.compared(positions.changes[SLIDING], "the base in sliding windows")]


# ------------------------------------------------------------------------------------------------
# Comparisons
# ------------------------------------------------------------------------------------------------


def comparison_verdict(comparison: Comparison, numbers: NumberFormat = NUMBERS) -> str:
    """Return the best method, those tied with it, and how others and the base compare.

    Names are in backticks. A text that is too short to choose by is said to be so.
    """
    measured = [row for row in comparison.rows if math.isfinite(row.score.mean)]
    if not measured:
        metric = comparison.metric.replace("_", " ")
        return (
            f"No {comparison.row_type} has a finite {metric} at "
            f"{comparison.max_len_after:,} tokens."
        )
    best, *others = measured
    clauses = [
        _best(comparison, best, numbers),
        *_tied_with_best(others),
        *_worse(comparison, others, numbers),
        *_doubts(comparison, others),
    ]
    sentences = ["; ".join(clauses), *_base(comparison, best, numbers)]
    return f"{'. '.join(sentences)}."


def _best(comparison: Comparison, best: Row, numbers: NumberFormat) -> str:
    name = _name(best)
    score = _score(comparison, numbers)
    result = f"{metric_phrase(comparison)} {score(best.score)}"
    when = f"at {comparison.max_len_after:,} tokens"
    if comparison.metric == FOUND:  # in texts of all lengths
        when = f"up to {comparison.max_len_after:,} tokens"
    return f"{name} is best {when}: {result}"


def _tied_with_best(others: Sequence[Row]) -> list[str]:
    tied = [_name(row) for row in others if row.is_tied]
    if not tied:
        return []
    return [f"{joined(tied)} {_are(tied)} tied with it"]


def _worse(comparison: Comparison, others: Sequence[Row], numbers: NumberFormat) -> list[str]:
    names = []
    amounts = []
    for row in others:
        if row.delta and not row.is_tied:
            names.append(_name(row))
            amounts.append(_shown_change(row.delta, numbers, signed=False))
    if not names:
        return []
    unit = ""
    if comparison.is_loss:
        unit = f" {LOSS_UNIT}"
    if len(names) > MAX_NAMED:
        return [f"the other {len(names)} are worse by at least {amounts[0]}{unit}"]
    return [f"{joined(names)} {_are(names)} worse by {joined(amounts)}{unit}"]


def _doubts(comparison: Comparison, others: Sequence[Row]) -> list[str]:
    """Return why another method than the best one may be taken, or may be better."""
    if comparison.has_little_text:
        return [_little_text(comparison)]
    row = comparison.recommended_row
    best = comparison.rows[0]
    if row is not best and not row.is_tied:
        what_for = f"scores of long inputs do not say what {_name(best)} is for"
        return [f"{_name(row)} is recommended: {what_for}"]
    takes_auto = row.method == comparison.auto
    if takes_auto and any(other.is_tied for other in others):
        return [f"of those tied, auto takes {_name(row)}"]
    deltas = [other.delta for other in others if other.delta]
    if any(delta.standard_error is None for delta in deltas):
        return ["the ranking is based on one window or document, so it may be due to chance"]
    return []


def _base(comparison: Comparison, best: Row, numbers: NumberFormat) -> list[str]:
    """Return how the best method compares to the base."""
    name = _name(best)
    change = best.against_base
    if comparison.base is None:
        return []
    if best.document_scores is not None:
        return [*_in_chunks(comparison, name, best.document_scores, numbers)]
    score = _score(comparison, numbers)(comparison.base)
    sentence = f"The base in {_windows(comparison)}: {metric_phrase(comparison)} {score}"
    if change:
        sentence += f"; {name} is {_against_base(comparison, change, numbers)}"
    return [sentence]


def _in_chunks(
    comparison: Comparison,
    name: str,
    measured: DocumentScores,
    numbers: NumberFormat,
) -> Iterator[str]:
    """Yield how a method compares to the base in chunks of the same text, and of the whole."""
    for mode in (SAME_TEXT, CHUNKS):
        if mode not in measured.differences:
            continue
        chunks = chunks_name(measured.tokens_read, mode)
        score = numbers.estimate(measured.ranking_scores[mode])
        change = measured.differences[mode][measured.ranked_by]
        compared = _against_base(comparison, change, numbers)
        yield f"The base in {chunks}: {metric_phrase(comparison)} {score}; {name} is {compared}"


def _name(row: Row) -> str:
    method = row.method.replace("`", "'")
    return f"`{method}`"


def _score(comparison: Comparison, numbers: NumberFormat) -> Callable[[Estimate | None], str]:
    """Return how scores are shown: losses as perplexities."""
    if comparison.is_loss:
        return numbers.perplexity
    return numbers.estimate


def _little_text(comparison: Comparison) -> str:
    """Say that the text is too short to choose a method by, and what `auto` takes."""
    count = comparison.samples
    singular, plural = SAMPLES.get(comparison.metric, ("document", "documents"))
    found = f"{count} {plural} are"
    if count == 1:
        found = f"1 {singular} is"
    clause = f"{found} too little text to choose"
    if comparison.auto:
        clause += f"; auto takes `{comparison.auto}`"
    return clause


def _windows(comparison: Comparison) -> str:
    measured = comparison.rows[0].document_scores
    if measured is not None:
        return chunks_name(measured.tokens_read, CHUNKS)
    return f"sliding windows of {comparison.max_len_before:,} tokens"


def _against_base(comparison: Comparison, change: Estimate, numbers: NumberFormat) -> str:
    unit = LOSS_UNIT if comparison.is_loss else metric_column(comparison)
    return numbers.compared(change, "the base", unit)


def _shown_change(change: Estimate, numbers: NumberFormat, *, signed: bool = True) -> str:
    """Return a difference, without the reason if it has no interval: the sentence says it."""
    if change.standard_error is None:
        return numbers.number(change.mean, None, signed=signed)
    return numbers.estimate(change, signed=signed)


def _are(names: Sequence[str]) -> str:
    return "are" if len(names) > 1 else "is"
