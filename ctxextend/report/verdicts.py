"""Verdicts of evaluations and comparisons: one function per clause, joined at the end."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ctxextend.comparison.comparison_result import Comparison, Row
from ctxextend.comparison.metrics import FOUND, LOSS, NDCG
from ctxextend.errors import joined
from ctxextend.lab.evaluation_result import (
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
    positions = evaluation.positions
    if positions and MODEL in positions.losses:
        perplexity = numbers.perplexity(positions.losses[MODEL])
        clauses = [
            f"Perplexity {perplexity} at {positions.length:,} tokens",
            *_against_sliding_windows(evaluation, numbers),
        ]
        return f"{', '.join(clauses)}."
    if evaluation.search:
        score = numbers.estimate(evaluation.search.scores[MODEL]["nDCG@10"])
        return f"nDCG@10 {score} at {evaluation.search.length:,} tokens."
    if evaluation.effective:
        return effective_verdict(evaluation.effective)
    return "No longer context was measured."


def _context_effect(evaluation: Evaluation, numbers: NumberFormat) -> ContextEffect | None:
    contexts = evaluation.contexts
    search = evaluation.search
    retrieval = evaluation.retrieval
    of_base = f"vs. {evaluation.base_max_len or 0:,}"
    if contexts and contexts.points[-1].context > contexts.reference:
        longest = contexts.points[-1]
        change = longest.change
        amount = (
            f"{_shown_change(change, numbers)} {LOSS_UNIT} at {longest.context:,} vs. "
            f"{contexts.reference:,}"
        )
        return ContextEffect(change=change, better=-1, amount=amount)
    if search and MODEL in search.changes:
        change = search.changes[MODEL]
        amount = f"nDCG@10 {_shown_change(change, numbers)} at {search.length:,} {of_base}"
        clauses = [amount, *against_chunks(search, numbers)]
        return ContextEffect(change=change, better=1, amount="; ".join(clauses))
    of_retrieval = None if retrieval is None else retrieval.modes[MODEL].change
    if retrieval and of_retrieval is not None:
        points = numbers.percent(of_retrieval, signed=True)
        if of_retrieval.sign is None:
            points = numbers.number(100 * of_retrieval.mean, None, signed=True)
        amount = f"recall@1 {points} points at {retrieval.length:,} {of_base}"
        return ContextEffect(change=of_retrieval, better=1, amount=amount)
    return None


def against_chunks(measured: DocumentScores, numbers: NumberFormat) -> Iterator[str]:
    """Yield how the model compares to the base in chunks, of the same text and of the whole."""
    for mode in (SAME_TEXT, CHUNKS):
        if mode in measured.differences:
            change = measured.differences[mode][measured.ranked_by]
            name = chunks_name(measured.tokens_read, mode)
            yield numbers.compared(change, name, measured.ranked_by)


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
    change = None
    if against_base and evaluation.positions:
        change = evaluation.positions.changes[SLIDING].sign
    # The model gets worse with context and is better than the base, or the reverse.
    if change and sign and (sign == effect.better) != (change < 0):
        return f"{result}. All the same, the model is {against_base[0]}."
    return f"{'; '.join([result, *against_base])}."


def _against_sliding_windows(evaluation: Evaluation, numbers: NumberFormat) -> list[str]:
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
    when = f"at {comparison.max_len_after:,} tokens"
    if comparison.metric == FOUND:  # in texts of all lengths
        when = f"up to {comparison.max_len_after:,} tokens"
    score = _score(comparison, numbers)(best.score)
    clauses = [f"{_name(best)} is best {when}: {metric_phrase(comparison)} {score}"]
    tied = [_name(row) for row in others if row.is_tied]
    if tied:
        clauses.append(f"{joined(tied)} {_are(tied)} tied with it")
    clauses += [
        *_worse(comparison, others, numbers),
        *_doubts(comparison, others),
    ]
    sentences = ["; ".join(clauses), *_base(comparison, best, numbers)]
    return f"{'. '.join(sentences)}."


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
    if comparison.has_little_text:
        count = comparison.samples
        singular, plural = SAMPLES.get(comparison.metric, ("document", "documents"))
        found = f"{count} {plural} are"
        if count == 1:
            found = f"1 {singular} is"
        clause = f"{found} too little text to choose"
        if comparison.auto:
            clause += f"; auto takes `{comparison.auto}`"
        return [clause]
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
    name = _name(best)
    phrase = metric_phrase(comparison)
    if comparison.base is None:
        return []
    measured = best.document_scores
    if measured is None:
        score = _score(comparison, numbers)(comparison.base)
        windows = f"sliding windows of {comparison.max_len_before:,} tokens"
        sentence = f"The base in {windows}: {phrase} {score}"
        if best.against_base:
            sentence += f"; {name} is {numbers.compared(best.against_base, 'the base')}"
        return [sentence]
    sentences = []
    for mode in (SAME_TEXT, CHUNKS):
        if mode in measured.differences:
            chunks = chunks_name(measured.tokens_read, mode)
            score = numbers.estimate(measured.ranking_scores[mode])
            change = measured.differences[mode][measured.ranked_by]
            compared = numbers.compared(change, "the base", metric_column(comparison))
            sentences.append(f"The base in {chunks}: {phrase} {score}; {name} is {compared}")
    return sentences


def _name(row: Row) -> str:
    method = row.method.replace("`", "'")
    return f"`{method}`"


def _score(comparison: Comparison, numbers: NumberFormat) -> Callable[[Estimate | None], str]:
    if comparison.is_loss:
        return numbers.perplexity
    return numbers.estimate


def _shown_change(change: Estimate, numbers: NumberFormat, *, signed: bool = True) -> str:
    """Return a difference, without the reason if it has no interval: the sentence says it."""
    if change.standard_error is None:
        return numbers.number(change.mean, None, signed=signed)
    return numbers.estimate(change, signed=signed)


def _are(names: Sequence[str]) -> str:
    return "are" if len(names) > 1 else "is"
