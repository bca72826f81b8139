"""From a checkpoint and a text to the numbers of `bands`."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctxextend.comparison.extended import Extended
from ctxextend.comparison.measuring import Base, Values, base_tokens, metric_of, own_tokens, read_base, read_ranked
from ctxextend.comparison.reports import LOSS, Calibration, Trial
from ctxextend.comparison.trials import MOST_TRIALS, Choices, Trials, search
from ctxextend.errors import DataError, ResizeError
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, load_eval_model, open_files
from ctxextend.evaluation.evaluate import EvaluationRun, plan_evaluation
from ctxextend.evaluation.evaluation_result import estimate, estimate_loss
from ctxextend.plan.find_tables import OpenedModel, open_model
from ctxextend.plan.plan import ResizePlan, plan_model
from ctxextend.recipe import LEAST_LENGTH, CheckpointRef, Evaluate, Resize
from ctxextend.text_data import TEXT_FIELD, check_paths, path_names

__all__ = ["CALIBRATED", "calibrate", "calibrate_model", "check_calibrated"]

# Told how many tokens were read since the last call, and how many there will be at most.
Progress = Callable[[int, int], None]

# The method whose numbers a text can choose.
CALIBRATED = "bands"

# Windows, or documents, without which a standard error is itself a guess; and those that are read at most. A rank says
# less than the losses of a window, and among few documents nothing.
LEAST, WINDOWS, DOCUMENTS = 8, 16, 64


def calibrate(
    reference: str | os.PathLike[str],
    to: int,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    tokens: int = 65_536,
    precision: str = "auto",
    seed: int = 0,
    text_field: str = TEXT_FIELD,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    family: str | None = None,
    progress: Progress | None = None,
    **flags: Any,
) -> Calibration:
    """Choose the numbers of `bands` by what they are worth on a text.

    The model is loaded once, and nothing but its tables changes from one trial to the next; nothing is written. What
    the table alone says is where the search begins; first other sigmas are tried, then other stretches that repeat,
    then other gains, some twenty in all. What is better by no more than one standard error, paired by window, replaces
    nothing. Paired differences are sure after few windows, long before the losses themselves are, so that no more text
    is read than 16 windows, or 64 documents. Language models are judged by their loss on windows as long as the new
    length, encoders by the documents that they find. The text needs no labels, and should be such as the model is to
    read:

        found = ctxextend.calibrate("gpt2", 4096, "book.txt")
        ctxextend.resize("gpt2", 4096, "bands", **found.flags)

    Args:
        reference: As in `plan_resize`.
        to: Usable token positions wanted, more than the model has.
        data: As in `evaluate`; at least 8 windows, or for an encoder documents, as long as the new length.
        tokens: Tokens of the text to use, at most, unless 8 windows have more.
        precision: As in `evaluate`.
        seed: What a masked model's tokens are drawn with.
        text_field: As in `evaluate`.
        revision: As in `plan_resize`.
        subfolder: As in `plan_resize`.
        variant: As in `plan_resize`.
        family: As in `plan_resize`.
        progress: Told how many tokens were read since the last call, and how many there will be at most.
        flags: Others of `plan_resize`, by their names; ``sigma``, ``repeat`` and ``gain`` stay as they are given.

    Raises:
        CtxextendError: As `compare`.
        DataError: The text holds fewer than 8 windows, or documents as long as the new length.
        ResizeError: The length is none that gives new rows, or all three numbers are given.
    """
    text = Evaluate(path_names(data), tokens=tokens, precision=precision, seed=seed, text_field=text_field)
    settings = Resize(to, **({"method": CALIBRATED} | flags))
    ref = CheckpointRef(os.fspath(reference), revision, subfolder, variant, family)
    return calibrate_model(open_model(ref, typed=settings.typed), settings, text, progress)


def check_calibrated(settings: Resize) -> None:
    """Refuse settings of which a text can choose nothing.

    Raises:
        ResizeError: Another method, or every number is given.
    """
    if settings.method != CALIBRATED:
        raise ResizeError(
            f"--calibrate chooses the numbers of --method {CALIBRATED}, and has no meaning for "
            f"{settings.options.method}.",
            f"Add --method {CALIBRATED}, or leave it out.",
        )
    if settings.gain is not None and (settings.sigma == 0 or None not in (settings.sigma, settings.repeat)):
        raise ResizeError("--calibrate finds every number given already.", "Leave one of them out, or --calibrate.")


def calibrate_model(
    opened: OpenedModel, settings: Resize, text: Evaluate, progress: Progress | None = None
) -> Calibration:
    """Choose the numbers that a resize leaves open; see `calibrate`.

    Args:
        opened: The model.
        settings: What is asked for.
        text: On what text, how much of it, and how it is read; what it says of lengths and measures is not read.
        progress: As in `calibrate`.

    Raises:
        CtxextendError: As `calibrate`.
    """
    began = time.perf_counter()
    check_calibrated(settings)
    check_paths(text.data)
    plan, original = _open(opened, settings, text.precision)
    extended = Extended.of(original, plan)
    run = _open_run(extended.reader, original, text)
    measure = _measure(plan, extended, run, progress or (lambda tokens, total: None))
    trials = Trials(measure, 1 if metric_of(run) == LOSS else -1)
    before, after = search(_choices(plan, extended), trials)
    mean = estimate_loss if metric_of(run) == LOSS else estimate
    tried = {choice: Trial(choice, mean(values)) for choice, values in trials.found.items()}
    return Calibration(
        metric=metric_of(run),
        before=tried[before],
        after=tried[after],
        better_by=trials.better_by(after, before),
        tried=tuple(tried.values()),
        windows=len(trials.found[before]),
        length=extended.reader.max_len,
        seconds=round(time.perf_counter() - began, 3),
        notes=(*original.notes, *run.warnings, *run.notes),
    )


def _open(opened: OpenedModel, settings: Resize, precision: str) -> tuple[ResizePlan, EvalModel]:
    """Plan the resize, and load the model as it is.

    Raises:
        ResizeError: The length gives no new rows.
    """
    files = open_files(opened)
    plan = plan_model(opened, settings)
    if plan.tables[0].rows_after <= plan.tables[0].rows_before:
        raise ResizeError(
            f"{opened.ref.source} reads {files.max_len} tokens already, so that --to {settings.to} asks for no new "
            "rows to calibrate.",
            "Leave --calibrate out, or give a greater --to.",
        )
    return plan, load_eval_model(files, precision)


def _open_run(model: EvalModel, original: EvalModel, text: Evaluate) -> EvaluationRun:
    """Cut the text; of language models nothing but the model's own loss is measured.

    Raises:
        DataError: There is too little text.
    """
    is_encoder, length = original.kind == ENCODER, max(model.max_len, LEAST_LENGTH)
    count = min(max(text.tokens // length, LEAST), DOCUMENTS if is_encoder else WINDOWS)
    measure = ("retrieval",) if is_encoder else ("position",)
    settings = replace(text, original=None, length=(length,), tokens=count * length, measure=measure)
    least = 1 if is_encoder else LEAST
    run = plan_evaluation(model, original if is_encoder else None, settings, least=least)
    if run.retrieval is not None and len(run.retrieval.documents) < LEAST:
        raise DataError(
            f"The text has {len(run.retrieval.documents)} documents of {length:,} tokens or more, and {LEAST} are "
            "needed: which of so few is found says nothing sure.",
            "Name more, or longer, text.",
        )
    return run


def _measure(
    plan: ResizePlan, extended: Extended, run: EvaluationRun, progress: Progress
) -> Callable[[Resize], tuple[Values, ...]]:
    """Return what gives the values of settings: it makes their tables, and lets the model read with these."""
    is_encoder = run.retrieval is not None
    total = MOST_TRIALS * own_tokens(run) + (base_tokens(run) if is_encoder else 0)

    def tell(tokens: int) -> None:
        progress(tokens, total)

    base = read_base(run, tell) if is_encoder else Base()

    def measure(settings: Resize) -> tuple[Values, ...]:
        extended.put(extended.made_by(replace(plan, settings=settings)))
        return read_ranked(run, base, tell)

    return measure


def _choices(plan: ResizePlan, extended: Extended) -> Choices:
    """Return what there is to choose for the first of the tables, in whose rows the numbers are counted."""
    table, settings = plan.tables[0], plan.settings
    rows = extended.before[table.name][table.offset :]
    source = rows[: len(rows) - settings.drop_last].astype(np.float64)
    return Choices(source, table.rows_after - table.offset, settings)
