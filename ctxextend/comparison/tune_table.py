"""Tune a position table on a text: train its rows for a time."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ctxextend.comparison.tuning_result import PartLosses, TableTraining, Tuning
from ctxextend.comparison.tuning_settings import check_tuning_text, tuning_settings
from ctxextend.errors import TrainingInterrupted
from ctxextend.lab.eval_model import ENCODER, load_eval_model, open_files
from ctxextend.planned import Planned, Reference
from ctxextend.progress import Events
from ctxextend.recipe import Recipe
from ctxextend.training.time_limit import TimeTooShortError
from ctxextend.training.train import TimeLimit, train_recipe

if TYPE_CHECKING:
    from ctxextend.training.train_result import TrainResult

WRITING_SHARE = 1 / 20  # of the budget, for writing the output


@dataclass(frozen=True)
class TuningRequest:
    """What to tune a table on, and where the output is written."""

    recipe: Recipe  # the source, and the resize
    data: tuple[str, ...]
    budget: int  # seconds
    output: Reference | None
    force: bool
    check: Callable[[Path], None] | None  # of the trained output, before it is moved into place


def tune_table(
    planned: Planned, request: TuningRequest, events: Events
) -> "tuple[Tuning, TrainResult | None]":
    """Train the rows of a table on a text, and write the output if that is better.

    Args:
        planned: The resize.
        request: The text and the time.
        events: What the steps report.

    Returns:
        How the table was tuned, and what was written; None if the resize is still to be written.

    Raises:
        DataError: The text is too short.
        CtxextendError: As `train`.
        KeyboardInterrupt: Ctrl-C was pressed; nothing is written.
    """
    started = time.perf_counter()
    plan = planned.plan
    files = open_files(plan.model)
    check_tuning_text(plan, files.tokenizer, request.data)
    kind = files.stated_kind
    if kind != ENCODER:  # the weights may lack the head of the stated class
        kind = load_eval_model(files, "fp32").kind
    recipe = replace(request.recipe, train=tuning_settings(plan, request.data, kind))
    limit = TimeLimit(
        deadline=started + (1 - WRITING_SHARE) * request.budget,
        keeps=_is_better,
        check=request.check,
    )
    trained: TrainResult | None = None
    needed = None
    try:
        with events.progress("Tuning", unit="tokens") as progress:
            trained = train_recipe(
                recipe,
                request.output,
                planned=planned,
                force=request.force,
                progress=progress,
                limit=limit,
            )
    except TimeTooShortError as error:
        spent = time.perf_counter() - started
        needed = (spent + error.seconds) / (1 - WRITING_SHARE)
    except TrainingInterrupted as stop:  # nothing is saved, as the handler of the command says
        signal.raise_signal(stop.signal)
        raise
    tuning = Tuning(
        training=None,
        is_encoder=kind == ENCODER,
        first_position=plan.max_len_before,
        budget=request.budget,
        seconds=round(time.perf_counter() - started, 3),
        seconds_needed=needed,
    )
    if trained is None:
        return tuning, None
    assert trained.improvement is not None
    training = TableTraining(
        steps=trained.steps,
        batch_size=trained.batch_size,
        window=trained.window,
        lr=trained.lr,
        trainable=trained.trainable,
        improvement=trained.improvement,
        is_kept=trained.is_kept,
        short=None if trained.loss_short is None else PartLosses(*trained.loss_short),
        long=None if trained.loss_long is None else PartLosses(*trained.loss_long),
        windows=trained.held_out_sequences,
        length=plan.max_len_before if tuning.is_encoder else plan.max_len_after,
    )
    return replace(tuning, training=training), trained if trained.is_kept else None


def _is_better(result: "TrainResult") -> bool:
    """Whether the held-out loss is lower by more than its 95 % interval."""
    improvement = result.improvement
    return improvement is not None and improvement.sign == 1
