"""Inspect a checkpoint: open it, measure its position tables, and collect all length limits."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.errors import RemoteWeightsError
from ctxextend.inspection.fixes import with_fixes
from ctxextend.inspection.inspection_result import Inspection
from ctxextend.inspection.stated_limits import find_limits
from ctxextend.keywords import keyword_arguments
from ctxextend.opening.opened_model import OpenedModel, open_model
from ctxextend.positions.position_report import PositionReport
from ctxextend.positions.positions import of_part, positive_numbers
from ctxextend.provenance import read_provenance
from ctxextend.settings import CheckpointRef, Inspect

INSPECT_FLAGS = ("models", "check", "format", "report", "plot")  # of the command only


@keyword_arguments(CheckpointRef, Inspect, without=INSPECT_FLAGS)
def inspect(ref: CheckpointRef, settings: Inspect) -> Inspection:
    """Inspect the positions and length limits of a checkpoint.

    Positions are tables of rows, or wavelengths of rotary positions.
    Only headers and position tables are read from the weights; torch is imported only for torch
    files. A config that disagrees with its table is reported, not rejected.

    Raises:
        SourceError: The checkpoint does not exist or cannot be reached.
        CheckpointError: A file is missing or malformed, or does not contain the table.
        UnsupportedModelError: The model has no supported position table.
        ResizeError: The model has no such part, or the arguments conflict.
    """
    part = settings.part
    try:
        return inspect_model(open_model(ref, only_headers=True), part)
    except RemoteWeightsError:  # it has a table of rows
        return inspect_model(open_model(ref), part)


def inspect_model(model: OpenedModel, part: str | None = None) -> Inspection:
    """Inspect an open checkpoint; see `inspect` for the arguments and errors."""
    resize = None
    method = None
    trainable = None
    provenance = read_provenance(model.checkpoint)
    if provenance is not None:
        resize = provenance.resize
        method = resize.method
        trainable = provenance.trainable
    parameters = _count_parameters(model)
    # Of all tables, since a command that fixes a limit must suit those that are not selected too.
    reports = dict[str, PositionReport]()
    for table in model.tables:
        reports[table.name] = table.report(model.checkpoint, resize, parameters)
    selected = [reports[table.name] for table in of_part(model.tables, part)]
    groups: dict[str, list[Any]] = {"tables": [], "schemes": []}
    for report in selected:
        groups[report.group].append(report)
    limits = list(with_fixes(model, reports, find_limits(model, selected)))
    notes = _notes(model, selected, has_recipe=provenance is not None)
    return Inspection(
        source=model.ref.source,
        folder=str(model.checkpoint.root),
        model_type=model.architecture.family.model_type,
        parameters=parameters,
        method=method,
        trainable=trainable,
        tables=tuple(groups["tables"]),
        schemes=tuple(groups["schemes"]),
        limits=tuple(limits),
        notes=tuple(notes),
    )


def _count_parameters(model: OpenedModel) -> int:
    """Return the number of parameters of a checkpoint, without position buffers."""
    count = 0
    for name, entry in model.checkpoint.weights.entries.items():
        if not any(table.buffer(name) for table in model.tables):
            count += math.prod(entry.shape)
    return count


def _notes(
    model: OpenedModel, selected: Sequence[PositionReport], *, has_recipe: bool
) -> Iterator[str]:
    """Yield how the reference was resolved, and what the files do not tell."""
    checkpoint = model.checkpoint
    for note in checkpoint.source.notes:
        yield note.text
    yield from checkpoint.facts
    if not has_recipe and RECIPE_FILE in checkpoint.copied:
        yield f"{RECIPE_FILE} is not a resize recipe."
    for table in model.tables:
        if table.ignores_stored_rows and table.name in checkpoint.weights.entries:
            yield (
                f"transformers computes the rows of {table.name} and ignores the stored ones, "
                "which stay as they are."
            )
    yield from _attention_windows(checkpoint)
    for report in selected:
        if report.question:
            yield report.question


def _attention_windows(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield how far tokens attend in a model with attention windows, as Longformer."""
    windows = positive_numbers(checkpoint.config.get("attention_window"))
    if windows:
        sides = ", ".join(str(window // 2) for window in sorted({*windows}))
        yield f"Each token attends to {sides} tokens on either side (attention_window)."
