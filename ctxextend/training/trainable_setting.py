"""Choose which parameters to train from the positions of a checkpoint."""

from dataclasses import replace

from ctxextend.errors import TrainingError
from ctxextend.evaluation.eval_model import ResizableFiles
from ctxextend.settings import Train
from ctxextend.tables.layouts import find_formula
from ctxextend.training.training_source import refuse_rows, without_rows


def choose_trainable(files: ResizableFiles, settings: Train) -> tuple[Train, tuple[str, ...]]:
    """Fill in what to train: by default the table, or all else if it is sinusoidal.

    Returns:
        The settings with `trainable`, and notes.

    Raises:
        TrainingError: The requested rows do not exist, or are constant.
    """
    requested = settings.trainable
    if settings.contrastive and not requested and not settings.lora:
        return replace(settings, trainable="all"), ()
    if not files.has_rows:
        return _without_rows(files, settings)
    if requested == "all-but-positions":
        return settings, ()
    if not _is_trained(files):
        reason = f"{files.table_name} has constant rows"
        if requested in ("new", "positions"):
            message = f"--trainable {requested}: {reason}."
            raise TrainingError(message, "Use --trainable all-but-positions.")
        return _frozen_table(settings, reason)
    if requested or not _has_formula(files):
        return replace(settings, trainable=requested or "positions"), ()
    reason = f"{files.table_name} equals its formula (train it with --trainable positions)"
    return _frozen_table(settings, reason)


def _without_rows(files: ResizableFiles, settings: Train) -> tuple[Train, tuple[str, ...]]:
    scheme = files.tables[0].scheme
    reason = without_rows(scheme)
    requested = settings.trainable
    if requested in ("new", "positions"):
        refuse_rows(scheme, settings)
    trainable = "all-but-positions" if settings.lora else "all"
    notes = tuple[str, ...]()
    if not requested:
        trained = "Adapters" if settings.lora else "All weights"
        notes = (f"{trained} are trained: {reason}.",)
    return replace(settings, trainable=trainable), notes


def _frozen_table(settings: Train, reason: str) -> tuple[Train, tuple[str, ...]]:
    trained = "adapters" if settings.lora else "all other weights"
    note = f"{reason}, so it stays frozen: {trained} are trained."
    return replace(settings, trainable="all-but-positions"), (note,)


def _is_trained(files: ResizableFiles) -> bool:
    """Whether the first table is stored, and a parameter of the model."""
    is_frozen = files.tables[0].stored_rows == "frozen"
    return files.table_name in files.checkpoint.weights.entries and not is_frozen


def _has_formula(files: ResizableFiles) -> bool:
    """Whether the learned rows of the first table are those of a formula."""
    table = files.tables[0]
    rows = files.checkpoint.weights.read_floats(table.name)
    formula = find_formula(rows[table.reserved_rows :], table.initial_layout)
    return formula is not None
