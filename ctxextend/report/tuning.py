"""How a table was tuned on a text, and how much better it is."""

import math
from dataclasses import replace

from ctxextend.comparison.tuning_result import Tuning
from ctxextend.errors import counted, time_text
from ctxextend.lab.evaluation_result import Estimate
from ctxextend.report.numbers import NumberFormat

LEARN_FROM_TEXT = "To learn from the text instead, pass --train TEXT --steps 200"


def describe_tuning(tuning: Tuning, method: str) -> str:
    """Return how long the rows of a method were trained, and by how much they are better."""
    training = tuning.training
    if training is None:
        needed = math.ceil(tuning.seconds_needed or 0)
        return f"{method}, not tuned: training the rows takes --budget {needed} or more"
    steps = f"{counted(training.steps, 'step')} of training"
    place = f"{counted(training.windows, 'held-out window')} of {training.length:,} tokens"
    tuned = f"tuned in {time_text(tuning.seconds)}: {method}"
    if training.is_kept:
        amount = _amount(training.improvement)
        text = f"the loss is lower by {amount} nats/token"
        if tuning.is_encoder:
            text = (
                f"the distance from the base is lower by {amount} of the squared length of its "
                "states"
            )
        elif training.short is not None and training.long is not None:
            short = f"{training.short.before:.3f} -> {training.short.after:.3f}"
            long = f"{training.long.before:.3f} -> {training.long.after:.3f}"
            first = f"{tuning.first_position:,}"
            text += f" (below position {first} {short}, from there on {long})"
        return f"{tuned}, then {steps}; {text} on {place}"
    verb = "raised" if training.improvement.mean < 0 else "lowered"
    change = replace(training.improvement, mean=abs(training.improvement.mean))
    result = (
        f"{tuned}; {steps} on the base's predictions {verb} the loss by {_amount(change)} on "
        f"{place}, and are not kept"
    )
    if not tuning.is_encoder:
        result += f". {LEARN_FROM_TEXT}"
    return result


def _amount(estimate: Estimate) -> str:
    if estimate.ci95 is None:
        return NumberFormat().estimate(estimate)
    return f"{estimate.mean:.2g} ± {estimate.ci95:.1g} (95 %)"
