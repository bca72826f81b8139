"""What was found on a text: the settings of a method, and how much better they are."""

import math

from ctxextend.comparison.comparison_result import Calibration, SettingsSearch
from ctxextend.errors import counted, time_text
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.report.numbers import NumberFormat


def describe_calibration(calibration: Calibration) -> str:
    """Return the chosen method, the text that was used, and the gain, as a sentence."""
    samples = "windows" if calibration.is_loss else "documents"
    used = f"{calibration.windows} {samples} of {calibration.length:,} tokens"
    seconds = time_text(calibration.seconds)
    return f"tuned on {used} in {seconds}: {calibration.method}; {_gain(calibration)}"


def _gain(calibration: Calibration) -> str:
    """Return how much better the chosen settings are, with their interval."""
    if calibration.after == calibration.before:
        return "no candidate was better by more than a standard error"
    unit = "nats/token" if calibration.is_loss else "MRR"
    better = calibration.improvement
    amount = NumberFormat().estimate(better)
    if better.ci95 is not None:
        amount = f"{better.mean:.2g} ± {better.ci95:.1g}"
    return f"better than untuned by {amount} (95 %) {unit}"


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
