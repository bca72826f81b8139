"""Rank methods on one model, one text and one seed."""

import os
from collections.abc import Sequence
from typing import Any

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.comparison_run import compare_model
from ctxextend.comparison.comparison_settings import Compare, EvaluateMethods
from ctxextend.plan.opened_model import open_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import (
    TENSOR_KEYS,
    CheckpointRef,
    Evaluate,
    accepts_settings,
    path_names,
    split_ref,
)


@accepts_settings(CheckpointRef, Evaluate, without=(*TENSOR_KEYS, "base", "no_base"))
def compare(
    reference: str | os.PathLike[str],
    to: int | str | None = None,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    methods: str | Sequence[str] = (),
    progress: Progress = no_progress,
    **settings: Any,
) -> Comparison:
    """Rank methods on one model, one text and one seed.

    The model is loaded once; only its tables change between methods, and equal those that `resize`
    writes, bit for bit. The base reads the same text once, in sliding windows or chunks. Language
    models are ranked by their loss on windows of the new length, encoders by document retrieval, or
    by nDCG@10 in a search set.

    Args:
        reference: As in `resize`.
        to: New context length in positions.
        data: As in `evaluate`, by default Python's documentation.
        methods: Methods, with settings if any: ``linear``, ``stretch:keep-first=5``; ``all`` (the
            default): every one.
        progress: Called with the number of tokens read since the last call, the total, and the name
            of the method.
        settings: Other fields of `Evaluate`, by name: ``length``, ``measure``, ``tokens``, …;
            ``revision``, … as in `resize`.

    Raises:
        ResizeError: Settings are invalid, or do not go together.
        CtxextendError: As `evaluate`; a named method does not apply.
    """
    ref, others = split_ref(reference, settings)
    if isinstance(methods, str):
        methods = (methods,)
    evaluate = EvaluateMethods(path_names(data), **others)
    requested = Compare.from_request(to, evaluate, methods)
    return compare_model(open_model(ref), requested, progress)
