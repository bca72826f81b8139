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
    console.note(*_lines(trained))


def _lines(trained: "TrainResult") -> Iterator[str]:
    before = trained.loss_before
    after = trained.loss_after
    losses = f"{before:.4f} -> {after:.4f}"
    if trained.objective in PERPLEXITY_OBJECTIVES:
        losses += f", perplexity {_perplexity(before)} -> {_perplexity(after)}"
    yield f"held-out loss {losses}"
    sequences = counted(trained.held_out_sequences, "sequence")
    tokens = counted(trained.held_out_tokens, "token")
    saved = "saved the untrained weights"
    if trained.saved_step:
        saved = f"saved step {trained.saved_step} of {trained.steps}"
    best = f"; step {trained.best_step} was best"
    if trained.saved_step == trained.best_step:
        best = " (best)"
    yield f"evaluated on {sequences}, {tokens}; {saved}{best}"
    cost = time_text(trained.seconds)
    if trained.peak_bytes:
        cost += f", peak memory {size_text(trained.peak_bytes)}"
    yield f"trained on {trained.tokens:,} tokens in {cost}"


def _perplexity(loss: float) -> str:
    from ctxextend.lab.scores import exponential

    return f"{exponential(loss):.4g}"
