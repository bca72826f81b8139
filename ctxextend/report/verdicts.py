"""Verdicts of evaluations and comparisons in one or two sentences."""

import math
from collections.abc import Sequence

from ctxextend.comparison.comparison_result import Comparison, Row
from ctxextend.comparison.metrics import LOSS, NDCG
from ctxextend.errors import joined
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, Estimate, Evaluation, Shift
from ctxextend.report.numbers import LOSS_UNIT, ONE_WINDOW, NumberFormat

# What a sample of a metric is called; of others, a document.
SAMPLES = {LOSS: ("window", "windows"), NDCG: ("query", "queries")}


def evaluation_verdict(evaluation: Evaluation, numbers: NumberFormat) -> str:
    """Return one sentence on whether the longer context helps or, if not measured, on another
    measurement.
    """
    change = None
    amount = ""
    better = -1
    contexts, retrieval, search = evaluation.contexts, evaluation.retrieval, evaluation.search
    base = evaluation.positions.changes.get(SLIDING) if evaluation.positions else None
    compared = numbers.compared(base, "the base in sliding windows") if base else ""
    if contexts and (last := contexts.points[-1]).context > contexts.reference:
        change = last.change
        amount = (
            f"{_shown_change(change, numbers)} nats/token at {last.context:,} vs. "
            f"{contexts.reference:,}"
        )
    elif search and (change := search.changes.get(MODEL)) is not None:
        better = 1
        lengths = f"{search.length:,} vs. {evaluation.base_max_len or 0:,}"
        amount = f"nDCG@10 {_shown_change(change, numbers)} at {lengths}"
        if search.against_chunks is not None:
            amount += (
                f"; {numbers.compared(search.against_chunks, 'the base in chunks', 'nDCG@10')}"
            )
    elif retrieval and (change := retrieval.modes[MODEL].change) is not None:
        better = 1
        points = numbers.percent(change, signed=True)
        if change.sign is None:
            points = numbers.number(100 * change.mean, None, signed=True)
        amount = (
            f"recall@1 {points} points at {retrieval.length:,} vs. {evaluation.base_max_len or 0:,}"
        )
    if change is not None and math.isfinite(change.mean):
        if change.sign is None:
            return f"Longer context: {amount}, {ONE_WINDOW}."
        effects = {better: "Longer context helps", -better: "Longer context hurts"}
        effect = (
            f"{effects.get(change.sign, 'No significant effect of the longer context')}: {amount}"
        )
        return f"{effect}; {compared}." if compared else f"{effect}."
    if evaluation.positions and MODEL in evaluation.positions.losses:
        loss = evaluation.positions.losses[MODEL]
        text = f"Perplexity {numbers.perplexity(loss)} at {evaluation.positions.length:,} tokens"
        return f"{text}, {compared}." if compared else f"{text}."
    if search:
        return (
            f"nDCG@10 {numbers.estimate(search.scores[MODEL]['nDCG@10'])} at {search.length:,} "
            "tokens."
        )
    if evaluation.passkey:
        return (
            f"Passkey retrieval is {'' if evaluation.passkey.is_above_chance else 'not '}above "
            "chance."
        )
    if evaluation.shift:
        return shift_verdict(evaluation.shift, numbers)
    return "No longer context was measured." if contexts else "Nothing was measured."


def shift_verdict(shift: Shift, numbers: NumberFormat) -> str:
    """Return one sentence on what later positions cost on the same text."""
    result = f"cosine {numbers.estimate(shift.effect)} to the same at position 0"
    if shift.points[0].loss is not None:
        result = numbers.compared(shift.effect, "the same at position 0")
    return f"Passages that reach beyond {shift.boundary:,} positions: {result}."


def comparison_verdict(comparison: Comparison, numbers: NumberFormat) -> str:
    """Return the best method, those tied with it, and how others and the base compare; names are in
    backticks.

    A quick comparison ends in advice. A text that is too short to choose by is said to be so.
    """
    trained = comparison.rows[0].trained is not None
    after = f"{comparison.max_len_after:,}"
    outcomes = [(_name(row), row.trained if trained else row.untrained) for row in comparison.rows]
    measured = [
        (name, outcome)
        for name, outcome in outcomes
        if outcome and math.isfinite(outcome.score.mean)
    ]
    if not measured:
        return (
            f"No {comparison.row_type} has a finite {comparison.metric.replace('_', ' ')} at "
            f"{after} tokens."
        )
    if comparison.is_quick and comparison.base and measured[0][1].against_base:
        return _quick_verdict(comparison, comparison.base, numbers)
    (name, best), *others = measured
    hold_out = comparison.hold_out
    metric = comparison.metric_names[1]
    score, unit = (
        (numbers.perplexity, " nats/token") if comparison.is_loss else (numbers.estimate, "")
    )
    change = best.against_base
    training = f" {comparison.after_training}" if trained else ""
    parts = [f"{name} is best at {after} tokens{training}: {metric} {score(best.score)}"]
    if hold_out is not None:
        rows = f"{comparison.max_len_after - hold_out:,} of {after} rows"
        parts = [
            f"With {rows} held out, {name} is best: {metric} {score(best.score)} beyond "
            f"{hold_out:,}"
        ]
        if comparison.is_loss:
            parts[0] += f" (reference rows {score(comparison.base)})"
    tied = [other for other, outcome in others if outcome.is_tied]
    deltas = [
        (other, outcome.delta) for other, outcome in others if outcome.delta and not outcome.is_tied
    ]
    worse = [(other, _shown_change(delta, numbers, signed=False)) for other, delta in deltas]
    if tied:
        parts.append(_tied(tied, "it"))
    if len(worse) > 2:
        parts.append(f"the other {len(worse)} are worse by at least {worse[0][1]}{unit}")
    elif worse:
        names, amounts = zip(*worse, strict=True)
        parts.append(f"{joined(names)} {_are(names)} worse by {joined(amounts)}{unit}")
    if comparison.has_little_text:
        parts.append(_little_text(comparison))
    elif tied and (taken := _taken_by_auto(comparison)):
        parts.append(f"of those tied, auto takes {taken}")
    elif any(outcome.delta and outcome.delta.standard_error is None for _, outcome in others):
        parts.append("the ranking is based on one window or document, so it may be due to chance")
    text = "; ".join(parts)
    if hold_out is not None:
        if comparison.is_loss and change:
            text += f". {name} is {numbers.compared(change, 'the reference rows')}"
    elif comparison.base is not None:
        not_trained = ", not trained," if trained else ""
        text += (
            f". The base{not_trained} in {_windows(comparison)}: {metric} {score(comparison.base)}"
        )
        if change:
            text += f"; {name} is {_against_base(comparison, change, numbers)}"
    return f"{text}."


def _quick_verdict(comparison: Comparison, base: Estimate, numbers: NumberFormat) -> str:
    """Return whether to use the recommended method or the base in pieces, and what the advice is
    based on.
    """
    row = comparison.recommended_row
    assert row is not None
    name = _name(row)
    change = row.untrained.against_base
    score = numbers.perplexity if comparison.is_loss else numbers.estimate
    metric = comparison.metric_names[1]
    pieces = _pieces(comparison)
    result = (
        f"t {comparison.max_len_after:,} tokens {name} has {metric} {score(row.untrained.score)} "
        "without training"
    )
    result += f", and the base in {_windows(comparison)} {score(base)}"
    if change:
        result += f"; {name} is {_against_base(comparison, change, numbers)}"
    if comparison.has_little_text:
        return f"{_little_text(comparison)}. A{result}."
    advice = f"Use {name}"
    if comparison.pieces_win:
        advice = f"Keep {pieces}, or train"
    elif change and change.sign == 0:
        advice += f" or keep {pieces}"
    text = f"{advice}: a{result}."
    tied = [
        _name(other) for other in comparison.rows if other is not row and other.untrained.is_tied
    ]
    if tied:
        text += f" {_tied(tied, name)}"
        text += "; auto takes it." if _taken_by_auto(comparison) == name else "."
    return text


def _name(row: Row) -> str:
    method = row.method.replace("`", "'")
    return f"`{method}`"


def _taken_by_auto(comparison: Comparison) -> str:
    """Return the name of the row that `auto` takes, if that is the recommended one."""
    row = comparison.recommended_row
    return _name(row) if row is not None and row.method == comparison.auto else ""


def _little_text(comparison: Comparison) -> str:
    """Say that the text is too short to choose a method by, and what `auto` takes."""
    count = comparison.samples
    singular, plural = SAMPLES.get(comparison.metric, ("document", "documents"))
    if comparison.hold_out is not None:
        singular, plural = "text", "texts"
    found = f"1 {singular} is" if count == 1 else f"{count} {plural} are"
    text = f"{found} too little text to choose"
    return f"{text}; auto takes `{comparison.auto}`" if comparison.auto else text


def _pieces(comparison: Comparison) -> str:
    return "sliding windows" if comparison.is_loss else "chunks"


def _windows(comparison: Comparison) -> str:
    return f"{_pieces(comparison)} of {comparison.max_len_before:,} tokens"


def _against_base(comparison: Comparison, change: Estimate, numbers: NumberFormat) -> str:
    unit = LOSS_UNIT if comparison.is_loss else comparison.metric_names[0]
    return numbers.compared(change, "the base", unit)


def _shown_change(change: Estimate, numbers: NumberFormat, *, signed: bool = True) -> str:
    """Return a difference, without the reason if it has no interval: the sentence says it."""
    if change.standard_error is None:
        return numbers.number(change.mean, None, signed=signed)
    return numbers.estimate(change, signed=signed)


def _tied(names: Sequence[str], other: str) -> str:
    return f"{joined(names)} {_are(names)} tied with {other}"


def _are(names: Sequence[str]) -> str:
    return "are" if len(names) > 1 else "is"
