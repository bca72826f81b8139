"""Tune the settings of `bands` on a text."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.comparison.compare import method_of_auto
from ctxextend.comparison.comparison_result import LOSS, METRICS, Calibration, Trial
from ctxextend.comparison.in_memory import open_resized
from ctxextend.errors import DataError, ResizeError
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, load_eval_model, open_files
from ctxextend.evaluation.evaluate import EvaluationRun, plan_evaluation
from ctxextend.evaluation.evaluation_result import (
    MIN_SAMPLES,
    SHARE,
    UNBOUNDED,
    Estimate,
    difference_bounds,
    estimate,
    estimate_loss,
    little_text,
)
from ctxextend.evaluation.retrieval import RetrievalTask
from ctxextend.models.devices import torch_threads
from ctxextend.plan.find_tables import OpenedModel, open_model
from ctxextend.plan.plan import plan_model, with_settings
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import (
    MIN_LENGTH,
    CheckpointRef,
    Evaluate,
    Resize,
    accepts_settings,
    split_ref,
)
from ctxextend.recipe_file import TENSOR_KEYS
from ctxextend.tables.bands import choose_bands, find_repeats, has_free_settings
from ctxextend.tables.method_facts import DEFAULT_METHOD
from ctxextend.text_data import TEXT_FIELD, check_paths, path_names

Values = NDArray[np.float64]

# Samples to use at most. Ranks are noisier than losses, so encoders use more.
WINDOWS, DOCUMENTS = 16, 64

# Values tried next to those estimated from the table; a sigma, in rows, is at most this share of
# the table.
SIGMAS = (3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
MAX_SHARE = 1 / 4
REPEATS = 4  # ranges to tile
GAINS, HIGH_GAINS = (1.0, 1.15, 1.3, 1.5, 1.8, 2.2, 2.7), (1.0, 1.2, 1.4)
MIN_CHANGE = 0.1  # a sigma that differs by less than this share creates almost the same rows
# The estimate, a sigma of 0, and all of the above; among the ranges also the longest.
MAX_TRIALS = 1 + 1 + len(SIGMAS) + REPEATS + 1 + len(GAINS) + len(HIGH_GAINS)


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
    """Tune the settings of a resize; see `calibrate`. `warn` gets the warnings before the
    search.
    """
    started = time.perf_counter()
    settings = (
        replace(settings, method="bands") if settings.choice.name == DEFAULT_METHOD else settings
    )
    if (name := settings.choice.name) != "bands":
        raise ResizeError(f"Only bands can be tuned on a text, got --method {name}.")
    if not has_free_settings(settings.choice.settings):
        raise ResizeError(
            "All settings of bands are given, so there is nothing to tune.", "Remove at least one."
        )
    check_paths(text.data)
    files, plan = open_files(opened), plan_model(opened, settings)
    settings = plan.settings
    table = plan.tables[0]
    if table.rows_after <= table.rows_before:
        message = f"{opened.ref.source} has a context length of {files.max_len} tokens"
        message += f", so --to {settings.to} creates no new rows to tune."
        raise ResizeError(message, "Use a larger --to, or remove --data.")
    base = load_eval_model(files, text.precision, text.device)
    resized = open_resized(base, plan)
    run = _open_run(resized.model, base, text, method_of_auto(opened, settings.to))
    warn(*run.warnings)
    metric = METRICS[base.kind]
    sign = 1 if metric == LOSS else -1

    def mean(scores: Sequence[Values]) -> Estimate:
        return estimate_loss(scores) if metric == LOSS else estimate(scores, SHARE)

    def advance(tokens: int) -> None:
        progress(tokens, run.base_tokens + MAX_TRIALS * run.tokens)

    def measure(candidate: Resize) -> tuple[Values, ...]:
        resized.set_positions(with_settings(plan, candidate))
        run.measure(advance)
        return run.scores

    run.run_base(advance)
    rows = resized.learned[table.name][
        table.reserved_rows :
    ]  # settings refer to the rows of the first table
    source = rows[: len(rows) - settings.drop_last].astype(np.float64)
    is_only = len(plan.tables) == 1
    positions = table.rows_after - table.reserved_rows
    search = Search(source, positions, settings, measure, sign, is_only)
    with torch_threads(base.model, text.threads):
        best = search.run()
    trials = {
        candidate: Trial(candidate.choice.settings, mean(scores))
        for candidate, scores in search.scores.items()
    }
    first = next(iter(trials))
    found = trials[first], trials[best], search.improvement(best, first), tuple(trials.values())
    facts = (
        len(search.scores[first]),
        resized.model.max_len,
        round(time.perf_counter() - started, 3),
    )
    return Calibration(metric, *found, *facts, (*base.notes, *run.notes), run.warnings)


def _open_run(model: EvalModel, base: EvalModel, text: Evaluate, auto: str) -> EvaluationRun:
    """Cut the text; for language models, only the model's own loss is measured. `auto`: see
    `read_texts`.
    """
    is_encoder = base.kind == ENCODER
    length = max(model.max_len, MIN_LENGTH)
    count = min(max(text.tokens // length, MIN_SAMPLES), DOCUMENTS if is_encoder else WINDOWS)
    measure = ("retrieval",) if is_encoder else ("position",)
    settings = replace(text, base=None, length=(length,), tokens=count * length, measure=measure)
    hint = f"Pass more or longer texts with --data. {little_text(auto)}"
    run = plan_evaluation(
        model,
        base if is_encoder else None,
        settings,
        minimum=1 if is_encoder else MIN_SAMPLES,
        short_hint=hint,
    )
    if (
        isinstance(task := run.tasks[0], RetrievalTask)
        and (found := len(task.documents)) < MIN_SAMPLES
    ):
        message = (
            f"The text has {found} documents of at least {length:,} tokens; tuning needs "
            f"{MIN_SAMPLES}."
        )
        raise DataError(message, hint)
    return run


@dataclass
class Search:
    """The search for settings of `bands` for one table; requested settings do not change."""

    table: Values  # learned rows from which new rows are created, shape (n, d)
    rows: int  # number of rows requested
    requested: Resize
    measure: Callable[
        [Resize], tuple[Values, ...]
    ]  # returns the scores of each window or document, each of shape (k,)
    sign: int  # 1 if lower scores are better, else -1
    is_only: bool = False  # whether there is one table; with more, each estimates `within`
    scores: dict[Resize, tuple[Values, ...]] = field(
        default_factory=dict
    )  # of each trial, in order

    def run(self) -> Resize:
        """Return the best settings: sigma is tuned first, then the range to tile, then the
        gains.
        """
        # The best of about twenty trials is ahead partly by chance: a lead of a standard error or
        # less does not count.
        current = self._complete(self.requested.choice.settings["sigma"])
        self.scores[current] = self.measure(current)
        for name in ("sigma", "repeat", "gain", "high_gain"):
            best = current
            lead = 0.0
            for other in (
                self._others(name, current) if self.requested.choice.settings[name] is None else ()
            ):
                if other not in self.scores:
                    self.scores[other] = self.measure(other)
                gained = self.improvement(other, current)
                if gained.standard_error is not None and gained.mean > max(
                    gained.standard_error, lead
                ):
                    best = other
                    lead = gained.mean
            current = best
        return current

    def improvement(self, candidate: Resize, reference: Resize) -> Estimate:
        """Return how much better one candidate is than another, paired by window or document; above
        0 is better.
        """
        pairs = zip(self.scores[reference], self.scores[candidate], strict=True)
        bounds = (
            UNBOUNDED if self.sign == 1 else difference_bounds(SHARE)
        )  # of losses, or of reciprocal ranks
        return estimate([self.sign * (before - after) for before, after in pairs], bounds)

    def _others(self, name: str, current: Resize) -> Iterator[Resize]:
        """Yield candidates with other values of one setting; with another sigma, the others are
        estimated again.
        """
        sigma = current.choice.settings["sigma"]
        if name == "gain":
            yield from (current.with_settings(gain=other) for other in GAINS)
        elif name == "high_gain":
            others = (
                HIGH_GAINS if current.choice.settings[name] else ()
            )  # None if it equals a gain that was given
            yield from (current.with_settings(high_gain=other) for other in others)
        elif name == "sigma":
            for other in (
                SIGMAS if self.requested.choice.settings["repeat"] else (0.0, *SIGMAS)
            ):  # at 0, nothing is tiled
                if other <= MAX_SHARE * len(self.table) and abs(other - sigma) > MIN_CHANGE * other:
                    yield self._complete(other)
        elif sigma:
            for repeat in find_repeats(
                self.table, sigma, REPEATS, keep=self.requested.choice.keep_first
            ):
                yield current.with_settings(repeat=repeat)

    def _complete(self, sigma: float | None) -> Resize:
        """Return a candidate with the settings that are None estimated from the table."""
        settings = {**self.requested.choice.settings, "sigma": sigma}
        requested = replace(self.requested.choice, settings=settings)
        chosen = choose_bands(self.table, self.rows, requested)
        candidate = replace(self.requested, method=chosen.text)
        return candidate if self.is_only else candidate.with_settings(within=settings["within"])
