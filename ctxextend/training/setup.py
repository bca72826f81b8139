"""What a training run needs before its first step: the checkpoint, its base, the new rows, the text, the model."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.errors import CheckpointError, CtxextendError, TrainingError
from ctxextend.evaluation.embedding import read_pooling
from ctxextend.evaluation.eval_model import (
    ENCODER,
    MASKED,
    SENTENCE_MODULES,
    EvalModel,
    ModelFiles,
    check_tables,
    check_vocabulary,
    open_eval_model,
)
from ctxextend.plan.find_tables import open_model
from ctxextend.provenance import BaseCheckpoint, learned_before
from ctxextend.recipe import LEAST_LENGTH, Train
from ctxextend.tables.apply import learned_rows
from ctxextend.text_data import read_pieces
from ctxextend.training.devices import choose_precision, micro_batch_sizes
from ctxextend.training.memory import checkpoint_activations, disable_dropout
from ctxextend.training.objectives import Distillation, LanguageModeling
from ctxextend.training.run_folder import RunFolder
from ctxextend.training.train_data import (
    Masking,
    SequenceSettings,
    Tokens,
    check_enough,
    hold_out,
    open_tokens,
    write_tokens,
)
from ctxextend.training.trainable import Trainable, select_trainable

if TYPE_CHECKING:
    from accelerate import PartialState

# The peak learning rate of a position table, as a share of the root mean square of its values.
TABLE_RATE = 0.05
# The peak learning rate of all weights, at GPT-2 small's width; narrower models bear more.
RATE, WIDTH = 3e-4, 768
# The same of an encoder, whose vectors should stay what they are.
ENCODER_RATE = 2e-5

# Tokens of a sequence above which memory is worth some time.
LONG = 1024

# Tokens of held-out text on which the loss is measured, at most.
EVAL_TOKENS = 65_536


@dataclass(frozen=True)
class TrainingTask:
    """What is trained and how, before its weights are loaded.

    Attributes:
        files: The checkpoint.
        settings: How to train, its lengths and precision filled in.
        micro_batches: How many sequences a device may hold at a time, the largest first.
        base: The base checkpoint; None if unknown.
        rows: Which rows of the table are trained, shape (rows,); None is all.
    """

    files: ModelFiles
    settings: Train
    micro_batches: list[int]
    base: BaseCheckpoint | None
    rows: NDArray[np.bool_] | None = None
    teacher: EvalModel | None = None  # the base, where it is loaded already

    @property
    def span(self) -> int:
        """Positions that a sequence may use."""
        return self.settings.seq_len or self.files.max_len

    @property
    def length(self) -> int:
        """Tokens of a sequence, special tokens included."""
        return self.settings.window or self.span

    @property
    def text_length(self) -> int:
        """Tokens of a sequence without special tokens."""
        return self.length - self.files.tokenizer.num_special


@dataclass(frozen=True)
class TrainingSetup:
    """A model, its objective and its data, ready to be trained.

    Attributes:
        task: What is trained and how.
        model: The model, its weights in float32.
        objective: The module whose ``loss`` is trained.
        trainable: The parameters that are trained.
        sequences: How sequences are cut.
        train: The text to train on, shape (tokens,).
        held_out: The text to measure the loss on, shape (tokens,).
        lr: Peak learning rate.
    """

    task: TrainingTask
    model: EvalModel
    objective: torch.nn.Module
    trainable: Trainable
    sequences: SequenceSettings
    train: Tokens
    held_out: Tokens
    lr: float

    @property
    def eval_count(self) -> int:
        """Held-out sequences that the loss is measured on: whole batches, of which every device reads its share."""
        found, batch = len(self.held_out) // self.task.text_length, self.task.settings.batch_size
        most = min(found, max(EVAL_TOKENS // self.task.length, 1))
        return most - most % batch if most >= batch else most


def fill_in(settings: Train, name: str, files: ModelFiles, devices: "PartialState") -> tuple[Train, list[int]]:
    """Return how to train with its lengths and precision filled in, and the micro-batch sizes to try.

    Args:
        settings: How to train.
        name: What the user called the checkpoint.
        files: What is trained.
        devices: The processes that train.

    Raises:
        TrainingError: Lengths that the model does not have, or a batch size or precision that devices do not serve.
    """
    longest = files.max_len
    for flag, length in (("--seq-len", settings.seq_len), ("--window", settings.window)):
        if length is not None and length > longest:
            raise TrainingError(
                f"{flag} {length} is more than the {longest} positions of {name}.",
                f"Give it more first: ctxextend resize {name} --to {length}",
            )
    length = settings.window or settings.seq_len or longest
    least = max(LEAST_LENGTH, files.tokenizer.num_special + 2)
    if length < least:
        raise TrainingError(
            f"{name} reads {longest} tokens at once, and a sequence to train on has {least} at least.",
            f"Give it more first: ctxextend resize {name} --to {least}",
        )
    precision = choose_precision(devices, settings.precision)
    filled = replace(settings, seq_len=settings.seq_len or longest, precision=precision)
    return filled, micro_batch_sizes(devices, settings, length)


# ---- the base checkpoint and the new rows


def find_new_rows(files: ModelFiles, base: BaseCheckpoint | None, table: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows of a table are new, shape (rows,); reserved rows are not.

    Args:
        files: The checkpoint.
        base: Its base checkpoint.
        table: Its position table, shape (rows, hidden_size).

    Raises:
        TrainingError: It is unknown which, or none are.
    """
    name, reserved = files.ref.source, files.reserved_rows
    try:
        learned = _learned_rows(files, base, table)
    except CtxextendError as error:
        raise TrainingError(
            f"Which rows of {name} are new is not known. {error.message}",
            "Name what it was made of with --original, or train the whole table: --trainable positions.",
        ) from error
    rows = np.zeros(files.rows, np.bool_)
    rows[reserved:] = ~learned
    if not rows.any():
        raise TrainingError(
            f"{name} has no new rows: all were learned before.", "Train the whole table: --trainable positions."
        )
    return rows


def _learned_rows(files: ModelFiles, base: BaseCheckpoint | None, table: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows were learned, shape (positions,): by the recipes, or by comparison with the base's."""
    if base is None:
        raise CheckpointError("No recipe lies beside it that says what it was made of.")
    learned = learned_before(base.chain, files.table, files.reserved_rows, files.rows)
    if learned is not None and len(learned) == files.max_len:
        return learned
    opened = open_model(base.ref, typed=("train",))
    check_tables(opened.checkpoint, base.ref, base.hashes)
    name, reserved = opened.tables[0].name, files.reserved_rows
    before = read_floats(opened.checkpoint.holder(name), name)
    if before.shape[1:] != table.shape[1:] or before.dtype != table.dtype:
        raise CheckpointError(f"The table of {base.ref.source} is of another width or dtype.")
    return learned_rows(before[reserved:], table[reserved:])


# ---- the text


def open_texts(
    task: TrainingTask, folder: RunFolder, *, writes: bool, advance: Callable[[int], None] = lambda tokens: None
) -> tuple[Tokens, Tokens]:
    """Return the tokens to train on and those held out, each of shape (tokens,).

    They are tokenized into the run folder, unless they are there already.

    Args:
        task: What is trained.
        folder: The run folder.
        writes: Whether this process tokenizes; otherwise another has.
        advance: Called with the tokens written since the last call.

    Raises:
        DataError: There is no text, too little, or it cannot be read.
        OutputError: It cannot be written.
    """
    settings, tokenizer, length = task.settings, task.files.tokenizer, task.text_length
    # Short runs read more than they train on, so that the twentieth that is held out is enough to measure on.
    trained = math.ceil(settings.steps * settings.batch_size * length * 20 / 19)
    wanted = max(trained, 20 * EVAL_TOKENS) + 2 * task.span
    tokens, eval_tokens = folder.path / "tokens.bin", folder.path / "eval_tokens.bin"
    for path, data, count in (
        (tokens, settings.data, wanted),
        (eval_tokens, settings.eval_data, EVAL_TOKENS + length),
    ):
        if writes and data and not path.exists():
            pieces = read_pieces(data, settings.text_field)
            write_tokens(pieces, tokenizer.encode, tokenizer.separator, count, path, advance)
    if not settings.eval_data:
        return hold_out(open_tokens(tokens), length)
    texts = open_tokens(tokens), open_tokens(eval_tokens)
    for text, flag in zip(texts, ("--data", "--eval-data"), strict=True):
        check_enough(text, length, f"The text of {flag}")
    return texts


# ---- the model


def set_up(
    model: EvalModel, names: Mapping[str, str], task: TrainingTask, texts: tuple[Tokens, Tokens]
) -> TrainingSetup:
    """Set up a loaded model for training: its objective, what is frozen, and the learning rate.

    Args:
        model: The model, its weights in float32; it is changed in place.
        names: From `match_parameters`.
        task: What is trained.
        texts: The tokens to train on and those held out, each of shape (tokens,).

    Raises:
        CtxextendError: The objective does not fit the model, or what is trained cannot be written back.
    """
    check_vocabulary(model, np.array([text.max() for text in texts], np.int64))
    settings, tokenizer = task.settings, task.files.tokenizer
    objective = _objective(task, model)
    names = select_trainable(model.model, names, task.files.table, settings.trainable, model.name)
    disable_dropout(model.model)
    if task.length > LONG:
        checkpoint_activations(model.model)
    trainable = Trainable.freeze(model.model, names, names[task.files.table], task.rows)
    sequences = SequenceSettings(
        special_before=tokenizer.before,
        special_after=tokenizer.after,
        length=task.length,
        span=task.span,
        kind=model.kind,
        masking=Masking.for_model(model) if model.kind == MASKED else None,
        skip=settings.window_skip,
        seed=settings.seed,
    )
    lr = settings.lr or _learning_rate(trainable, settings.trainable, model.kind)
    return TrainingSetup(task, model, objective, trainable, sequences, *texts, lr)


def _objective(task: TrainingTask, model: EvalModel) -> torch.nn.Module:
    """Return the objective for a model, by its kind."""
    placed, base = task.span > task.length, task.base
    if model.kind != ENCODER:
        return LanguageModeling.of(model, placed=placed)
    teacher = task.teacher
    if teacher is None and base is not None:
        teacher = open_eval_model(base.ref, "fp32", base.hashes)
    if teacher is None:
        raise TrainingError(
            f"{model.name} has no head to train by, and what it was made of, which it could learn from, is not known.",
            "Name that with --original.",
        )
    is_sentence = (model.root / SENTENCE_MODULES).is_file()
    return Distillation.of(model, teacher, read_pooling(model.root) if is_sentence else None, placed=placed)


def _learning_rate(trainable: Trainable, what: str, kind: str) -> float:
    """Return the default peak learning rate.

    Adam moves each value by about the rate in a step, so a table's is a share of the size of its values.

    Raises:
        TrainingError: The table holds something else than numbers.
    """
    weight = trainable.model.get_parameter(trainable.table).detach()
    rate = float(TABLE_RATE * weight.square().mean().sqrt())
    if not math.isfinite(rate):
        raise TrainingError("The position table holds NaN or infinity.", "Look at its rows: ctxextend inspect.")
    of_everything = ENCODER_RATE if kind == ENCODER else RATE * (WIDTH / weight.shape[1]) ** 0.5
    return rate if rate and what != "all" else of_everything
