"""Phrases on a comparison that screens, verdicts, pages and figures share."""

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.metrics import METRICS
from ctxextend.errors import counted, time_text
from ctxextend.recipe import TRAINABLE


def metric_column(comparison: Comparison) -> str:
    """Return the name of the metric in tables."""
    return METRICS[comparison.metric].column


def metric_phrase(comparison: Comparison) -> str:
    """Return the name of the metric in sentences."""
    return METRICS[comparison.metric].phrase


def short_inputs_cost(comparison: Comparison) -> str:
    """Return what the cost on short inputs is, if no rows are held out."""
    if comparison.is_loss:
        return f"loss minus the base's, both at {comparison.max_len_before:,} tokens"
    other = "the base's" if comparison.source else "those of the first checkpoint"
    return f"1 - cosine of embeddings of {comparison.max_len_before:,} tokens to {other}"


def trained_part(comparison: Comparison) -> str:
    """Return which parameters were trained."""
    return TRAINABLE.get(comparison.trainable, comparison.trainable)


def tuned_steps(comparison: Comparison) -> str:
    """Return how many steps of training each tuned method took, and in which time."""
    parts = list[str]()
    for row in comparison.tuned_rows:
        assert row.tuned is not None
        steps = counted(row.tuned.steps, "step")
        parts.append(f"{row.method} by {steps} in {time_text(row.tuned.seconds)}")
    return ", ".join(parts)


def after_training(comparison: Comparison) -> str:
    """Return when methods were evaluated; empty without training."""
    if not comparison.steps:
        return ""
    return f"after {counted(comparison.steps, 'step')} of training {trained_part(comparison)}"
