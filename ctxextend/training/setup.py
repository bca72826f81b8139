"""Prepare a loaded model for training: objective, parameters, sequences, learning rate."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from ctxextend.checkpoint.checkpoint import MODULES
from ctxextend.errors import TrainingError
from ctxextend.lab import eval_model
from ctxextend.lab.embedding import read_pooling
from ctxextend.lab.eval_model import ENCODER, MASKED, EvalModel
from ctxextend.training.choose_parameters import choose_parameters, default_learning_rate
from ctxextend.training.objectives import (
    Contrastive,
    Distillation,
    LanguageModeling,
    PositionDistillation,
    TextDistillation,
)
from ctxextend.training.pairs import Documents, PairDataset, PairedText, Pairs
from ctxextend.training.train_data import (
    HeldOutSequences,
    Masking,
    NumberedItems,
    SequenceSettings,
    SequencesWithPieces,
    Text,
    TrainingSequences,
)
from ctxextend.training.trainable import TrainableParameters
from ctxextend.training.training_task import LoadedTask, TrainingTask, needs_teacher
from ctxextend.training.training_text import HELD_OUT_TOKENS, MIN_WHOLE_WINDOWS

# Held-out sequences of a short run, where evaluation would take most of the time.
HELD_OUT_PER_STEP = 2
MIN_HELD_OUT = 4


@dataclass(frozen=True)
class TrainingSetup:
    """A model with its objective, trainable parameters and data, ready for training."""

    task: TrainingTask
    model: EvalModel
    objective: torch.nn.Module  # returns the ``loss`` to minimise
    trainable: TrainableParameters
    sequence_settings: SequenceSettings
    lr: float  # peak learning rate

    def training_items(self, count: int) -> NumberedItems:
        """Return the sequences or pairs to train on.

        Raises:
            DataError: There are too few documents or pairs.
        """
        text = self.task.text.train
        if isinstance(self.objective, TextDistillation):
            assert isinstance(text, Text)
            sequences = TrainingSequences(text, self.sequence_settings, count)
            if not self.objective.moves_windows:
                return sequences
            batch = self.task.settings.batch_size
            return SequencesWithPieces(sequences, self.objective.pieces, batch)
        return self._items(text, count, is_held_out=False)

    @cached_property
    def held_out(self) -> NumberedItems:
        """The sequences or pairs of the held-out loss.

        They are the same for every batch size, and for a resumed run. If windows train the table of
        a language model, they have all positions where held-out text is long enough: the loss in
        windows does not tell how the model reads long texts.

        Raises:
            DataError: There are too few documents or pairs.
        """
        task = self.task
        text = task.text.held_out
        if task.distils_table and isinstance(text, Text):  # read one by one, to pair their losses
            settings = self.sequence_settings
            longest = int(np.diff(text.spans).max())
            if self.model.kind != ENCODER and longest >= task.lengths.whole:
                settings = replace(settings, length=task.span)
            count = max(HELD_OUT_TOKENS // settings.length, MIN_WHOLE_WINDOWS)
            return HeldOutSequences(text, settings, count)
        affordable = max(HELD_OUT_TOKENS // task.length, 1)
        enough = max(HELD_OUT_PER_STEP * task.planned_steps, MIN_HELD_OUT)
        count = min(affordable, enough)
        return self._items(text, count, is_held_out=True)

    def _items(self, text: Text | PairedText, count: int, *, is_held_out: bool) -> NumberedItems:
        """Return sequences, or for contrastive training pairs; at most `count` if held out."""
        settings = self.sequence_settings
        if isinstance(text, Text) and not self.task.settings.contrastive:
            if is_held_out:
                return HeldOutSequences(text, settings, count)
            return TrainingSequences(text, settings, count)
        if isinstance(text, PairedText):
            source: Pairs | Documents = Pairs(text)
        else:
            source = Documents(text, settings, self.model.tokenizer.separator)
        return PairDataset(
            source,
            settings,
            count,
            is_held_out=is_held_out,
            model=self.model,
            batch=self.task.settings.batch_size,
        )


def set_up(loaded: LoadedTask) -> TrainingSetup:
    """Prepare a loaded model for training; `choose_parameters` changes the model itself.

    Raises:
        TrainingError: A setting does not apply to the model, or the teacher is unknown.
        CheckpointError: The tokenizer does not fit the model, or files lack weights to train.
        UnsupportedModelError: The model needs other inputs than text, or does not accept position
            ids.
    """
    task = loaded.task
    model = loaded.model
    texts = (task.text.train, task.text.held_out)
    eval_model.check_vocabulary(model, np.array([text.tokens.max() for text in texts], np.int64))
    objective = choose_objective(loaded)
    trainable = choose_parameters(loaded)
    sequences = SequenceSettings(
        special_before=model.tokenizer.before,
        special_after=model.tokenizer.after,
        length=task.length,
        usable_positions=task.span,
        kind=model.kind,
        masking=Masking.for_model(model) if model.kind == MASKED else None,
        skips_once=task.settings.window_skip,
        seed=task.settings.seed,
    )
    return TrainingSetup(
        task=task,
        model=model,
        objective=objective,
        trainable=trainable,
        sequence_settings=sequences,
        lr=task.settings.lr or default_learning_rate(trainable, task, model),
    )


def choose_objective(loaded: LoadedTask) -> torch.nn.Module:
    """Return the objective of a model.

    It is contrastive if the settings ask for it, distillation for other models without an LM head
    and for a table that windows train, and else language modelling. Contrastive training and
    language modelling also distil from the teacher if a weight is set.

    Raises:
        TrainingError: A setting does not apply to the model, or the teacher is unknown.
        CheckpointError: The teacher has other tokens or another hidden size than the model.
        UnsupportedModelError: The model does not accept position ids, which windows need.
    """
    task = loaded.task
    model = loaded.model
    settings = task.settings
    _check_objective(loaded)
    has_windows = task.length < task.span
    weight = settings.distill or 0.0
    weighted_teacher = loaded.teacher if weight > 0 else None
    if settings.contrastive:
        return Contrastive(model, weighted_teacher, weight, position_ids=has_windows)
    if model.kind != ENCODER and task.distils_table and weight > 0:
        assert loaded.teacher is not None  # see `_check_objective`
        if has_windows:
            return PositionDistillation(
                model, loaded.teacher, weight, short_positions=task.short_positions
            )
        return TextDistillation(
            model,
            loaded.teacher,
            weight,
            short_positions=task.short_positions,
            tokens=task.lengths.text,
        )
    if model.kind == ENCODER:
        assert loaded.teacher is not None  # see `_check_objective`
        is_sentence_encoder = (model.root / MODULES).is_file()
        poolings = read_pooling(model.root) if is_sentence_encoder else ()
        return Distillation(model, loaded.teacher, poolings, position_ids=has_windows)
    return LanguageModeling(
        model,
        weighted_teacher,
        weight,
        position_ids=has_windows,
        short_positions=task.short_positions,
    )


def _check_objective(loaded: LoadedTask) -> None:
    settings = loaded.task.settings
    model = loaded.model
    is_encoder = model.kind == ENCODER
    if settings.contrastive and not is_encoder:
        message = f"--contrastive applies to encoders without an LM head: {model.name} has one."
        raise TrainingError(message, "Remove --contrastive.")
    if is_encoder and settings.distill is not None and not settings.contrastive:
        message = (
            f"--distill applies to language models: {model.name} has no LM head, and is always "
            "distilled."
        )
        raise TrainingError(message, "Remove --distill.")
    if loaded.teacher is None and needs_teacher(settings, model.kind):
        reason = f"{model.name} has no LM head"
        if settings.distill:
            reason = f"{model.name} is to be distilled"
        message = f"{reason}, and its base checkpoint is unknown."
        raise TrainingError(message, "Pass --base to distil from it.")
