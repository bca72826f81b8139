"""`resize --tune`: train the rows of a table on a text for a time, and keep them if better."""

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import release_memory
from accelerate.utils.memory import should_reduce_batch_size
from torch.utils.data import default_collate

from ctxextend.errors import (
    CtxextendError,
    DataError,
    TrainingError,
    TrainingInterrupted,
    counted,
    time_text,
)
from ctxextend.held_out import read_ids
from ctxextend.json_output import Result
from ctxextend.lab.eval_model import ENCODER, ModelFiles, load_eval_model, open_files
from ctxextend.lab.numbers import number
from ctxextend.lab.scores import exponential
from ctxextend.lab.statistics import Estimate
from ctxextend.models.devices import torch_threads
from ctxextend.plan import Plan
from ctxextend.planned import Planned
from ctxextend.progress import Events
from ctxextend.recipe import Recipe
from ctxextend.settings import TUNING_SECONDS, Resize, Train
from ctxextend.training.run import TrainingRun
from ctxextend.training.train import open_run, save_trained
from ctxextend.training.train_result import TrainResult
from ctxextend.training.trainer import read_held_out, run_training
from ctxextend.training.training_run import RunFolder
from ctxextend.training.training_source import TrainingSource
from ctxextend.training.training_text import MIN_WHOLE_WINDOWS
from ctxextend.verification.verify import check_recorded_output

WINDOWS_PER_STEP = 8  # of the old length, or as many tokens in whole texts
READ_TOKENS = 1_310_720  # of a text, at most: more than is trained on in minutes on a CPU
WRITING_SHARE = 1 / 20  # of the budget, for writing the output
TRAINER_SECONDS = 0.01  # of a step, for all but its gradients
TIMED_BATCHES = 8  # after one that warms up, of which the fastest counts
SLOW_BATCH = 2.0  # seconds; on a CPU, batches that take longer need no warm-up
MOST_EVALUATIONS = 4  # after the one before the first step
EVALUATION_SHARE = 1 / 4  # of the time that evaluations may take if there are as many
# Fewer steps hardly change a table: the first ones warm up.
FEWEST_STEPS = 20
LEARN_FROM_TEXT = "To learn from the text instead, resize without --tune and use train"


@dataclass(frozen=True, eq=False, repr=False)
class Tuning(Result, shows=("training", "seconds")):
    """A position table that was tuned on a text.

    Losses of language models are nats per token on windows of the new length. Those of encoders are
    distances from the base's states and embeddings on windows of the old length, elsewhere.
    """

    # ``steps``, ``batch_size``, ``window``, ``lr``, ``trainable``, ``improvement``, ``is_kept``,
    # ``windows`` and ``length``; None if there was no time.
    training: Mapping[str, Any] | None
    is_encoder: bool
    budget: int  # seconds, as the user gave them
    seconds: float  # taken
    # The budget that suffices for a training; None if the time did.
    seconds_needed: float | None = None


class TimeTooShortError(CtxextendError):
    """The time until a deadline is too short for a training, which takes `seconds` or more."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Training takes {math.ceil(seconds)} seconds or more.")
        self.seconds = seconds


def tune_table(
    planned: Planned, recipe: Recipe, settings: Resize, events: Events
) -> tuple[Tuning, TrainResult | None]:
    """Train the rows of a table on a text, and write the output if that is better.

    Returns:
        How the table was tuned, and what was written; None if the resize is still to be written.

    Raises:
        DataError: The text is too short.
        TrainingError: The folder of another run is in the way.
        CtxextendError: As `train`.
        KeyboardInterrupt: Ctrl-C was pressed; nothing is written.
    """
    started = time.perf_counter()
    plan = planned.plan
    path = planned.output.at(settings.output).path
    folder = RunFolder.for_output(path)
    if folder.save is not None and not settings.force:
        message = f"{folder.path} contains an interrupted run, which tuning would discard."
        raise TrainingError(message, "Resume that run, or choose another --output.")
    files = open_files(plan.model)
    _check_text(plan, files, settings.tune)
    kind = files.stated_kind
    if kind != ENCODER:  # the weights may lack the head of the stated class
        kind = load_eval_model(files, "fp32").kind
    budget = settings.budget or TUNING_SECONDS
    recipe = replace(recipe, train=_train_settings(plan, settings.tune, kind))
    source = TrainingSource.open(recipe, planned)
    trained: TrainResult | None = None
    is_kept = False
    needed = None
    try:
        with (
            events.progress("Tuning", unit="tokens") as progress,
            open_run(source, path, force=settings.force, keeps_saves=False) as run,
            torch_threads(run.model.model, None),
        ):
            plan_steps(run, started + (1 - WRITING_SHARE) * budget)
            trained = replace(run_training(run, progress), output=path)
            is_kept = is_better(trained)
            if is_kept:
                check: Callable[[Path], None] | None = None
                if settings.verify:
                    check = partial(check_recorded_output, plan.model.ref)
                trained = save_trained(run, trained, force=settings.force, check=check)
    except TimeTooShortError as error:
        spent = time.perf_counter() - started
        needed = (spent + error.seconds) / (1 - WRITING_SHARE)
    except TrainingInterrupted as stop:  # nothing is saved, as the handler of the command says
        signal.raise_signal(stop.signal)
        raise
    tuning = Tuning(
        training=None,
        is_encoder=kind == ENCODER,
        budget=budget,
        seconds=round(time.perf_counter() - started, 3),
        seconds_needed=needed,
    )
    if trained is not None:
        length = plan.max_len_after
        if tuning.is_encoder:
            length = plan.max_len_before
        training = {
            "steps": trained.steps,
            "batch_size": trained.batch_size,
            "window": trained.window,
            "lr": trained.lr,
            "trainable": trained.trainable,
            "improvement": trained.improvement,
            "is_kept": is_kept,
            "windows": trained.held_out_sequences,
            "length": length,
        }
        tuning = replace(tuning, training=training)
    events.note(_describe(tuning, plan.method))
    if not is_kept:
        return tuning, None
    return tuning, trained


def is_better(result: TrainResult) -> bool:
    """Whether the held-out loss is lower by more than its 95 % interval."""
    return result.improvement is not None and result.improvement.sign == 1


def _check_text(plan: Plan, files: ModelFiles, data: tuple[str, ...]) -> None:
    """Check that a text has windows of the new length to train on, and others to decide by."""
    tokenizer = files.tokenizer
    length = plan.max_len_after - tokenizer.num_special
    required = 2 * MIN_WHOLE_WINDOWS
    texts = read_ids(
        data, Train.text_field, tokenizer.encode, tokenizer.separator, required * length
    )
    windows = sum(map(len, texts)) // length
    if windows < required:
        message = (
            f"The text has {counted(windows, 'window')} of {length:,} tokens, but tuning a table "
            f"requires {required}: {MIN_WHOLE_WINDOWS} to train on, and {MIN_WHOLE_WINDOWS} that "
            "decide."
        )
        raise DataError(message, "Pass more text with --tune, or use a smaller --to.")


def _train_settings(plan: Plan, data: tuple[str, ...], kind: str | None) -> Train:
    """Return the settings of the training: of all rows but those that the method keeps.

    Its steps follow from the time.
    """
    table = plan.changes[0]
    trainable = "positions"
    if (table.choice or plan.settings.choice).kept_rows(table.max_len_before) > 0:
        trainable = "new"
    settings = Train(data, steps=1, tokens=READ_TOKENS, trainable=trainable, save="last")
    if kind == ENCODER:
        return replace(settings, window=plan.max_len_before)
    # As many tokens per step, however long the texts are.
    texts = max(WINDOWS_PER_STEP * plan.max_len_before // plan.max_len_after, 1)
    return replace(settings, distill=1.0, batch_size=texts)


def plan_steps(run: TrainingRun, deadline: float) -> None:
    """Let a run take as many steps as can be taken until a time.

    Args:
        run: The run.
        deadline: In seconds of `time.perf_counter`.

    Raises:
        TimeTooShortError: The time is too short for `FEWEST_STEPS`.
    """
    run.objective.eval()
    reading = 0.0  # a held-out sequence
    for _ in range(2):  # the first one warms up, unless it is slow
        if reading <= SLOW_BATCH:
            started = time.perf_counter()
            with _as_trained(run):
                read_held_out(run.objective, run.held_out, [[0]])
            reading = time.perf_counter() - started
    evaluation = reading * len(run.held_out)
    step = TRAINER_SECONDS
    for index, size in enumerate(run.micro_batches):
        try:
            step += _time_gradients(run, size)
        except Exception as error:
            if not (isinstance(error, MemoryError) or should_reduce_batch_size(error)):
                raise
            run.objective.zero_grad()
            release_memory()
        else:
            run.micro_batches = run.micro_batches[index:]
            break
    left = deadline - time.perf_counter()
    evaluations = MOST_EVALUATIONS
    if (1 + evaluations) * evaluation > EVALUATION_SHARE * left:
        evaluations = 1
    steps = int((left - (1 + evaluations) * evaluation) / step)
    if steps < FEWEST_STEPS:
        raise TimeTooShortError(FEWEST_STEPS * step + 2 * evaluation)
    run.planned_steps = steps
    run.settings = replace(run.settings, steps=steps, eval_every=math.ceil(steps / evaluations))


def _time_gradients(run: TrainingRun, size: int) -> float:
    """Return how long the gradients of a step take in micro-batches of a size."""
    objective: Any = run.objective
    objective.train()
    device = objective.model.device
    step = run.settings.batch_size
    items = run.training_items(2 * step)
    seconds = 0.0
    for first in (0, step):  # every other step may read its texts in another way
        examples = default_collate([items[first + number] for number in range(size)])
        batch = {name: value.to(device) for name, value in examples.items()}
        times = list[float]()
        for _ in range(1 + TIMED_BATCHES):
            started = time.perf_counter()
            with _as_trained(run):
                loss = objective(**batch)["loss"]
            loss.backward()
            float(loss.detach())  # waits for the device
            times.append(time.perf_counter() - started)
            if sum(times) > SLOW_BATCH and device.type == "cpu":
                break
        objective.zero_grad()
        seconds += min(times)
    batches: int = -(-step // size)
    return batches * seconds / 2


@contextmanager
def _as_trained(run: TrainingRun) -> Iterator[None]:
    precision = run.settings.precision
    is_lower = precision in ("bf16", "fp16") and run.model.model.dtype == torch.float32
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    with torch.autocast(run.model.model.device.type, dtype=dtype, enabled=is_lower):
        yield


def _describe(tuning: Tuning, method: str) -> str:
    """Return how long the rows of a method were trained, and by how much they are better."""
    training = tuning.training
    if training is None:
        needed = math.ceil(tuning.seconds_needed or 0)
        return f"{method}, not tuned: training the rows takes --budget {needed} or more"
    steps = f"{counted(training['steps'], 'step')} of training"
    windows = counted(training["windows"], "held-out window")
    place = f"{windows} of {training['length']:,} tokens"
    tuned = f"tuned in {time_text(tuning.seconds)}: {method}"
    improvement: Estimate = training["improvement"]
    what = "perplexity"
    if tuning.is_encoder:
        what = "the squared distance from the base, in lengths of its states,"
    if not training["is_kept"]:
        verb = "raised" if improvement.mean < 0 else "lowered"
        amount = _amount(replace(improvement, mean=abs(improvement.mean)), tuning)
        text = (
            f"{tuned}; {steps} on the base's predictions {verb} {what} by {amount} on {place}, and "
            "are not kept"
        )
        if not tuning.is_encoder:
            text += f". {LEARN_FROM_TEXT}"
        return text
    amount = _amount(improvement, tuning)
    return f"{tuned}, then {steps}; {what} is lower by {amount} on {place}"


def _amount(improvement: Estimate, tuning: Tuning) -> str:
    """Return by how much a loss is lower: in per cent of perplexity, or of encoders as it is."""
    low, high = improvement.interval or (math.nan, math.nan)
    values = [improvement.mean, low, high]
    if tuning.is_encoder:
        return number(*values, digits=1)
    return number(*(100 * (1 - exponential(-value)) for value in values), suffix=" %", digits=1)
