"""Rank methods on one model, one text and one seed."""

import os
from collections.abc import Sequence
from typing import Any

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.comparison_run import compare_model
from ctxextend.comparison.comparison_settings import Compare, TextUse, search_time
from ctxextend.comparison.quick import check_quick, compare_quickly
from ctxextend.plan.opened_model import open_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import (
    TENSOR_KEYS,
    CheckpointRef,
    Evaluate,
    Train,
    accepts_settings,
    path_names,
    split_ref,
)

# Settings of training that apply to written output only.
UNCOMPARED = (
    "eval_every",
    "save_every",
    "save",
    "report_to",
    "dtype",
    "distill",
    "contrastive",
    "lora",
    "save_adapter",
    "fsdp",
)


@accepts_settings(
    CheckpointRef, Evaluate, Train, without=(*TENSOR_KEYS, *UNCOMPARED, "base", "no_base")
)
def compare(
    reference: str | os.PathLike[str],
    to: int | str | None = None,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    methods: str | Sequence[str] = (),
    steps: int = 0,
    quick: bool = False,
    tune: bool = False,
    progress: Progress = no_progress,
    **settings: Any,
) -> Comparison:
    """Rank methods on one model, one text and one seed.

    The model is loaded once; only its tables change between methods, and equal those that `resize`
    writes, bit for bit. The base reads the same text once, in sliding windows or chunks. Language
    models are ranked by their loss on windows of the new length, encoders by document retrieval, or
    by nDCG@10 in a search set. With `steps`, each method is evaluated before and after training,
    from the same weights, on the same text in the same order.

    Args:
        reference: As in `resize`.
        to: New context length in positions. With `quick`, by default twice the model's.
        data: As in `evaluate`; with `steps`, the training text; with `quick`, by default Python's
            documentation.
        methods: Methods, with settings if any: ``linear``, ``stretch:keep-first=5``; ``all`` (the
            default without `steps`): every one. With `steps`, the default is ``auto``, the default
            method. ``bands+tuned``: the table of the method is also trained on the text, as
            `resize` does with `data`, for ``budget`` seconds (by default 60); all methods are then
            measured on windows held out of it. Without `steps`, `quick` and ``corpus``.
        steps: Optimizer steps of training; 0: no training.
        quick: Compare five methods, or all of rotary positions, on what can be read in half a
            minute. Without `methods`, `steps`, ``length``, ``measure`` and ``corpus``.
        tune: Also search the settings that `yarn` and `switch` leave open, on every other window of
            the text, for ``budget`` seconds (by default 60) of reading; the other windows rank the
            methods, which takes as long as without a search.
        progress: Called with the number of tokens read since the last call, the total, and the name
            of the method.
        settings: Other fields of `Evaluate`, by name: ``length``, ``measure``, ``tokens``, …; with
            `steps`, also fields of `Train` without output, with ``eval_data`` for evaluation;
            ``revision``, … as in `resize`.

    Raises:
        ResizeError: Settings are invalid, or do not go together.
        CtxextendError: As `evaluate` and `train`; a named method does not apply, or `eval_data` is
            also trained on.
        ComparisonInterrupted: Ctrl-C was pressed; it has the results so far.
    """
    ref, others = split_ref(reference, settings)
    text = path_names(data)
    if isinstance(methods, str):
        methods = (methods,)
    if quick:
        given = others | {
            "methods": methods,
            "steps": steps,
            "tune": tune,
        }
        check_quick(given)
        return compare_quickly(open_model(ref), to, text, progress, **others)
    search_seconds = search_time(tune=tune, budget=others.get("budget"))
    others["eval_data"] = path_names(others.get("eval_data") or (), "eval_data")
    text_use = TextUse.from_values(text, steps, others, methods)
    requested = Compare.from_request(to, text_use, methods, search_seconds=search_seconds)
    return compare_model(open_model(ref), requested, progress)
