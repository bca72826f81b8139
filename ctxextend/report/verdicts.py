"""Verdicts of evaluations and comparisons in one or two sentences."""

import math
from collections.abc import Sequence

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, Evaluation, Shift
from ctxextend.report.numbers import LOSS_UNIT, ONE_WINDOW, NumberFormat


def evaluation_verdict(evaluation: Evaluation, numbers: NumberFormat) -> str:
    """Return one sentence on whether the longer context helps or, if not measured, on another measurement."""
    change, amount, better = None, "", -1
    contexts, retrieval, search = evaluation.contexts, evaluation.retrieval, evaluation.search
    base = evaluation.positions.changes.get(SLIDING) if evaluation.positions else None
    compared = numbers.compared(base, "the base in sliding windows") if base else ""
    if contexts and (last := contexts.points[-1]).context > contexts.reference:
        change = last.change
        amount = f"{numbers.change(change)} nats/token at {last.context:,} vs. {contexts.reference:,}"
    elif search and (change := search.changes.get(MODEL)) is not None:
        better, lengths = 1, f"{search.length:,} vs. {evaluation.base_max_len or 0:,}"
        amount = f"nDCG@10 {numbers.change(change)} at {lengths}"
        if search.against_chunks is not None:
            amount += f"; {numbers.compared(search.against_chunks, 'the base in chunks', 'nDCG@10')}"
    elif retrieval and (change := retrieval.modes[MODEL].change) is not None:
        better, points = 1, numbers.percent(change, signed=True)
        amount = f"recall@1 {points} points at {retrieval.length:,} vs. {evaluation.base_max_len or 0:,}"
    if change is not None and math.isfinite(change.mean):
        if change.sign is None:
            return f"Longer context: {amount}, {ONE_WINDOW}."
        effects = {better: "Longer context helps", -better: "Longer context hurts"}
        effect = f"{effects.get(change.sign, 'No significant effect of the longer context')}: {amount}"
        return f"{effect}; {compared}." if compared else f"{effect}."
    if evaluation.positions and MODEL in evaluation.positions.losses:
        loss = evaluation.positions.losses[MODEL]
        text = f"Perplexity {numbers.perplexity(loss)} at {evaluation.positions.length:,} tokens"
        return f"{text}, {compared}." if compared else f"{text}."
    if search:
        return f"nDCG@10 {numbers.estimate(search.scores[MODEL]['nDCG@10'])} at {search.length:,} tokens."
    if evaluation.passkey:
        return f"Passkey retrieval is {'' if evaluation.passkey.is_above_chance else 'not '}above chance."
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
    """Return the best method, those tied with it, and how others and the base compare; names are in backticks."""
    trained, after = comparison.rows[0].trained is not None, f"{comparison.max_len_after:,}"
    outcomes = [(row.method.replace("`", "'"), row.trained if trained else row.untrained) for row in comparison.rows]
    measured = [(f"`{name}`", outcome) for name, outcome in outcomes if outcome and math.isfinite(outcome.score.mean)]
    if not measured:
        return f"No {comparison.row_type} has a finite {comparison.metric.replace('_', ' ')} at {after} tokens."
    (name, best), *others = measured
    hold_out, (column, metric) = comparison.hold_out, comparison.metric_names
    score, unit = (numbers.perplexity, " nats/token") if comparison.is_loss else (numbers.estimate, "")
    pieces = "sliding windows" if comparison.is_loss else "chunks"
    windows = f"{pieces} of {comparison.max_len_before:,} tokens"
    change, metric_unit = best.against_base, LOSS_UNIT if comparison.is_loss else column
    against_base = change and numbers.compared(change, "the base", metric_unit)
    if comparison.is_quick and comparison.base and change:
        advice = f"Keep {pieces}, or train" if comparison.pieces_win else f"Use {name}"
        advice += f" or keep {pieces}" if change.sign == 0 else ""
        return (
            f"{advice}: at {after} tokens {name} has {metric} {score(best.score)} without training, and the base in "
            f"{windows} {score(comparison.base)}; {name} is {against_base}."
        )
    training = f" {comparison.after_training}" if trained else ""
    parts = [f"{name} is best at {after} tokens{training}: {metric} {score(best.score)}"]
    if hold_out is not None:
        rows = f"{comparison.max_len_after - hold_out:,} of {after} rows"
        parts = [f"With {rows} held out, {name} is best: {metric} {score(best.score)} beyond {hold_out:,}"]
        parts[0] += f" (reference rows {score(comparison.base)})" if comparison.is_loss else ""
    tied = [other for other, outcome in others if outcome.is_tied]
    worse = [(other, numbers.estimate(outcome.delta)) for other, outcome in others if not outcome.is_tied]
    if tied:
        parts.append(f"{_joined(tied)} {'are' if len(tied) > 1 else 'is'} tied with it")
    if len(worse) > 2:
        parts.append(f"the other {len(worse)} are worse by at least {worse[0][1]}{unit}")
    elif worse:
        names, amounts = zip(*worse, strict=True)
        parts.append(f"{_joined(names)} {'are' if len(names) > 1 else 'is'} worse by {_joined(amounts)}{unit}")
    if any(outcome.delta and outcome.delta.ci95 is None for _, outcome in others):
        parts.append("the ranking is based on one window or document, so it may be due to chance")
    text = "; ".join(parts)
    if hold_out is not None:
        text += f". {name} is {numbers.compared(change, 'the reference rows')}" if comparison.is_loss and change else ""
    elif comparison.base is not None:
        text += f". The base{', not trained,' * trained} in {windows}: {metric} {score(comparison.base)}"
        text += f"; {name} is {against_base}" if against_base else ""
    return f"{text}."


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
