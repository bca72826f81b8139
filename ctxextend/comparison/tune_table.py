"""Tune a position table on a text: choose its rows, then train them."""

import math
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ctxextend.comparison.choose_rows import MOST_CANDIDATES, RowsChoice, RowsReader
from ctxextend.comparison.comparison_result import Trial
from ctxextend.comparison.in_memory import open_resizer
from ctxextend.comparison.tuning_result import (
    PartLosses,
    TableTraining,
    Tuning,
)
from ctxextend.comparison.tuning_settings import (
    check_tunable,
    open_tuning,
    tuning_settings,
)
from ctxextend.errors import ResizeError, TrainingInterrupted, TuningInterrupted
from ctxextend.evaluation.eval_model import ENCODER, ResizableFiles, load_eval_model, open_files
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.held_out import NO_HELD_OUT, trained_on_warnings
from ctxextend.models.devices import torch_threads
from ctxextend.plan.plan import Plan
from ctxextend.planned import Planned, Reference
from ctxextend.progress import Events
from ctxextend.recipe import Recipe, Resize
from ctxextend.training.sequence_losses import LONG_COLUMN, SHORT_COLUMN, SequenceLosses
from ctxextend.training.setup import TrainingSetup, set_up
from ctxextend.training.time_limit import (
    LEAST_PASSES,
    USUAL_PASSES,
    TimeTooShortError,
    readings_of_steps,
)
from ctxextend.training.train import TimeLimit, train_recipe
from ctxextend.training.train_data import HeldOutSequences
from ctxextend.training.training_task import LoadedTask

if TYPE_CHECKING:
    from ctxextend.training.train_result import TrainResult

CHOOSING_SHARE = 1 / 4  # of the budget, until the rows to start from are chosen
WRITING_SHARE = 1 / 20  # of the budget, for writing the output
NO_SCORE = Estimate(math.nan, standard_error=None, tokens=0, samples=0)


@dataclass(frozen=True)
class TuningRequest:
    """What to tune a table on, and where the output is written."""

    recipe: Recipe  # the source, and the resize
    data: tuple[str, ...]
    budget: int  # seconds
    output: Reference | None
    force: bool
    check: Callable[[Path], None]  # of the trained output, before it is moved into place
    dry_run: bool = False  # only choose the rows


class TunedTable(NamedTuple):
    """A tuned table: how it is resized, and what has been written."""

    planned: Planned  # the resize with the chosen method
    tuning: Tuning
    trained: "TrainResult | None"  # what was written; None if the resize is still to be written


class _ChosenRows(NamedTuple):
    """The rows that training starts from, and what was measured to choose them."""

    best: Resize
    before: Trial
    chosen: Trial
    trials: tuple[Trial, ...]
    lead: Estimate | None
    # On held-out sequences, of the rows without a text and of the chosen ones, if these differ.
    losses_before: SequenceLosses | None
    losses_chosen: SequenceLosses | None
    is_encoder: bool
    windows: int
    length: int
    # For reading one on a CPU; 0 if none was read. Elsewhere, it says little about training.
    seconds_per_window: float
    warnings: tuple[str, ...]

    @property
    def compared(self) -> tuple[Trial, ...]:
        """The candidates that were measured."""
        return tuple(trial for trial in self.trials if trial.score.samples)


def tune_table(
    planned: Planned,
    request: TuningRequest,
    events: Events,
    plan_again: Callable[[Resize], Planned],
) -> TunedTable:
    """Choose the rows of a table on a text, train them, and write the output if that is better.

    Args:
        planned: The resize without a text.
        request: The text and the time.
        events: What the steps report.
        plan_again: Plans the resize with other settings.

    Raises:
        MethodError: The table is fixed, or the positions have no rows.
        ResizeError: The new length creates no rows.
        DataError: The text is too short.
        CtxextendError: As `train`.
        TuningInterrupted: A signal arrived.
    """
    started = time.perf_counter()
    files = _open_tunable_files(planned.plan)
    start: _ChosenRows | None = None
    try:
        start = _choose(files, planned.plan, request, started, events)
        chosen = planned
        if start.best != planned.plan.settings:
            chosen = plan_again(start.best)
        trained, needed = None, None
        if not request.dry_run:
            trained, needed = _train(chosen, start, request, started, events)
    except TrainingInterrupted as stop:
        raise TuningInterrupted(stop.signal, start and start.chosen.method) from None
    except KeyboardInterrupt:
        raise TuningInterrupted(signal.SIGINT, start and start.chosen.method) from None
    tuning = _report(planned.plan, start, trained, request, needed, started)
    if trained is not None and not trained.is_kept:
        trained = None
    return TunedTable(planned=chosen, tuning=tuning, trained=trained)


def _open_tunable_files(plan: Plan) -> ResizableFiles:
    """Check that a plan creates rows that can be trained, and open the files of the model.

    Raises:
        MethodError: They are fixed.
        ResizeError: The new length creates none.
        CheckpointError: As `open_files`.
    """
    table = plan.tables[0]
    source = plan.model.ref.source
    if table.rows_after <= table.rows_before:
        message = (
            f"{source} has a context length of {plan.max_len_before} tokens, so --to "
            f"{plan.max_len_after} creates no new rows to tune."
        )
        raise ResizeError(message, "Use a larger --to, or remove --data.")
    check_tunable(plan, "Remove --data.")
    return open_files(plan.model)


def _choose(
    files: ResizableFiles, plan: Plan, request: TuningRequest, started: float, events: Events
) -> _ChosenRows:
    """Choose the rows that training starts from."""
    deadline = started + CHOOSING_SHARE * request.budget
    with (
        events.progress("Choosing", unit="candidates") as progress,
        tempfile.TemporaryDirectory() as folder,
    ):
        train = tuning_settings(plan, request.data, files.stated_kind)
        task = open_tuning(files, plan, train, Path(folder, "stated"))
        warnings = trained_on_warnings(
            files.ref.source, task.text.seen, f"{NO_HELD_OUT} text with --data."
        )
        events.warning(*warnings)
        base = load_eval_model(files, "fp32", task.settings.device)
        if base.kind == ENCODER and train.distill is not None:  # the weights have no head
            train = tuning_settings(plan, request.data, ENCODER)
            task = open_tuning(files, plan, train, Path(folder, "loaded"))
        resizer = open_resizer(base, plan)
        loaded = LoadedTask.of_models(task, resizer.model, resizer.names, teacher=base)
        with torch_threads(base.model, task.settings.threads):
            setup = set_up(loaded)
            reader = RowsReader(
                plan=plan,
                resizer=resizer,
                setup=setup,
                report=lambda name: progress(1, MOST_CANDIDATES, name),
            )
            choice = RowsChoice(reader=reader, deadline=deadline)
            choice.run()
        return _start_of(choice, setup, tuple(warnings))


def _start_of(choice: RowsChoice, setup: TrainingSetup, warnings: tuple[str, ...]) -> _ChosenRows:
    """Return what a choice has found, without the model."""
    first = choice.reader.plan.settings
    trials = {
        candidate: _trial(choice.reader.plan_of(candidate), losses)
        for candidate, losses in choice.losses.items()
    }
    if first not in trials:  # nothing was compared
        trials[first] = _trial(choice.reader.plan, None)
    held_out = setup.held_out
    assert isinstance(held_out, HeldOutSequences)
    seconds_per_window = 0.0
    if setup.model.model.device.type == "cpu":
        seconds_per_window = choice.seconds_per_sequence
    return _ChosenRows(
        best=choice.best,
        before=trials[first],
        chosen=trials[choice.best],
        trials=tuple(trials.values()),
        lead=choice.lead,
        losses_before=choice.confirmed.get(first),
        losses_chosen=choice.confirmed.get(choice.best),
        is_encoder=setup.model.kind == ENCODER,
        windows=len(held_out),
        length=held_out.settings.length,
        seconds_per_window=seconds_per_window,
        warnings=warnings,
    )


def _trial(plan: Plan, losses: SequenceLosses | None) -> Trial:
    """Return the method of a plan and its score, which is not known if no losses were measured."""
    choice = plan.main_choice
    score = NO_SCORE
    if losses is not None:
        score = losses.estimate
    return Trial(choice.settings, score, choice.name)


def _train(
    planned: Planned, start: _ChosenRows, request: TuningRequest, started: float, events: Events
) -> "tuple[TrainResult | None, float | None]":
    """Train the table, and write it if that is better by more than its interval.

    Returns:
        The result, or the seconds of a budget that suffices.
    """
    kind = ENCODER if start.is_encoder else None
    settings = tuning_settings(planned.plan, request.data, kind)
    deadline = started + (1 - WRITING_SHARE) * request.budget
    sizes = (settings.batch_size, start.windows)
    least = start.seconds_per_window * readings_of_steps(LEAST_PASSES, *sizes)
    if least > 0 and time.perf_counter() + least > deadline:
        usual = start.seconds_per_window * readings_of_steps(USUAL_PASSES, *sizes)
        return None, _budget_for(usual, started)
    recipe = replace(request.recipe, resize=planned.plan.settings, train=settings)
    limit = TimeLimit(
        deadline=deadline,
        keeps=lambda result: _is_better(result.held_out.improvement),
        check=request.check,
        candidates={trial.method: trial.score.mean for trial in start.compared},
    )
    try:
        with events.progress("Tuning", unit="tokens") as progress:
            result = train_recipe(
                recipe,
                request.output,
                planned=planned,
                force=request.force,
                progress=progress,
                limit=limit,
            )
    except TimeTooShortError as error:
        return None, _budget_for(error.seconds, started)
    return result, None


def _budget_for(seconds: float, started: float) -> float:
    """Return the budget that suffices for a training, given what was spent before it.

    With a larger budget, choosing takes longer too.
    """
    spent = time.perf_counter() - started
    left = 1 - WRITING_SHARE
    return max((spent + seconds) / left, seconds / (left - CHOOSING_SHARE))


def _is_better(improvement: Estimate | None) -> bool:
    """Whether a loss is lower by more than its 95 % interval."""
    return improvement is not None and improvement.sign == 1


def _report(
    plan: Plan,
    start: _ChosenRows,
    trained: "TrainResult | None",
    request: TuningRequest,
    needed: float | None,
    started: float,
) -> Tuning:
    """Return what was chosen and trained, and how much better that is."""
    losses_after = start.losses_chosen
    improvement = start.lead
    short, long = None, None
    training = None
    if trained is not None:
        training = _training_of(trained)
        if trained.is_kept:
            losses_after = trained.sequences
            improvement = training.improvement
            short = trained.by_position.short
            long = trained.by_position.long
    if start.losses_before is not None and losses_after is not None:
        improvement = losses_after.improvement(start.losses_before)
        short = _part(start.losses_before, losses_after, SHORT_COLUMN)
        long = _part(start.losses_before, losses_after, LONG_COLUMN)
    return Tuning(
        before=start.before,
        chosen=start.chosen,
        trials=start.trials,
        lead=start.lead,
        training=training,
        improvement=improvement,
        short=None if short is None else PartLosses(*short),
        long=None if long is None else PartLosses(*long),
        windows=start.windows,
        length=start.length,
        is_encoder=start.is_encoder,
        first_position=plan.max_len_before,
        budget=request.budget,
        seconds=round(time.perf_counter() - started, 3),
        seconds_needed=needed,
        warnings=start.warnings,
    )


def _training_of(trained: "TrainResult") -> TableTraining:
    assert trained.held_out.improvement is not None
    return TableTraining(
        steps=trained.run.steps,
        batch_size=trained.run.batch_size,
        window=trained.run.window,
        lr=trained.run.lr,
        trainable=trained.trained.trainable,
        improvement=trained.held_out.improvement,
        is_kept=trained.is_kept,
    )


def _part(before: SequenceLosses, after: SequenceLosses, column: int) -> tuple[float, float] | None:
    """Return the mean losses at short or long positions; None if there are no tokens."""
    first = before.part(column)
    last = after.part(column)
    if first is None or last is None:
        return None
    return first, last
