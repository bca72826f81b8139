"""Tune the settings of `bands` on a text."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctxextend.comparison.bands_search import MAX_SETTINGS_TRIED, BandsSearch, SampleScores
from ctxextend.comparison.candidates import method_of_auto
from ctxextend.comparison.comparison_result import Calibration, Trial
from ctxextend.comparison.in_memory import InMemoryResizer, open_resizer
from ctxextend.comparison.metrics import METRIC_OF_KIND, METRICS
from ctxextend.errors import DataError, ResizeError
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, load_eval_model, open_files
from ctxextend.evaluation.evaluation_result import MIN_SAMPLES, little_text
from ctxextend.evaluation.evaluation_run import EvaluationRun, plan_evaluation
from ctxextend.evaluation.retrieval import RetrievalTask
from ctxextend.models.devices import torch_threads
from ctxextend.plan.opened_model import OpenedModel, open_model
from ctxextend.plan.plan import Plan, plan_model, with_settings
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import (
    MIN_WINDOW,
    TENSOR_KEYS,
    CheckpointRef,
    Evaluate,
    Resize,
    accepts_settings,
    path_names,
    split_ref,
)
from ctxextend.tables.bands import has_free_settings
from ctxextend.tables.method_facts import DEFAULT_METHOD
from ctxextend.text_data import TEXT_FIELD, check_paths

# Samples to use at most. Ranks are noisier than losses, so encoders use more.
MAX_WINDOWS = 16
MAX_DOCUMENTS = 64


@accepts_settings(CheckpointRef, Resize, without=TENSOR_KEYS)
def calibrate(
    reference: str | os.PathLike[str],
    to: int | str,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    method: str = "bands",
    tokens: int = 65_536,
    precision: str = "auto",
    seed: int = 0,
    text_field: str = TEXT_FIELD,
    progress: Progress = no_progress,
    **settings: Any,
) -> Calibration:
    """Tune the settings of `bands` on a text.

    The search starts with the values estimated from the table, then tries other sigmas, ranges to
    tile and gains, about twenty in all. A value must be better by more than one standard error,
    paired by window. Language models are ranked by the loss on at most 16 windows of the new
    length, encoders by retrieval of at most 64 documents:

        calibration = ctxextend.calibrate("gpt2", 4096, "book.txt")
        ctxextend.resize("gpt2", 4096, calibration.method)

    Args:
        reference: As in `resize`.
        to: New context length in positions, longer than the model's.
        data: As in `evaluate`; at least 8 windows (for an encoder: documents) of the new length.
        method: ``bands``, with the settings that must not change: ``bands:gain=1.2``.
        tokens: Maximum number of tokens to use (at least 8 windows).
        precision, seed, text_field: As in `evaluate`.
        progress: Called with the number of tokens read since the last call, and the maximum total.
        settings: Other settings of `resize`, by name.

    Raises:
        CtxextendError: As `compare`.
        DataError: The text has fewer than 8 windows or documents of the new length.
        ResizeError: The new length creates no new rows, or all settings are given.
    """
    text = Evaluate(
        path_names(data), tokens=tokens, precision=precision, seed=seed, text_field=text_field
    )
    ref, others = split_ref(reference, settings)
    return calibrate_model(open_model(ref), Resize(to, method=method, **others), text, progress)


def calibrate_model(
    opened: OpenedModel,
    settings: Resize,
    text: Evaluate,
    progress: Progress = no_progress,
    warn: Callable[..., None] = lambda *warnings: None,
) -> Calibration:
    """Tune the settings of a resize; `warn` gets the warnings before the search.

    Raises:
        CtxextendError: As `calibrate`.
    """
    started = time.perf_counter()
    settings = _choose_bands(settings)
    check_paths(text.data)
    files = open_files(opened)
    plan = plan_model(opened, settings)
    _check_creates_rows(plan, files.max_len)

    base = load_eval_model(files, text.precision, text.device)
    resizer = open_resizer(base, plan)
    advice = little_text(method_of_auto(opened, settings.to))
    run = _plan_evaluation(resizer.model, base, text, advice)
    warn(*run.warnings)

    def advance(tokens: int) -> None:
        progress(tokens, run.base_tokens + MAX_SETTINGS_TRIED * run.tokens)

    def measure(candidate: Resize) -> SampleScores:
        resizer.set_positions(with_settings(plan, candidate))
        run.measure(advance)
        return run.scores

    metric = METRIC_OF_KIND[base.kind]
    search = _open_search(plan, resizer, measure, metric)
    run.run_base(advance)
    with torch_threads(base.model, text.threads):
        best = search.run()
    return _report(search, best, run, metric, started)


def _choose_bands(settings: Resize) -> Resize:
    """Return the settings with `bands` instead of `auto`; raise if there is nothing to tune."""
    name = settings.choice.name
    if name == DEFAULT_METHOD:
        settings = replace(settings, method="bands")
    elif name != "bands":
        raise ResizeError(f"Only bands can be tuned on a text, got --method {name}.")
    if not has_free_settings(settings.choice.settings):
        message = "All settings of bands are given, so there is nothing to tune."
        raise ResizeError(message, "Remove at least one.")
    return settings


def _check_creates_rows(plan: Plan, max_len: int) -> None:
    table = plan.tables[0]
    if table.rows_after <= table.rows_before:
        message = (
            f"{plan.model.ref.source} has a context length of {max_len} tokens, so --to "
            f"{plan.settings.to} creates no new rows to tune."
        )
        raise ResizeError(message, "Use a larger --to, or remove --data.")


def _plan_evaluation(
    model: EvalModel, base: EvalModel, text: Evaluate, advice: str
) -> EvaluationRun:
    """Cut the text; for language models, only the model's own loss is measured.

    Raises:
        DataError: The text is too short; `advice` ends the hint.
    """
    length = max(model.max_len, MIN_WINDOW)
    count = max(text.tokens // length, MIN_SAMPLES)
    settings = replace(text, base=None, length=(length,))
    hint = f"Pass more or longer texts with --data. {advice}"
    if base.kind == ENCODER:
        tokens = min(count, MAX_DOCUMENTS) * length
        settings = replace(settings, tokens=tokens, measure=("retrieval",))
        run = plan_evaluation(model, base, settings, short_hint=hint)
    else:
        tokens = min(count, MAX_WINDOWS) * length
        settings = replace(settings, tokens=tokens, measure=("position",))
        run = plan_evaluation(model, None, settings, minimum=MIN_SAMPLES, short_hint=hint)
    task = run.tasks[0]
    if isinstance(task, RetrievalTask) and len(task.documents) < MIN_SAMPLES:
        message = (
            f"The text has {len(task.documents)} documents of at least {length:,} tokens; tuning "
            f"needs {MIN_SAMPLES}."
        )
        raise DataError(message, hint)
    return run


def _open_search(
    plan: Plan,
    resizer: InMemoryResizer,
    measure: Callable[[Resize], SampleScores],
    metric: str,
) -> BandsSearch:
    """Return the search for settings, which refer to the rows of the first table."""
    table = plan.tables[0]
    learned = resizer.learned[table.name][table.reserved_rows :]
    used = learned[: len(learned) - plan.settings.choice.drop_last]
    return BandsSearch(
        table=used.astype(np.float64),
        rows=table.rows_after - table.reserved_rows,
        requested=plan.settings,
        measure=measure,
        metric=METRICS[metric],
        is_only=len(plan.tables) == 1,
    )


def _report(
    search: BandsSearch, best: Resize, run: EvaluationRun, metric: str, started: float
) -> Calibration:
    trials = dict[Resize, Trial]()
    for candidate, scores in search.scores.items():
        trials[candidate] = Trial(candidate.choice.settings, METRICS[metric].mean(scores))
    first = next(iter(trials))
    return Calibration(
        metric=metric,
        before=trials[first],
        after=trials[best],
        improvement=search.improvement(best, first),
        trials=tuple(trials.values()),
        windows=len(search.scores[first]),
        length=run.model.max_len,
        seconds=round(time.perf_counter() - started, 3),
        notes=(*run.model.notes, *run.notes),
        warnings=run.warnings,
    )
