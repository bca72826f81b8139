"""Verdicts of evaluations and comparisons in one or two sentences."""

import math
from collections.abc import Sequence

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, Evaluation
from ctxextend.report.numbers import ONE_WINDOW, NumberFormat


def evaluation_verdict(found: Evaluation, numbers: NumberFormat) -> str:
    """Return one sentence on whether the longer context helps or, if not measured, on another measurement."""
    change, amount, better = None, "", -1
    contexts, retrieval = found.contexts, found.retrieval
    if contexts and contexts.points and (last := contexts.points[-1]).context > contexts.reference:
        change = last.change
        amount = f"{numbers.change(change)} nats/token at {last.context:,} vs. {contexts.reference:,}"
    elif retrieval and (change := retrieval.modes[MODEL].change) is not None:
        better, points = 1, numbers.percent(change, signed=True)
        amount = f"recall@1 {points} points at {retrieval.length:,} vs. {found.base_max_len or 0:,}"
    if change is not None and math.isfinite(change.mean):
        if change.sign is None:
            return f"Longer context: {amount}, {ONE_WINDOW}."
        effects = {better: "Longer context helps", -better: "Longer context hurts"}
        return f"{effects.get(change.sign, 'No significant effect of the longer context')}: {amount}."
    if found.positions and MODEL in found.positions.losses:
        loss = found.positions.losses[MODEL]
        base = found.positions.changes.get(SLIDING)
        compared = f", {numbers.compared(base, 'the base in sliding windows')}" if base else ""
        return f"Perplexity {numbers.perplexity(loss)} at {found.positions.length:,} tokens{compared}."
    if found.passkey:
        return f"Passkey retrieval is {'' if found.passkey.is_above_chance else 'not '}above chance."
    return "Nothing was measured."


def comparison_verdict(found: Comparison, numbers: NumberFormat) -> str:
    """Return the best method, the methods tied with it, by how much others are worse, and how the base compares.

    Method names are in backticks.
    """
    trained, after = found.rows[0].trained is not None, f"{found.max_len_after:,}"
    outcomes = [(row.method.replace("`", "'"), row.trained if trained else row.untrained) for row in found.rows]
    measured = [(f"`{name}`", one) for name, one in outcomes if one and math.isfinite(one.score.mean)]
    if not measured:
        return f"No method has a finite {found.metric.replace('_', ' ')} at {after} tokens."
    (name, best), *others = measured
    metric = "perplexity" if found.is_loss else "mean reciprocal rank"
    score, unit = (numbers.perplexity, " nats/token") if found.is_loss else (numbers.estimate, "")
    training = f" {found.after_training}" if trained else ""
    parts = [f"{name} is best at {after} tokens{training}: {metric} {score(best.score)}"]
    tied = [other for other, one in others if one.is_tied]
    worse = [(other, numbers.estimate(one.delta)) for other, one in others if not one.is_tied]
    if tied:
        parts.append(f"{_joined(tied)} {'are' if len(tied) > 1 else 'is'} tied with it")
    if len(worse) > 2:
        parts.append(f"the other {len(worse)} are worse by at least {worse[0][1]}{unit}")
    elif worse:
        names, amounts = zip(*worse, strict=True)
        parts.append(f"{_joined(names)} {'are' if len(names) > 1 else 'is'} worse by {_joined(amounts)}{unit}")
    if any(one.delta and one.delta.ci95 is None for _, one in others):
        parts.append("the ranking is based on one window or document, so it may be due to chance")
    text = "; ".join(parts)
    if found.base is not None:
        windows = "sliding windows" if found.is_loss else "chunks"
        text += f". The base in {windows} of {found.max_len_before:,} tokens: {metric} {score(found.base)}"
        if best.against_base is not None:
            text += f"; {name} is {numbers.compared(best.against_base, 'the base')}"
    return f"{text}."


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
