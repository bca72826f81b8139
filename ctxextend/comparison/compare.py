"""Rank methods on one model, one text and one seed."""

from dataclasses import replace

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.comparison_run import compare_model
from ctxextend.comparison.side_by_side import compare_side_by_side
from ctxextend.keywords import keyword_arguments
from ctxextend.opening.opened_model import open_model
from ctxextend.progress import Progress, no_progress
from ctxextend.settings import CheckpointRef, Compare


@keyword_arguments(CheckpointRef, Compare, without=("models", "table", "base", "no_base"))
def compare(ref: CheckpointRef, settings: Compare, progress: Progress = no_progress) -> Comparison:
    """Rank methods on one model, one text and one seed.

    The model is loaded once; only its tables change between methods, and equal those that `resize`
    writes, bit for bit. The base reads the same text once, in sliding windows or chunks. Language
    models are ranked by their loss on windows of the new length, encoders by document retrieval, or
    by nDCG@10 in a search set.

    Raises:
        ResizeError: Settings are invalid, or do not go together.
        CtxextendError: As `evaluate`; a named method does not apply.
    """
    return compare_model(open_model(ref), settings, progress)


def compare_models(
    ref: CheckpointRef, settings: Compare, progress: Progress = no_progress
) -> Comparison:
    """Compare methods on the model of `settings`, or its models side by side.

    Args:
        ref: How to read the models.
        settings: What to compare.
        progress: As in `compare`.

    Raises:
        CtxextendError: As `compare`.
    """
    refs = [replace(ref, source=model) for model in settings.models]
    if len(refs) > 1:
        return compare_side_by_side(refs, settings, progress)
    return compare_model(open_model(refs[0]), settings, progress)
