"""Run the steps of a recipe, and print what they did; shared by several commands."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ctxextend.cli.console import Console
from ctxextend.errors import counted, size_text, time_text

if TYPE_CHECKING:
    from ctxextend.pipeline import RunResult
    from ctxextend.planned import Planned
    from ctxextend.recipe import Recipe
    from ctxextend.settings import Run
    from ctxextend.training.train_result import TrainResult

PERPLEXITY_OBJECTIVES = ("causal", "masked")


def execute(
    console: Console, recipe: "Recipe", planned: "Planned | None", run: "Run"
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

    result = run_recipe(recipe, planned, run, console)
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
    yield f"held-out loss {_losses_text(trained)}"
    first = trained.short_positions
    if trained.loss_short is not None and trained.loss_long is not None:
        short = _change_text(trained.loss_short)
        long = _change_text(trained.loss_long)
        yield f"positions below {first}: {short}, from {first} on: {long}"
    sequences = counted(trained.held_out_sequences, "sequence")
    tokens = counted(trained.held_out_tokens, "token")
    yield f"evaluated on {sequences}, {tokens}; {_saved_text(trained)}"
    yield f"trained on {trained.tokens:,} tokens in {_cost_text(trained)}"


def _losses_text(trained: "TrainResult") -> str:
    """Return the held-out losses before and after training; of language models with perplexity."""
    before = trained.loss_before
    after = trained.loss_after
    text = _change_text((before, after))
    if trained.objective in PERPLEXITY_OBJECTIVES:
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
    if trained.saved_step:
        text = f"saved step {trained.saved_step} of {trained.steps}"
    else:
        text = "saved the untrained weights"
    if trained.saved_step == trained.best_step:
        return f"{text} (best)"
    return f"{text}; step {trained.best_step} was best"


def _cost_text(trained: "TrainResult") -> str:
    """Return time, speed and, if it is known, peak memory."""
    text = f"{time_text(trained.seconds)}, {trained.tokens_per_second:,.0f} tokens/s"
    if trained.peak_bytes:
        text += f", peak memory {size_text(trained.peak_bytes)}"
    return text
