"""Choose which parameters to train from the positions of a checkpoint."""

from dataclasses import replace

from ctxextend.errors import TrainingError
from ctxextend.lab.eval_model import ResizableFiles
from ctxextend.settings import Train
from ctxextend.tables.layouts import find_formula


def choose_trainable(files: ResizableFiles, settings: Train) -> tuple[Train, tuple[str, ...]]:
    """Fill in what to train: by default the table, or all else if it is sinusoidal.

    Returns:
        The settings with `trainable`, and notes.

    Raises:
        TrainingError: The requested rows do not exist, or are constant.
    """
    requested = settings.trainable
    trains_rows = requested in ("new", "positions")
    table = files.tables[0]
    if settings.contrastive and not requested and not settings.lora:
        return replace(settings, trainable="all"), ()
    if not table.rows:
        reason = f"its positions ({table.scheme}) have no rows to train"
        trained = "All weights"
        trainable = "all"
        hint = "Use --trainable all."
        if settings.lora:
            trained = "Adapters"
            trainable = "all-but-positions"
            hint = "Remove --trainable."
        if trains_rows:
            raise TrainingError(f"--trainable {requested}: {reason}.", hint)
        settings = replace(settings, trainable=trainable)
        if requested:
            return settings, ()
        return settings, (f"{trained} are trained: {reason}.",)
    if requested == "all-but-positions":
        return settings, ()
    if table.stored_rows == "frozen" or table.name not in files.checkpoint.weights.entries:
        reason = f"{table.name} has constant rows"
        if trains_rows:
            message = f"--trainable {requested}: {reason}."
            raise TrainingError(message, "Use --trainable all-but-positions.")
    elif requested:
        return settings, ()
    else:
        learned = files.checkpoint.weights.read(table.name)[table.reserved_rows :]
        if find_formula(learned, table.initial_layout) is None:
            return replace(settings, trainable="positions"), ()
        reason = f"{table.name} equals its formula (train it with --trainable positions)"
    trained = "all other weights"
    if settings.lora:
        trained = "adapters"
    note = f"{reason}, so it stays frozen: {trained} are trained."
    return replace(settings, trainable="all-but-positions"), (note,)
