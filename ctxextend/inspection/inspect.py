"""Inspect a checkpoint: open it, measure its position tables, and collect all length limits."""

import math
import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from ctxextend.checkpoints.folder import Checkpoint, source_notes
from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.errors import CheckpointError
from ctxextend.inspection.scheme_report import PositionReport, SchemeReport, report_scheme
from ctxextend.inspection.stated_limits import (
    find_limits,
    library_limits,
    served_length,
    width_limits,
)
from ctxextend.inspection.table_report import Inspection, Limit, TableReport
from ctxextend.plan.find_tables import (
    FoundTable,
    OpenedModel,
    check_rows,
    describe_table,
    ignored_tensors,
    open_model,
    resizable_ref,
    tables_of_part,
)
from ctxextend.plan.untrained import untrained_rows
from ctxextend.recipe import RECIPE_FILE, CheckpointRef, accepts_settings
from ctxextend.recipe_file import Provenance, read_provenance
from ctxextend.tables.sinusoids import fit_layout, sinusoidal_rows
from ctxextend.tables.stats import RowRange, find_outliers, find_repetition, find_seams, measure

MAX_VALUES = 2**28  # of a computed table, whose size only the config states


@accepts_settings(CheckpointRef)
def inspect(
    reference: str | os.PathLike[str], *, part: str | None = None, **ref: Any
) -> Inspection:
    """Inspect the positions and length limits of a checkpoint: position tables, or wavelengths of
    rotary positions.

    Only headers and position tables are read from the weights; torch is imported only for torch
    files. A config that disagrees with its table is reported, not rejected.

    Args:
        reference: As in `resize`.
        part: Inspect only this table (``encoder``, ``decoder``, ...). Defaults to all tables.
        ref: Fields of the checkpoint reference, as in `resize`.

    Raises:
        SourceError: The checkpoint does not exist or cannot be reached.
        CheckpointError: A file is missing or malformed, or does not contain the table.
        UnsupportedModelError: The model has no supported position table.
        ResizeError: The model has no such part, or the arguments conflict.
    """
    return inspect_model(open_model(CheckpointRef(os.fspath(reference), **ref)), part)


def inspect_model(model: OpenedModel, part: str | None = None) -> Inspection:
    """Inspect an open checkpoint; see `inspect`."""
    checkpoint = model.checkpoint
    provenance = read_provenance(checkpoint)
    notes = [*source_notes(checkpoint)]
    recipe = provenance.chain[-1] if provenance else None
    if provenance is None and RECIPE_FILE in checkpoint.copied:
        notes.append(f"{RECIPE_FILE} is not a resize recipe.")
    buffers = {
        name for name in checkpoint.names for location, _ in model.tables if location.buffer(name)
    }
    parameters = sum(
        math.prod(entry.shape) for name, entry in checkpoint.entries.items() if name not in buffers
    )
    reports = {
        table.name: report_scheme(table, recipe)
        if table.location.table.scheme
        else _report(checkpoint, table, recipe, parameters)
        for table in model.tables
    }
    selected = [reports[name] for _, name in tables_of_part(model.tables, part)]
    notes += ignored_tensors(checkpoint, model.tables)
    notes += (
        report.question
        for report in selected
        if isinstance(report, SchemeReport) and report.question
    )
    limits = find_limits(model, selected)
    fixes = {
        report.name: _fix_command(
            resizable_ref(model), report, reports.values(), _agreed_length(report, limits)
        )
        for report in selected
    }
    limits = tuple(
        limit if limit.agrees else replace(limit, fix=fixes[limit.table]) for limit in limits
    )
    limits += tuple(width_limits(checkpoint, selected))
    facts = model.ref.source, str(checkpoint.root), model.architecture.family.model_type, parameters
    created_by = (recipe.method, recipe.trainable) if recipe else (None, None)
    tables = tuple(report for report in selected if isinstance(report, TableReport))
    schemes = tuple(report for report in selected if isinstance(report, SchemeReport))
    libraries = tuple(library_limits(checkpoint, limits, selected))
    return Inspection(*facts, *created_by, tables, schemes, limits, libraries, tuple(notes))


def _agreed_length(table: PositionReport, limits: Collection[Limit]) -> int:
    """Return the length on which all limits can agree: the largest that a limit states and the
    positions serve.
    """
    stated = [
        limit.tokens for limit in limits if limit.table == table.name and limit.tokens is not None
    ]
    if isinstance(table, TableReport) and table.trained_positions in stated:
        return (
            table.trained_positions
        )  # the limits keep texts from rows that no training has changed
    return max(length for length in (table.positions, *stated) if length <= served_length(table))


def _fix_command(
    ref: CheckpointRef, table: PositionReport, tables: Collection[PositionReport], to: int
) -> str | None:
    """Return the command that sets all limits to a length; None if tables of other lengths share
    the config key.
    """
    sharing = [other for other in tables if other.config_key == table.config_key]
    if len({other.key_value for other in sharing}) > 1:
        return None
    with_part = len({other.positions for other in tables}) > 1
    return (
        f"{ref.resize_command(part=table.part or None if with_part else None, to=to)} --fix-limits"
    )


def _report(
    checkpoint: Checkpoint, table: FoundTable, recipe: Provenance | None, parameters: int
) -> TableReport:
    (location, name), ((rows, hidden_size), dtype, file) = table, describe_table(checkpoint, table)
    check_rows(location, rows, name, has_config=False)
    first = location.reserved_rows
    if file:
        values = read_floats(checkpoint.names[name], name)
    elif rows * hidden_size > MAX_VALUES:
        message = (
            f"config.json: {location.config_key} requires {rows:,} computed rows, too many to "
            "inspect."
        )
        raise CheckpointError(message, "Correct config.json.")
    else:  # as transformers computes it, with zeros for padding
        values = sinusoidal_rows(np.arange(rows), hidden_size, location.table.layout).astype(
            np.float32
        )
        values[max(first - 1, 0) : first] = 0
    stats, repetition = measure(values[first:]), find_repetition(values[first:])
    fit = None if stats.nonfinite else fit_layout(values[first:], location.layout)
    if fit and fit.first_deviating_row is not None:
        fit = replace(fit, first_deviating_row=fit.first_deviating_row + first)
    new_rows: tuple[RowRange, ...] | None = None  # of a resize, from the recipe
    lengths = (
        {repetition.period} if repetition.period else set[int]()
    )  # of older tables, whose multiples may be seams
    before, after = recipe.rows.get(name, (0, 0)) if recipe else (0, 0)
    if recipe is not None and after == rows and before > first:
        options = replace(recipe.settings, method=recipe.methods.get(name, recipe.settings.method))
        new_rows = ((first + options.kept_rows(before - first), rows),) if after > before else ()
        lengths |= {location.positions(before)} if after > before else set()
    with np.errstate(invalid="ignore", over="ignore"):
        reserved_norms = np.linalg.norm(values[:first].astype(np.float64), axis=1)
    positions = location.positions(rows)
    stated_in = f"{file} {name}" if file else f"config.json {location.config_key}"
    shared = (
        name,
        location.part,
        location.config_key,
        positions,
        location.key_value(positions),
        stated_in,
        location,
    )
    return TableReport(
        *shared,
        *(file, rows, first, hidden_size, dtype),
        bytes=values.nbytes if file else 0,
        share=values.size / parameters if file else 0.0,
        new_rows=new_rows,
        norms=np.concatenate([reserved_norms, stats.norms]),
        sinusoidal=fit,
        stats=stats,
        outliers=find_outliers(stats.norms, stats.cosines),
        repetition=repetition,
        seams=find_seams(stats, lengths),
        untrained=untrained_rows(checkpoint, location, values[first:]),
        values=values,
    )
