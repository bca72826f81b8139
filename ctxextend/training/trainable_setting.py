"""Choose which parameters to train from the positions of a checkpoint."""

from dataclasses import replace

from ctxextend.errors import TrainingError
from ctxextend.lab.eval_model import ResizableFiles
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
    if not files.tables[0].rows:
        return _without_rows(files, settings)
    if requested == "all-but-positions":
        return settings, ()
    table = files.tables[0]
    is_frozen = files.tables[0].stored_rows == "frozen"
    if is_frozen or table.name not in files.checkpoint.weights.entries:
        reason = f"{files.table_name} has constant rows"
        if requested in ("new", "positions"):
            message = f"--trainable {requested}: {reason}."
            raise TrainingError(message, "Use --trainable all-but-positions.")
        return _frozen_table(settings, reason)
    if requested:
        return settings, ()
    learned = files.checkpoint.weights.read(table.name)[table.reserved_rows :]
    if find_formula(learned, table.initial_layout) is None:
        return replace(settings, trainable="positions"), ()
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
