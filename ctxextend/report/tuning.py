"""What was found on a text: the settings of a method, and how much better they are."""

from ctxextend.comparison.comparison_result import Calibration
from ctxextend.errors import time_text
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
