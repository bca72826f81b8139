"""Which rows of a position table are new, according to recipes or the base checkpoint."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import CheckpointError, CtxextendError, TrainingError, counted
from ctxextend.lab.eval_model import ResizableFiles
from ctxextend.opening.opened_model import open_model
from ctxextend.provenance import BaseCheckpoint, Provenance, check_source, learned_before
from ctxextend.settings import FROZEN, Train
from ctxextend.tables.apply import learned_rows

BoolRows = NDArray[np.bool_]  # one value per row or position


def new_rows(files: ResizableFiles, base: BaseCheckpoint | None) -> BoolRows:
    """Return a mask of new rows, shape (rows,); reserved rows are False.

    It is computed from recipes or, if they do not tell, by comparing with the base.

    Raises:
        TrainingError: It is not known which rows are new, or none are.
    """
    name = files.ref.source
    unusable = files.unusable_rows
    try:
        if base is None:
            raise CheckpointError("no recipe names its base checkpoint.")
        learned = learned_before(base.provenance, files.table_name, unusable, files.rows)
        if learned is None or len(learned) != files.max_len:
            learned = _learned_rows(files, base)
    except CtxextendError as error:
        message = f"Cannot determine which rows of {name} are new: {error.message}"
        hint = (
            "Pass its base checkpoint with --base, or train the whole table with --trainable "
            "positions."
        )
        raise TrainingError(message, hint) from error
    if learned.all():
        message = f"{name} has no new rows: all are learned rows."
        raise TrainingError(message, "Train them with --trainable positions.")
    return np.concatenate([np.zeros(unusable, np.bool_), ~learned])


def _learned_rows(files: ResizableFiles, base: BaseCheckpoint) -> BoolRows:
    """Return a mask of the rows that a table and that of its base share, shape (positions,)."""
    opened = open_model(base.ref)
    check_source(opened.checkpoint, base.ref, base.fingerprint)
    unusable = files.unusable_rows
    tables = []
    for table in (opened.read_table(), files.opened.read_table()):
        if table is not None:
            tables.append(table[unusable:])
    if len({(table.shape[1:], table.dtype) for table in tables}) != 1 or len(tables) != 2:
        message = f"The table of {base.ref.source} has another width or dtype."
        raise CheckpointError(message)
    return learned_rows(*tables)


def untrained_row_warnings(
    files: ResizableFiles, settings: Train, provenance: Provenance | None
) -> Iterator[str]:
    """Yield a warning if no sequence reaches some new rows.

    There is none if an earlier run may have trained them.
    """
    span = settings.seq_len or files.max_len
    if span >= files.max_len or not files.tables[0].rows or settings.trainable in FROZEN:
        return
    if provenance is None or provenance.trainable not in FROZEN:
        return
    learned = learned_before(provenance, files.table_name, files.unusable_rows, files.rows)
    if learned is None:
        return
    untrained = int((~learned[span:]).sum())
    if untrained:
        window = settings.window or span
        yield (
            f"--seq-len {span} leaves {counted(untrained, 'new row')} untrained, from position "
            f"{span} on. Remove it, or use --window {window} instead, which trains all positions."
        )


def short_positions(files: ResizableFiles, base: BaseCheckpoint | None, span: int) -> int | None:
    """Return the positions that the base has; None if unknown, or if sequences use no others.

    They are stated by the recipe or, of a base that the user named, by its files.
    """
    if base is None:
        return None
    if base.provenance is None:
        length = open_model(base.ref).tables[0].length()
    else:
        first = base.provenance.steps[0]
        length = first.max_len_before
        if files.table_name in first.rows:
            rows, _ = first.rows[files.table_name]
            length = rows - files.unusable_rows
    if isinstance(length, int) and 0 < length < span:
        return length
    return None
