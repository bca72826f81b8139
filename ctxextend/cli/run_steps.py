"""Run the steps of a recipe, and print what they did; shared by several commands."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ctxextend.cli.console import Console
from ctxextend.errors import counted, size_text, time_text

if TYPE_CHECKING:
    from ctxextend.pipeline import RunResult
    from ctxextend.planned import Planned
    from ctxextend.recipe import Recipe
    from ctxextend.training.train_result import TrainResult

PERPLEXITY_OBJECTIVES = ("causal", "masked")


def execute(
    console: Console,
    recipe: "Recipe",
    planned: "Planned | None",
    output: Path | None,
    *,
    force: bool,
    resume: bool,
) -> "RunResult":
    """Run a recipe and print its result.

    Raises:
        TrainingInterrupted: Training was interrupted.
        CtxextendError: As `run_recipe`.
    """
    from ctxextend.cli.show_result import show_output
    from ctxextend.pipeline import run_recipe
    from ctxextend.planned import ResizeResult
    from ctxextend.training.train_result import TrainResult

    result = run_recipe(recipe, planned, output, force=force, resume=resume, events=console)
    if isinstance(result.resize, ResizeResult):
        show_output(console, result.resize)
    elif isinstance(result.train, TrainResult):
        show_training(console, result.train)
        console.data(str(result.train.output))
        is_adapter = recipe.train is not None and recipe.train.save_adapter
        if result.evaluate is None and not is_adapter:
            folder = shlex.quote(str(result.train.output))
            console.next_steps(f"ctxextend evaluate {folder} --data TEXT")
    return result


def show_training(console: Console, trained: "TrainResult") -> None:
    """Print the losses of a training run, and what it cost."""
    console.warning(*trained.warnings)
    console.note(*_training_lines(trained))


def _training_lines(trained: "TrainResult") -> Iterator[str]:
    """Yield lines about a finished training run."""
    losses = trained.held_out
    yield f"held-out loss {_losses_text(trained)}"
    by_position = trained.by_position
    first = by_position.short_positions
    if by_position.short is not None and by_position.long is not None:
        short = _change_text(by_position.short)
        long = _change_text(by_position.long)
        yield f"positions below {first}: {short}, from {first} on: {long}"
    sequences = counted(losses.sequences, "sequence")
    yield f"evaluated on {sequences}, {counted(losses.tokens, 'token')}; {_saved_text(trained)}"
    yield f"trained on {trained.run.tokens:,} tokens in {_cost_text(trained)}"


def _losses_text(trained: "TrainResult") -> str:
    """Return the held-out losses before and after training; of language models with perplexity."""
    before = trained.held_out.before
    after = trained.held_out.after
    text = _change_text((before, after))
    if trained.trained.objective in PERPLEXITY_OBJECTIVES:
        text += f", perplexity {_perplexity(before)} -> {_perplexity(after)}"
    return text


def _change_text(losses: tuple[float, float]) -> str:
    before, after = losses
    return f"{before:.4f} -> {after:.4f}"


def _perplexity(loss: float) -> str:
    from ctxextend.report.numbers import finite_perplexity

    return f"{finite_perplexity(loss):.4g}"


def _saved_text(trained: "TrainResult") -> str:
    """Return which weights were saved, and whether another step was better."""
    losses = trained.held_out
    if losses.saved_step:
        text = f"saved step {losses.saved_step} of {trained.steps}"
    else:
        text = "saved the untrained weights"
    if losses.saved_step == losses.best_step:
        return f"{text} (best)"
    return f"{text}; step {losses.best_step} was best"


def _cost_text(trained: "TrainResult") -> str:
    """Return time, speed and, if it is known, peak memory."""
    cost = trained.cost
    text = f"{time_text(cost.seconds)}, {trained.tokens_per_second:,.0f} tokens/s"
    if cost.peak_bytes:
        text += f", peak memory {size_text(cost.peak_bytes)}"
    return text
