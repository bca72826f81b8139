"""What a training needs before a weight is loaded: the checkpoint, its length, which rows are new, and the text."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.errors import CheckpointError, CtxextendError, RecipeError, TrainingError
from ctxextend.evaluation.eval_model import EvalModel, ModelFiles, check_tables, open_files
from ctxextend.plan.cautions import cautions_of_files
from ctxextend.plan.find_tables import open_model
from ctxextend.plan.plan import plan_recipe, table_hash
from ctxextend.provenance import learned_before, read_provenance
from ctxextend.recipe import LEAST_LENGTH, RECIPE_FILE, CheckpointRef, Recipe, Train
from ctxextend.tables.apply import learned_rows
from ctxextend.text_data import read_pieces, shared
from ctxextend.training.packing import check_enough, open_tokens, pack, split
from ctxextend.training.work import Work

__all__ = ["Opened", "Original", "Texts", "fitted_settings", "open_texts", "open_trained"]

Tokens = NDArray[np.int32]
Mask = NDArray[np.bool_]

# Tokens of held-out text on which a loss is measured, at most.
EVAL_TOKENS = 65_536


@dataclass(frozen=True)
class Original:
    """What a checkpoint was made of.

    Attributes:
        ref: As the user named it.
        hashes: The SHA-256 that its tables should have, by their names, as far as a recipe says so.
        learned: Which rows of the table were its own, shape (positions,), where recipes say so; else None.
        reader: It, where it is loaded already.
    """

    ref: CheckpointRef
    hashes: Mapping[str, str] = field(default_factory=dict)
    learned: Mask | None = None
    reader: EvalModel | None = None


@dataclass(frozen=True)
class Opened:
    """A checkpoint that is to be trained, its weights not loaded yet.

    Attributes:
        files: What is known of it.
        settings: How it is trained, its lengths filled in.
        original: What it was made of; None where that is not known.
        rows: Which rows of its table are trained, shape (rows,); None is all.
        warnings: What the user should know of its resize, and of the text that the loss is measured on.
        notes: How the source was understood.
        begun_for: Steps that a run that goes on was first asked for; None is as many as it has now.
    """

    files: ModelFiles
    settings: Train
    original: Original | None
    rows: Mask | None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    begun_for: int | None = None

    @property
    def span(self) -> int:
        """Positions that a sequence reaches over."""
        return self.settings.seq_len or self.files.max_len

    @property
    def length(self) -> int:
        """Tokens of a sequence, special ones included."""
        return self.settings.window or self.span

    @property
    def room(self) -> int:
        """Tokens of text in a sequence."""
        return self.length - self.files.tokenizer.num_special


@dataclass(frozen=True)
class Texts:
    """The text as tokens.

    Attributes:
        train: What is trained on, shape (tokens,).
        held_out: What the loss is measured on, shape (tokens,).
    """

    train: Tokens
    held_out: Tokens


def open_trained(recipe: Recipe, work: Work) -> Opened:
    """Resize the checkpoint if the run does that first, and read all but its weights.

    Args:
        recipe: What is asked for.
        work: Where the resized checkpoint goes, or is already.

    Raises:
        CtxextendError: As `check_texts`, `plan_recipe`, `ResizePlan.execute` and `open_files`.
        TrainingError: Lengths do not fit the model, or nobody knows which rows are new.
    """
    ref, warnings = recipe.checkpoint, tuple[str, ...]()
    if recipe.resize is not None:
        plan = plan_recipe(recipe)
        warnings = plan.warnings
        if not work.resized.exists():
            plan.execute(work.resized)
        ref = CheckpointRef(str(work.resized), variant=ref.variant, model_type=ref.model_type)
    files = open_files(open_model(ref, typed=("train",)))
    if recipe.keeps_code:
        files = replace(files, opened=files.opened.with_code())
    settings = fitted_settings(recipe, files)
    original = _original(recipe, files)
    rows = _new_rows(files, original) if settings.trainable == "new" else None
    if recipe.resize is None:
        warnings = tuple(cautions_of_files(files.checkpoint))
    notes = files.checkpoint.source.notes if recipe.resize is None else ()
    begun_for = work.begun_for if work.begun_for != settings.steps else None
    warnings = (*warnings, *_cautions(settings, begun_for))
    return Opened(files, settings, original, rows, warnings, notes, begun_for)


def _cautions(settings: Train, begun_for: int | None) -> Iterator[str]:
    """Yield what the user should know of the text that the loss is measured on, and of a run that goes on."""
    if settings.eval_data and (both := shared(settings.eval_data, settings.data)):
        names = ", ".join(map(str, both[:3]))
        yield f"{names} is trained on and measured on: the held-out loss is not one of new text."
    if begun_for is not None:
        yield (
            f"It was begun for {begun_for:,} steps, and ends at {settings.steps:,}: the learning rates until the stop "
            f"were those of {begun_for:,}, so {RECIPE_FILE} alone does not make the same weights again."
        )


def fitted_settings(recipe: Recipe, files: ModelFiles) -> Train:
    """Return how to train, its lengths filled in and seen to fit the model.

    Raises:
        TrainingError: The run asks for no training, or for lengths that the model does not have.
    """
    if recipe.train is None:
        raise TrainingError("The run asks for no training.", "Say what to train on: --data and --steps.")
    settings, longest, name = recipe.train, files.max_len, recipe.checkpoint.source
    for flag, length in (("--seq-len", settings.seq_len), ("--window", settings.window)):
        if length is not None and length > longest:
            raise TrainingError(
                f"{flag} {length} is more than the {longest} positions of {name}.",
                f"Give it more first: ctxextend resize {name} --to {length}",
            )
    settings = replace(settings, seq_len=settings.seq_len or longest)
    least = max(LEAST_LENGTH, files.tokenizer.num_special + 2)
    if (settings.window or settings.seq_len or 0) < least:
        raise TrainingError(
            f"{name} reads {longest} tokens at once, and a sequence to train on has {least} at least.",
            f"Give it more first: ctxextend resize {name} --to {least}",
        )
    return settings


def _original(recipe: Recipe, files: ModelFiles) -> Original | None:
    """Return what a checkpoint was made of: what the run says, what it resizes, or what the recipe beside it says."""
    if recipe.train is not None and recipe.train.original is not None:
        return Original(CheckpointRef(recipe.train.original))
    try:
        written = read_provenance(files.checkpoint)
    except RecipeError:  # a file of that name that is none of ours says nothing
        return None
    if written is None:
        return None
    first = written.chain[-1]
    ref = recipe.checkpoint if recipe.resize is not None else first.base
    learned = learned_before(written.chain, files.table, files.reserved_rows, files.rows)
    return Original(ref, first.hashes, learned)


def _new_rows(files: ModelFiles, original: Original | None) -> Mask:
    """Return which rows of a table were not learned, shape (rows,); those in front of position 0 are none.

    Raises:
        TrainingError: Nobody knows, or there are none.
    """
    name, offset = files.ref.source, files.reserved_rows
    try:
        learned = _learned(files, original)
    except CtxextendError as error:
        raise TrainingError(
            f"Which rows of {name} are new is not known. {error.message}",
            "Name what it was made of with --original, or train the whole table: --trainable positions.",
        ) from error
    rows = np.zeros(files.rows, np.bool_)
    rows[offset:] = ~learned
    if not rows.any():
        raise TrainingError(
            f"{name} has no new rows: all were learned before.", "Train the whole table: --trainable positions."
        )
    return rows


def _learned(files: ModelFiles, original: Original | None) -> Mask:
    """Return which rows behind the offset were learned: as recipes tell, or by comparison with the original's.

    Raises:
        CtxextendError: There is no original that it could be compared with.
    """
    if original is None:
        raise CheckpointError("No recipe lies beside it that says what it was made of.")
    if original.learned is not None and len(original.learned) == files.max_len:
        return original.learned
    table = read_floats(files.checkpoint.holder(files.table), files.table)
    before = _table_of(original)
    if before.shape[1:] != table.shape[1:] or before.dtype != table.dtype:
        raise CheckpointError(f"The table of {original.ref.source} is of another width or dtype.")
    return learned_rows(before[files.reserved_rows :], table[files.reserved_rows :])


def _table_of(original: Original) -> NDArray[Any]:
    opened = open_model(original.ref, typed=("train",))
    check_tables(opened.checkpoint, original.ref, original.hashes)
    name = opened.tables[0].name
    return read_floats(opened.checkpoint.holder(name), name)


def open_texts(opened: Opened, work: Work, *, packs: bool, progress: Callable[[int], None] | None = None) -> Texts:
    """Return the text as tokens, cut and written into the work folder unless it lies there already.

    Args:
        opened: What is trained.
        work: Where it goes.
        packs: Whether this process writes it; else another has.
        progress: Told how many tokens were written since the last call.

    Raises:
        DataError: There is none, too little, or it cannot be read.
        OutputError: It cannot be written.
    """
    settings = opened.settings
    if packs:
        _pack(opened, settings.data, _wanted(opened), work.tokens, progress)
        if settings.eval_data:
            _pack(opened, settings.eval_data, EVAL_TOKENS + opened.room, work.eval_tokens, progress)
    tokens = open_tokens(work.tokens)
    if not settings.eval_data:
        return Texts(*split(tokens, opened.room))
    held_out = open_tokens(work.eval_tokens)
    for part, flag in ((tokens, "--data"), (held_out, "--eval-data")):
        check_enough(part, opened.room, f"The text of {flag}")
    return Texts(tokens, held_out)


def _wanted(opened: Opened) -> int:
    """Return how many tokens of text a run can use: what is trained on once, what is held out, and room for jumps.

    Short runs read more than they train on, so that the twentieth that is held out is not too little to measure on.
    """
    trained = opened.settings.steps * opened.settings.batch_size * opened.room
    return max(math.ceil(trained * 20 / 19), 20 * EVAL_TOKENS) + 2 * opened.span


def _pack(opened: Opened, data: Sequence[str], wanted: int, path: Path, progress: Callable[[int], None] | None) -> None:
    if path.exists():
        return
    files, pieces = opened.files, read_pieces(data, opened.settings.text_field)
    pack(pieces, files.tokenizer.encode, files.tokenizer.separator, wanted, path, progress)


def table_sha(files: ModelFiles) -> str:
    """Return the SHA-256 of a checkpoint's table."""
    return table_hash(read_floats(files.checkpoint.holder(files.table), files.table))
