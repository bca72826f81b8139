"""What `train` and `resize --train` have in common: a run under one bar, and what is said of it."""

import math
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ctxextend.cli.output import Output

if TYPE_CHECKING:
    from ctxextend.recipe import Recipe
    from ctxextend.training.reports import TrainingInterrupted, TrainResult

__all__ = ["losses_text", "run_training", "said_of_stop"]


def run_training(
    sink: Output, recipe: "Recipe", output: Path | None, *, force: bool, resume: bool, told: Sequence[str] = ()
) -> "TrainResult":
    """Train under a bar, and print what came of it, but for the warnings that were told before.

    Raises:
        Exit: It was stopped by Ctrl-C or another signal, and saved.
        CtxextendError: As `train_run`.
    """
    from ctxextend.training.reports import TrainingInterrupted
    from ctxextend.training.running import train_run

    try:
        with sink.progress("Training", of="tokens") as progress:
            result = train_run(recipe, output, force=force, resume=resume, progress=progress, tell=sink.note)
    except TrainingInterrupted as stop:
        said_of_stop(sink, stop)
        raise typer.Exit(128 + stop.signal) from None
    _show(sink, result, told)
    return result


def said_of_stop(sink: Output, stop: "TrainingInterrupted") -> None:
    """Say where a training stopped, and how it goes on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # hands that are slow to let go must not lose what is said
    typed = shlex.join(["ctxextend", *(word for word in sys.argv[1:] if word != "--resume")])
    message = f"Stopped after step {stop.step}, which is saved in {stop.folder}."
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1  # then a launcher stood in front of it
    sink.failure("Interrupted", message, "Go on with --resume." if several else f"Go on with: {typed} --resume")


def _show(sink: Output, result: "TrainResult", told: Sequence[str]) -> None:
    for warning in result.warnings:
        if warning not in told:
            sink.warning(warning)
    sink.note(*losses_text(result).splitlines())
    sink.data(str(result.output))
    output = shlex.quote(str(result.output))
    sink.note(f"Next, to measure: ctxextend evaluate {output} --data TEXT; to look: ctxextend inspect {output}")


def losses_text(result: "TrainResult") -> str:
    """Say what was gained, and what it cost."""
    before, after = result.loss_before, result.loss_after
    unit = " nats a token"
    if result.objective == "distilled":
        gain = f"error {before:.4f} -> {after:.4f}"
    else:
        gain = f"loss {before:.4f} -> {after:.4f}{unit}, perplexity {_exp(before):.4g} -> {_exp(after):.4g}"
    peak = f", {result.peak_bytes / 2**20:,.0f} MiB at the peak" if result.peak_bytes else ""
    rate = f"{result.tokens:,} tokens at {result.tokens_per_second:,.0f} tokens/s"
    return f"held-out {gain}; {rate}, {result.seconds:.1f} s with measurements{peak}"


def _exp(loss: float) -> float:
    return math.exp(min(loss, 700.0))
