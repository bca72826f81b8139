"""What was found on a text: rows or settings of a method, and how much better they are."""

import math
from dataclasses import replace

from ctxextend.comparison.comparison_result import SettingsSearch
from ctxextend.comparison.tuning_result import Tuning
from ctxextend.errors import counted, time_text
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.report.numbers import NumberFormat

LEARN_FROM_TEXT = "To learn from the text instead, pass --train TEXT --steps 200"


def describe_tuning(tuning: Tuning) -> str:
    """Return what was tried, what won, by how much, and how long it took, as a sentence."""
    training = tuning.training
    result = _choice(tuning)
    if tuning.seconds_needed is not None and len(tuning.trials) == 1:
        needed = math.ceil(tuning.seconds_needed)
        return f"{result}, not tuned: training the rows takes --budget {needed} or more"
    if training is not None and training.is_kept:
        result += f", then {counted(training.steps, 'step')} of training"
    result = f"tuned in {time_text(tuning.seconds)}: {result}; {_improvement(tuning)}"
    if tuning.seconds_needed is not None:
        needed = math.ceil(tuning.seconds_needed)
        return f"{result}; training the rows takes --budget {needed} or more"
    if training is not None and not training.is_kept:
        verb = "raised" if training.improvement.mean < 0 else "lowered"
        change = replace(training.improvement, mean=abs(training.improvement.mean))
        steps = f"{counted(training.steps, 'step')} of training on the base's predictions"
        result += f"; {steps} {verb} it by {_amount(change)}, and are not kept"
        if not tuning.is_encoder:
            result += f". {LEARN_FROM_TEXT}"
    return result


def _choice(tuning: Tuning) -> str:
    """Return which candidates were tried, and which one won."""
    name = tuning.chosen.name  # its settings are in the recipe
    if tuning.lead is not None:
        name = tuning.method
    if len(tuning.trials) == 1:
        return name
    return f"{name}, the best of {counted(len(tuning.trials), 'candidate')}"


def _improvement(tuning: Tuning) -> str:
    """Return how much better the result is, with its interval, and at which positions."""
    place = f"{counted(tuning.windows, 'held-out window')} of {tuning.length:,} tokens"
    if tuning.improvement is None:
        return f"the loss is not lower by more than its interval on {place}"
    unit = "nats/token"
    measure = "the loss"
    if tuning.is_encoder:
        unit = "of the squared length of its states"
        measure = "the distance from the base"
    text = f"{measure} is lower by {_amount(tuning.improvement)} {unit} on {place}"
    if tuning.short is None or tuning.long is None:
        return text
    short = f"{tuning.short.before:.3f} -> {tuning.short.after:.3f}"
    long = f"{tuning.long.before:.3f} -> {tuning.long.after:.3f}"
    return f"{text}: below position {tuning.first_position:,} {short}, from there on {long}"


def describe_search(search: SettingsSearch) -> str:
    """Return what was tried, what won, by how much, and how long it took, as a sentence."""
    before = search.before.method
    if search.seconds_needed is not None:
        needed = math.ceil(search.seconds_needed)
        budget = f"the budget is {search.budget:,.0f} s"
        if search.available < search.budget:
            budget = f"it had {search.available:,.0f} s of the budget of {search.budget:,.0f} s"
        return (
            f"{before} keeps its settings: a search takes {needed:,} s or more, and {budget} "
            f"(--method {before} --budget {needed})"
        )
    if len(search.trials) == 1:
        return f"{before} keeps its settings: no others that a search tries change its positions"
    tried = counted(len(search.trials) - 1, "candidate")
    searched = f"searched {tried} in {time_text(search.seconds)}"
    if search.best is None or search.lead is None:
        return f"{searched}: {before} keeps its settings, since none was ahead"
    amount = f"{_amount(search.lead)} nats/token"
    result = f"{search.best.method} has a lower loss than {before} by {amount}"
    if not search.is_better:
        result = f"{before} keeps its settings, since the lead of {search.best.method} is {amount}"
    windows = f"on {search.lead.samples} windows of {search.length:,} tokens"
    if search.windows:
        windows += " that did not choose it"
    place = f"from position {search.first_position:,} on"
    return f"{searched}: {result} {place}, {windows}"


def _amount(estimate: Estimate) -> str:
    """Return a difference with its interval."""
    if estimate.ci95 is None:
        return NumberFormat().estimate(estimate)
    return f"{estimate.mean:.2g} ± {estimate.ci95:.1g} (95 %)"
