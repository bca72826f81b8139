"""Plan as many steps as fit until a time, from the speed of the first ones."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import release_memory
from accelerate.utils.memory import should_reduce_batch_size
from torch.utils.data import default_collate

from ctxextend.errors import CtxextendError
from ctxextend.training.sequence_losses import read_sequences
from ctxextend.training.setup import TrainingSetup

TRAINER_SECONDS = 0.01  # of a step, for all but its gradients
TIMED_BATCHES = 2  # after one that warms up
SLOW_BATCH = 2.0  # seconds; one that takes longer needs no warm-up on a CPU
MOST_EVALUATIONS = 4  # after the one before the first step
EVALUATION_SHARE = 1 / 4  # of the time that evaluations may take if there are as many
# Fewer steps hardly change a table: the first ones warm up.
FEWEST_STEPS = 20
# A step takes as long as so many readings of its sequences: at least, and usually.
LEAST_PASSES = 3
USUAL_PASSES = 5


class TimeTooShortError(CtxextendError):
    """The time until a deadline is too short for a training, which takes `seconds` or more."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Training takes {math.ceil(seconds)} seconds or more.")
        self.seconds = seconds


def plan_steps(setup: TrainingSetup, deadline: float) -> TrainingSetup:
    """Return a setup with as many steps as can be taken until a time.

    Args:
        setup: Of a run whose held-out sequences are read one by one.
        deadline: In seconds of `time.perf_counter`.

    Raises:
        TimeTooShortError: The time is too short for `FEWEST_STEPS`.
    """
    task = setup.task
    setup.objective.eval()
    reading = 0.0  # a held-out sequence
    for _ in range(2):  # the first one warms up, unless it is slow
        if reading <= SLOW_BATCH:
            started = time.perf_counter()
            with _as_trained(setup):
                read_sequences(setup.objective, setup.held_out, [0])
            reading = time.perf_counter() - started
    evaluation = reading * len(setup.held_out)
    if setup.model.model.device.type == "cpu":  # elsewhere, it says little about training
        readings = FEWEST_STEPS * task.settings.batch_size * reading
        if time.perf_counter() + LEAST_PASSES * readings + 2 * evaluation > deadline:
            raise TimeTooShortError(USUAL_PASSES * readings + 2 * evaluation)
    setup, step = _time_step(setup)
    task = setup.task
    left = deadline - time.perf_counter()
    evaluations = MOST_EVALUATIONS
    if (1 + evaluations) * evaluation > EVALUATION_SHARE * left:
        evaluations = 1
    reserved = (1 + evaluations) * evaluation
    steps = int((left - reserved) / step)
    if steps < FEWEST_STEPS:
        raise TimeTooShortError(FEWEST_STEPS * step + 2 * evaluation)
    every = math.ceil(steps / evaluations)
    settings = replace(task.settings, steps=steps, eval_every=every)
    return replace(setup, task=replace(task, settings=settings, planned_steps=steps))


def _time_step(setup: TrainingSetup) -> tuple[TrainingSetup, float]:
    """Return how long a step takes, and the setup with the micro-batches that fit the memory.

    If none fits, training will say so, or fit by recomputing activations.
    """
    task = setup.task
    objective: Any = setup.objective
    device = objective.model.device
    objective.train()
    # Of two steps, since every other one may read its texts in another way.
    items = setup.training_items(2 * task.settings.batch_size)
    seconds = 0.0
    sizes = list(task.micro_batches)
    while sizes and not seconds:
        size = sizes[0]
        batches = -(-task.settings.batch_size // (size * task.devices.num_processes))
        try:
            spent = 0.0
            for first in (0, task.settings.batch_size):
                examples = default_collate([items[first + number] for number in range(size)])
                batch = {name: value.to(device) for name, value in examples.items()}
                taken = _time_gradients(setup, batch)
                if taken < SLOW_BATCH or device.type != "cpu":  # the first one warms up
                    taken = sum(_time_gradients(setup, batch) for _ in range(TIMED_BATCHES))
                    taken /= TIMED_BATCHES
                spent += taken
                objective.zero_grad()
            seconds = batches * spent / 2 + TRAINER_SECONDS
        except Exception as error:
            if not (isinstance(error, MemoryError) or should_reduce_batch_size(error)):
                raise
            objective.zero_grad()
            release_memory()
            sizes.pop(0)
    fitting = sizes or task.micro_batches
    return replace(setup, task=replace(task, micro_batches=fitting)), seconds or TRAINER_SECONDS


def _time_gradients(setup: TrainingSetup, batch: dict[str, torch.Tensor]) -> float:
    started = time.perf_counter()
    with _as_trained(setup):
        loss = setup.objective(**batch)["loss"]
    loss.backward()
    float(loss.detach())  # waits for the device
    return time.perf_counter() - started


@contextmanager
def _as_trained(setup: TrainingSetup) -> Iterator[None]:
    precision = setup.task.settings.precision
    is_lower = precision in ("bf16", "fp16") and setup.model.model.dtype == torch.float32
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    with torch.autocast(setup.model.model.device.type, dtype=dtype, enabled=is_lower):
        yield
