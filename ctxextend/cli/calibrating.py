"""`resize --calibrate`: the numbers of a method by a text, under a bar, and what is said of them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ctxextend.cli.output import Output
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.comparison.reports import Calibration, Trial
    from ctxextend.plan.plan import ResizePlan
    from ctxextend.recipe import Resize

__all__ = ["calibrate_plan", "calibration_text", "check_calibration"]


def check_calibration(settings: "Resize") -> None:
    """Refuse settings of which a text can choose nothing.

    Raises:
        ResizeError: Another method, or every number is given.
    """
    from ctxextend.comparison.calibration import check_calibrated

    check_calibrated(settings)


def calibrate_plan(sink: Output, plan: "ResizePlan", data: Sequence[str]) -> tuple["ResizePlan", dict[str, Any]]:
    """Choose by a text what a plan leaves open, under a bar, and say what was chosen.

    Returns:
        The plan as if the numbers had been typed, and what was found as plain values.

    Raises:
        CtxextendError: As `ctxextend.calibrate`.
    """
    from ctxextend.comparison.calibration import calibrate_model
    from ctxextend.plan.plan import plan_model
    from ctxextend.recipe import Evaluate

    with sink.progress("Calibrating", of="tokens") as progress:
        found = calibrate_model(plan.model, plan.settings, Evaluate(tuple(data)), progress)
    for note in found.notes:
        if note not in plan.notes:
            sink.note(note)
    sink.note(*calibration_text(found).splitlines())
    return plan_model(plan.model, found.settings), to_json(found)


def calibration_text(found: "Calibration") -> str:
    """Say what was chosen, by how much text, and what it gained."""
    what = "windows" if found.is_loss else "documents"
    began = f"calibrated on {found.windows} {what} of {found.length:,} tokens in {found.seconds:.1f} s"
    scores = [_score(found, trial) for trial in (found.before, found.after)]
    if found.after == found.before:
        chosen = ", ".join(f"{name} {_shown(value)}" for name, value in found.flags.items() if value is not None)
        none = f"none of {len(found.tried) - 1} other choices was better by more than a standard error"
        return f"{began}: {none}; {chosen}, as the table says, with {scores[1]}"
    by, error = found.better_by.mean, found.better_by.error or 0.0
    unit = " nats a token" if found.is_loss else ""
    return (
        f"{began}: {', '.join(_changes(found))}; {scores[0]} -> {scores[1].rpartition(' ')[2]}, "
        f"better by {by:.2g} ± {error:.1g}{unit} (one standard error), on this text"
    )


def _changes(found: "Calibration") -> Iterator[str]:
    for name, before in found.before.flags.items():
        after = found.flags[name]
        yield f"{name} {_shown(after)}" if after == before else f"{name} {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return "{}:{}".format(*value) if isinstance(value, tuple) else f"{value:.3g}"


def _score(found: "Calibration", trial: "Trial") -> str:
    score = trial.score
    return f"perplexity {score.perplexity:.4g}" if found.is_loss else f"reciprocal rank {score.mean:.3f}"
