"""Choose the numbers of `bands` by what they are worth on a text."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.comparison.comparison_result import LOSS, METRICS, Calibration, Trial
from ctxextend.comparison.in_memory import open_resized
from ctxextend.errors import DataError, ResizeError
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, load_eval_model, open_files
from ctxextend.evaluation.evaluate import EvaluationRun, plan_evaluation
from ctxextend.evaluation.evaluation_result import Estimate, estimate, estimate_loss
from ctxextend.models.devices import running
from ctxextend.plan.find_tables import OpenedModel, open_model
from ctxextend.plan.plan import plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import MIN_LENGTH, CheckpointRef, Evaluate, Resize, accepts_settings, split_ref
from ctxextend.recipe_file import TABLE_KEYS
from ctxextend.tables.bands import choose_bands, find_repeats, has_free_settings
from ctxextend.text_data import TEXT_FIELD, check_paths, path_names

Values = NDArray[np.float64]

# Windows, or documents, without which a standard error is itself a guess; and those that are read at most. A rank says
# less than the losses of a window, and among few documents nothing.
MIN_SAMPLES, WINDOWS, DOCUMENTS = 8, 16, 64

# Beside what the table says, these are tried: rows of the Gaussian, the share of the table that it may have at most,
# how many stretches, and factors.
SIGMAS, MAX_SHARE = (3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0), 1 / 4
REPEATS = 4
GAINS = (1.0, 1.15, 1.3, 1.45, 1.6, 1.8, 2.1)
# Of a sigma the part by which another must differ for the rows to differ in anything that a text could show.
NEARLY = 0.1
# What the table says, no fast band, and all of the above; of stretches also the longest.
MAX_TRIALS = 1 + 1 + len(SIGMAS) + REPEATS + 1 + len(GAINS)


@accepts_settings(CheckpointRef, Resize, without=TABLE_KEYS)
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
    """Choose the numbers of `bands` by what they are worth on a text.

    The search begins with what the table alone says; then other sigmas are tried, other ranges that repeat, and other
    gains, some twenty in all. What is better by no more than one standard error, paired by window, replaces nothing.
    Language models are judged by their loss on windows as long as the new length, at most 16, encoders by the documents
    that they find, of at most 64. The text needs no labels:

        found = ctxextend.calibrate("gpt2", 4096, "book.txt")
        ctxextend.resize("gpt2", 4096, found.method)

    Args:
        reference: As in `plan_resize`.
        to: Usable token positions wanted, more than the model has.
        data: As in `evaluate`; at least 8 windows, or for an encoder documents, as long as the new length.
        method: ``bands``, with settings that are to stay as they are: ``bands:gain=1.2``.
        tokens: Tokens of the text to use, at most, unless 8 windows have more.
        precision, seed, text_field: As in `evaluate`.
        progress: Told how many tokens were read since the last call, and how many there will be at most.
        settings: Others of `plan_resize`, by their names.

    Raises:
        CtxextendError: As `compare`.
        DataError: The text holds fewer than 8 windows, or documents as long as the new length.
        ResizeError: The length is none that gives new rows, or every number is given.
    """
    text = Evaluate(path_names(data), tokens=tokens, precision=precision, seed=seed, text_field=text_field)
    ref, others = split_ref(reference, settings)
    return calibrate_model(open_model(ref), Resize(to, method=method, **others), text, progress)


def calibrate_model(
    opened: OpenedModel,
    settings: Resize,
    text: Evaluate,
    progress: Progress = no_progress,
    warn: Callable[..., None] = lambda *texts: None,
) -> Calibration:
    """Choose what a resize leaves open; see `calibrate`. Lengths and measures of `text` are not read.

    `warn` is told the warnings before the search.
    """
    began = time.perf_counter()
    settings = replace(settings, method="bands") if settings.method == "auto" else settings
    if settings.facts.name != "bands":
        raise ResizeError(f"A text chooses settings of bands, not of {settings.facts.name}.")
    if not has_free_settings(**settings.settings):
        raise ResizeError("Every number is given already: nothing is left for the text.", "Leave one of them out.")
    check_paths(text.data)
    files, plan = open_files(opened), plan_model(opened, settings)
    settings, table = plan.settings, plan.tables[0]
    if table.rows_after <= table.rows_before:
        raise ResizeError(
            f"{opened.ref.source} reads {files.max_len} tokens already, so that --to {settings.to} asks for no new "
            "rows to calibrate.",
            "Leave the text out, or give a greater --to.",
        )
    base = load_eval_model(files, text.precision, text.device)
    resized = open_resized(base, plan)
    run = _open_run(resized.model, base, text)
    warn(*run.warnings)
    metric = METRICS[base.kind]
    mean, sign = (estimate_loss, 1) if metric == LOSS else (estimate, -1)

    def advance(tokens: int) -> None:
        progress(tokens, run.base_tokens + MAX_TRIALS * run.tokens)

    def measure(choice: Resize) -> tuple[Values, ...]:
        resized.set_tables(replace(plan, settings=choice))
        run.measure(advance)
        return run.scores

    if run.base is not None:
        run.read_base(advance)
    # The numbers are counted in the rows of the first table.
    rows = resized.learned[table.name][table.reserved_rows :]
    source = rows[: len(rows) - settings.drop_last].astype(np.float64)
    search = Search(source, table.rows_after - table.reserved_rows, settings, measure, sign)
    search.is_only = len(plan.tables) == 1
    with running(base.model, text.threads):
        best = search.run()
    tried = {one: Trial(one.settings, mean(scores)) for one, scores in search.found.items()}
    first = next(iter(tried))
    return Calibration(
        metric=metric,
        before=tried[first],
        after=tried[best],
        better_by=search.better_by(best, first),
        tried=tuple(tried.values()),
        windows=len(search.found[first]),
        length=resized.model.max_len,
        seconds=round(time.perf_counter() - began, 3),
        notes=(*base.notes, *run.notes),
        warnings=run.warnings,
    )


def _open_run(model: EvalModel, base: EvalModel, text: Evaluate) -> EvaluationRun:
    """Cut the text; of language models nothing but the model's own loss is measured."""
    is_encoder, length = base.kind == ENCODER, max(model.max_len, MIN_LENGTH)
    count = min(max(text.tokens // length, MIN_SAMPLES), DOCUMENTS if is_encoder else WINDOWS)
    measure = ("retrieval",) if is_encoder else ("position",)
    settings = replace(text, base=None, length=(length,), tokens=count * length, measure=measure)
    run = plan_evaluation(model, base if is_encoder else None, settings, minimum=1 if is_encoder else MIN_SAMPLES)
    if run.retrieval is not None and len(run.retrieval.documents) < MIN_SAMPLES:
        raise DataError(
            f"The text has {len(run.retrieval.documents)} documents of at least {length:,} tokens; calibration needs "
            f"{MIN_SAMPLES}.",
            "Pass more or longer texts with --data.",
        )
    return run


@dataclass
class Search:
    """The search for the numbers of `bands` for one table; what was typed stays."""

    table: Values  # the learned rows that new ones are made from, shape (n, d)
    rows: int  # wanted
    typed: Resize
    measure: Callable[[Resize], tuple[Values, ...]]  # the scores of each window or document, each of shape (k,)
    sign: int  # 1 where less is better, and -1 where more is
    found: dict[Resize, tuple[Values, ...]] = field(default_factory=dict)  # what was tried and what it gave, in order
    is_only: bool = False  # whether no other table takes what is chosen, whose typical rows would be others

    def run(self) -> Resize:
        """Return the best settings: sigma is chosen first, then the range that repeats, then the gain.

        The best of some twenty trials owes a part of its lead to this text: one of a standard error does not count.
        """
        now = self._complete(self.typed.settings["sigma"], self.typed.settings["gain"])
        self.found[now] = self.measure(now)
        for name in ("sigma", "repeat", "gain"):
            best, lead = now, 0.0
            for other in self._others(name, now) if self.typed.settings[name] is None else ():
                if other not in self.found:
                    self.found[other] = self.measure(other)
                by = self.better_by(other, now)
                if by.standard_error is not None and by.mean > max(by.standard_error, lead):
                    best, lead = other, by.mean
            now = best
        return now

    def better_by(self, one: Resize, other: Resize) -> Estimate:
        """Return how much better settings are than others, paired by window or document; above 0 is better."""
        pairs = zip(self.found[other], self.found[one], strict=True)
        return estimate([self.sign * (before - after) for before, after in pairs])

    def _others(self, name: str, now: Resize) -> Iterator[Resize]:
        """Yield settings with other values of one of them; to another sigma belongs the range that the table says."""
        sigma, gain = now.settings["sigma"], now.settings["gain"]
        if name == "gain":
            yield from (now.with_settings(gain=other) for other in GAINS)
        elif name == "sigma":
            for other in SIGMAS if self.typed.settings["repeat"] else (0.0, *SIGMAS):  # 0 repeats nothing
                if other <= MAX_SHARE * len(self.table) and abs(other - sigma) > NEARLY * other:
                    yield self._complete(other, gain)
        elif sigma:
            for repeat in find_repeats(self.table, sigma, REPEATS, keep=self.typed.kept_first):
                yield now.with_settings(repeat=repeat)

    def _complete(self, sigma: float | None, gain: float | None) -> Resize:
        """Return settings in numbers; what is None the table says."""
        asked = self.typed.settings | {"sigma": sigma, "gain": gain}
        method, _ = choose_bands(self.table, self.rows, keep=self.typed.kept_first, **asked)
        found = replace(self.typed, method=method)
        return found if self.is_only else found.with_settings(within=asked["within"])
