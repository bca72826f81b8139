"""A model made ready to be trained: what it is trained to do, what of it is trained, and with how much at once."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from ctxextend.errors import CheckpointError, TrainingError
from ctxextend.evaluation.embedding import read_pooling
from ctxextend.evaluation.eval_model import (
    ENCODER,
    SENTENCE_MODULES,
    EvalModel,
    check_vocabulary,
    load_eval_model,
    open_eval_model,
)
from ctxextend.training.devices import Devices
from ctxextend.training.distillation import Distillation
from ctxextend.training.learning import Learner
from ctxextend.training.memory import LONG, Choice, Forecast, choose
from ctxextend.training.modes import spare_activations, switch_checkpointing, switch_dropout_off
from ctxextend.training.objectives import LanguageModelling
from ctxextend.training.opening import Opened, Texts
from ctxextend.training.parameters import Trained, match_parameters
from ctxextend.training.room import give_back_what_is_freed

__all__ = ["set_up", "set_up_reader"]

# The highest learning rate of a table, as a part of the root of its values' mean square.
TABLE_RATE = 0.05
# The highest learning rate where everything is trained, at GPT-2 small's width; narrower models bear more.
RATE, WIDTH = 3e-4, 768
# The same of an encoder, which has more to lose than to learn: its vectors should stay what they were.
ENCODER_RATE = 2e-5

# What autocast is told of a precision.
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_up(opened: Opened, texts: Texts, devices: Devices) -> Learner:
    """Load a model and make it ready to be trained.

    Args:
        opened: What is trained, and how, its precision filled in.
        texts: The text as tokens.
        devices: The processes that take part.

    Raises:
        CtxextendError: As `load_eval_model`; the objective does not fit, or what is trained cannot be written back.
    """
    reader = load_eval_model(opened.files, "fp32")
    shapes = {name: file.entries[name].shape for file in opened.files.checkpoint.weights for name in file.entries}
    return set_up_reader(reader, match_parameters(reader.model, shapes), opened, texts, devices)


def set_up_reader(
    reader: EvalModel, names: Mapping[str, str], opened: Opened, texts: Texts, devices: Devices
) -> Learner:
    """Make a model that is loaded ready to be trained.

    Args:
        reader: The model, its weights in float32.
        names: The parameter that holds each tensor of the files, from `match_parameters`.
        opened: As in `set_up`.
        texts: As in `set_up`.
        devices: As in `set_up`.

    Raises:
        CtxextendError: As `set_up`.
    """
    check_vocabulary(reader, np.array([texts.train.max(), texts.held_out.max()], np.int64))
    settings = opened.settings
    objective = _objective(opened, reader)
    names, table = _trained_names(opened, reader, names)
    switch_dropout_off(reader.model)
    if opened.length > LONG:  # short ones have memory, and are a little faster without
        spare_activations(reader.model)
    trained = Trained.of(reader.model, names, table, opened.rows)
    choice = _choose(opened, objective, devices)
    rate = settings.lr or _rate(trained, settings.trainable, reader.kind)
    return Learner(opened, reader, objective, trained, choice, rate, texts)


def _choose(opened: Opened, objective: LanguageModelling | Distillation, devices: Devices) -> Choice:
    """Choose how much is held at once, for all devices alike, and let the model compute layers twice where it must."""
    teacher = objective.teacher.model if isinstance(objective, Distillation) else None
    dtype = AUTOCAST.get(opened.settings.precision)
    forecast = Forecast.of(objective, opened.files.max_len, dtype, teacher)
    found = choose(forecast, opened.length, devices.micro_batches(opened.settings))
    micro_batch, twice = devices.told_by_first(found.micro_batch), bool(devices.told_by_first(found.is_checkpointed))
    if (micro_batch, twice) != (found.micro_batch, found.is_checkpointed):
        need = forecast.need(opened.length, micro_batch, checkpointed=twice)
        found = replace(found, micro_batch=micro_batch, is_checkpointed=twice, need=need)
    if found.is_checkpointed:
        switch_checkpointing(objective.model, on=True)
    if found.is_checkpointed or opened.length > LONG:
        give_back_what_is_freed()
    return found


def _objective(opened: Opened, reader: EvalModel) -> LanguageModelling | Distillation:
    """Return what a model is trained to do, by what it is."""
    placed = opened.span > opened.length
    if reader.kind != ENCODER:
        return LanguageModelling.of(reader, placed=placed)
    if opened.original is None:
        raise TrainingError(
            f"{reader.name} has no head to train by, and what it was made of, which it could learn from, is not known.",
            "Name that with --original.",
        )
    known = opened.original
    teacher = known.reader or open_eval_model(known.ref, "fp32", known.hashes)
    is_sentence = (reader.root / SENTENCE_MODULES).is_file()
    return Distillation.of(reader, teacher, read_pooling(reader.root) if is_sentence else None, placed=placed)


def _trained_names(opened: Opened, reader: EvalModel, found: Mapping[str, str]) -> tuple[Mapping[str, str], str]:
    """Return what is trained, as the files and as the model call it, and the model's name of the table.

    Raises:
        CheckpointError: The model holds something that its files do not.
    """
    if opened.files.table not in found:
        raise CheckpointError(f"The model of {reader.name} holds no table of the shape of {opened.files.table}.")
    table = found[opened.files.table]
    if opened.settings.trainable != "all":
        return {opened.files.table: table}, table
    # A pooler is no part of what is trained: vectors of texts and words do without it.
    found = {name: parameter for name, parameter in found.items() if "pooler." not in parameter}
    held = {id(reader.model.get_parameter(parameter)) for parameter in found.values()}
    missing = [
        name for name, value in reader.model.named_parameters() if id(value) not in held and "pooler." not in name
    ]
    if missing:
        raise CheckpointError(
            f"{', '.join(missing[:3])} of the model {reader.name} cannot be found in its files, nor written back.",
            "Train the table alone: --trainable positions.",
        )
    return found, table


def _rate(trained: Trained, trainable: str, kind: str) -> float:
    """Return the highest learning rate where none is asked for.

    Adam moves each value by about the rate in a step, so a table's is a part of the size of its values.

    Raises:
        TrainingError: The table holds something else than numbers.
    """
    weight = trained.model.get_parameter(trained.table).detach()
    rate = float(TABLE_RATE * weight.square().mean().sqrt())
    if not math.isfinite(rate):
        raise TrainingError("The position table holds NaN or infinity.", "Look at its rows: ctxextend inspect.")
    of_everything = ENCODER_RATE if kind == ENCODER else RATE * (WIDTH / weight.shape[1]) ** 0.5
    return rate if rate and trainable != "all" else of_everything
