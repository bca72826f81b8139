"""Print the losses and the cost of a training run."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ctxextend.cli.console import Console
from ctxextend.errors import counted, size_text, time_text

if TYPE_CHECKING:
    from ctxextend.training.train_result import TrainResult

PERPLEXITY_OBJECTIVES = ("causal", "masked")


def show_training(console: Console, trained: "TrainResult") -> None:
    """Print the losses of a training run, and what it cost."""
    console.warning(*trained.warnings)
    console.note(*_training_lines(trained))


def _training_lines(trained: "TrainResult") -> Iterator[str]:
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
    if trained.saved_step:
        text = f"saved step {trained.saved_step} of {trained.steps}"
    else:
        text = "saved the untrained weights"
    if trained.saved_step == trained.best_step:
        return f"{text} (best)"
    return f"{text}; step {trained.best_step} was best"


def _cost_text(trained: "TrainResult") -> str:
    text = f"{time_text(trained.seconds)}, {trained.tokens_per_second:,.0f} tokens/s"
    if trained.peak_bytes:
        text += f", peak memory {size_text(trained.peak_bytes)}"
    return text
