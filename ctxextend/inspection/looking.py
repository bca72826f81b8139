"""From a reference to an inspection: the checkpoint opened, its tables read, measured and reported."""

import math
import os
import shlex

import numpy as np

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.weights import read_floats
from ctxextend.errors import RecipeError
from ctxextend.families.lookup import TableLocation, nested
from ctxextend.inspection.clients import client_limits
from ctxextend.inspection.limits import Measured, find_limits, readers, with_mends
from ctxextend.inspection.reports import Inspection, TableReport
from ctxextend.plan.find_tables import check_rows, describe_table, of_part, open_model
from ctxextend.provenance import Provenance, read_provenance
from ctxextend.recipe import CheckpointRef, flag_words
from ctxextend.tables.stats import RowRange, find_outliers, find_repetition, find_seams, find_untrained_rows, measure

__all__ = ["inspect", "inspect_subject"]


# What transformers' configs call the standard deviation of their initialiser, and what it is where they say nothing.
INITIALIZERS = ("initializer_range", "init_std", "initializer_factor")
DEFAULT_DEVIATION = 0.02
# That of torch.nn.Embedding.
TORCH_DEVIATION = 1.0


def inspect(
    reference: str | os.PathLike[str],
    *,
    part: str | None = None,
    table: str | None = None,
    config_key: str | None = None,
    offset: int = 0,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    family: str | None = None,
) -> Inspection:
    """Look at a checkpoint's position tables and at everything that states their length.

    The headers and the tables are read, and nothing else of the weights; torch is imported for torch files alone. A
    config that disagrees with its table is shown, not refused.

    Args:
        reference: As in `plan_resize`.
        part: Which of a model's tables; None is all.
        table: As in `plan_resize`.
        config_key: As in `plan_resize`.
        offset: As in `plan_resize`.
        revision: As in `plan_resize`.
        subfolder: As in `plan_resize`.
        variant: As in `plan_resize`.
        family: As in `plan_resize`.

    Raises:
        SourceError: Nothing is at that reference, or it cannot be reached.
        CheckpointError: A file is missing or malformed, or it holds no such table.
        UnsupportedModelError: The model has no learned position table that is known here.
        ResizeError: The model has no such part, or flags have no meaning together.
    """
    ref = CheckpointRef(os.fspath(reference), revision, subfolder, variant, family, table, config_key, offset)
    return inspect_subject(ref, part)


def inspect_subject(ref: CheckpointRef, part: str | None = None) -> Inspection:
    """Look at what a command names; see `inspect`.

    Raises:
        CtxextendError: As `inspect`.
    """
    opened = open_model(ref)
    checkpoint, architecture, found = opened.checkpoint, opened.architecture, opened.tables
    names_chosen = {name for _, name in of_part(found, part)}
    every = [_measured(checkpoint, place, name) for place, name in found]
    chosen = [table for table in every if table.name in names_chosen]
    limits = with_mends(list(find_limits(checkpoint, architecture, chosen)), _mends(ref, every))
    clients = [
        client
        for tokenizer, reader in readers(chosen).items()
        for client in client_limits(checkpoint, limits, reader, tokenizer)
    ]
    written, notes = None, [*checkpoint.source.notes, *checkpoint.stored.notes]
    try:
        written = read_provenance(checkpoint)
        written = written and written.chain[-1]
    except RecipeError as error:
        notes.append(error.message)
    parameters = _parameters(checkpoint, every)
    reports = tuple(_report(checkpoint, table, written, parameters) for table in chosen)
    made = (written.method, written.trainable) if written else (None, None)
    names = ref.source, str(checkpoint.root), architecture.family.model_type
    return Inspection(*names, parameters, *made, reports, tuple(limits), tuple(clients), tuple(notes))


def _measured(checkpoint: Checkpoint, place: TableLocation, name: str) -> Measured:
    shape, _, file = describe_table(checkpoint, name)
    check_rows(place, shape[0], name, has_config=False)
    return Measured(place, name, file, shape[0])


def _mends(ref: CheckpointRef, tables: list[Measured]) -> dict[str, str | None]:
    """Return, for each table, the command that makes everything agree with it.

    None where tables that have their length by one key have another: then nothing in the folder can say it.
    """
    lengths = {table.positions for table in tables}
    values: dict[str, set[int]] = {}
    for table in tables:
        values.setdefault(table.place.config_key, set()).add(table.place.key_value(table.positions))
    at_odds = {key for key, found in values.items() if len(found) > 1}
    return {
        table.name: None if table.place.config_key in at_odds else _mend(ref, table, with_part=len(lengths) > 1)
        for table in tables
    }


def _mend(ref: CheckpointRef, table: Measured, *, with_part: bool) -> str:
    flags = {
        **{"revision": ref.revision, "subfolder": ref.subfolder, "variant": ref.variant, "family": ref.model_type},
        **{"part": table.place.part or None if with_part else None, "to": table.positions},
        **{"table": ref.table, "offset": ref.reserved_rows or None, "config-key": ref.config_key},
    }
    return shlex.join(["ctxextend", "resize", ref.source, *flag_words(flags), "--mend-limits"])


def _parameters(checkpoint: Checkpoint, tables: list[Measured]) -> int:
    places = [table.place for table in tables]
    return sum(
        math.prod(entry.shape)
        for file in checkpoint.weights
        for entry in file.entries.values()
        if not any(place.buffer(entry.name) for place in places)
    )


def _report(checkpoint: Checkpoint, found: Measured, written: Provenance | None, parameters: int) -> TableReport:
    place, file = found.place, checkpoint.holder(found.name)
    entry, values = file.entries[found.name], read_floats(file, found.name)
    behind = values[place.reserved_rows :]
    stats = measure(behind)
    new_rows, old = _new_rows(found, written)
    repeated = find_repetition(behind)
    lengths = {length for length in (old, repeated.period) if length}
    with np.errstate(invalid="ignore", over="ignore"):
        offset_norms = np.linalg.norm(values[: place.reserved_rows].astype(np.float64), axis=1)
    return TableReport(
        name=found.name,
        part=place.part,
        file=found.file,
        config_key=place.config_key,
        rows=found.rows,
        positions=found.positions,
        offset=place.reserved_rows,
        hidden_size=entry.shape[1],
        dtype=entry.dtype,
        bytes=entry.size,
        share=math.prod(entry.shape) / parameters,
        new_rows=new_rows,
        offset_norms=offset_norms,
        stats=stats,
        outliers=find_outliers(stats.norms, stats.cosines),
        repetition=repeated,
        seams=find_seams(stats, lengths),
        untrained=find_untrained_rows(behind, stats, _deviations(checkpoint, found)),
        values=values,
    )


def _new_rows(found: Measured, written: Provenance | None) -> tuple[tuple[RowRange, ...] | None, int | None]:
    """Return the rows that a resize made and the positions there were before, where the recipe beside it says so."""
    before, after = written.rows.get(found.name, (0, 0)) if written else (0, 0)
    place = found.place
    if written is None or after != found.rows or before <= place.reserved_rows:
        return None, None
    if after <= before:
        return (), None
    options = written.settings.options
    start = place.reserved_rows + options.kept_of(before - place.reserved_rows)
    return (((start, found.rows),), place.positions(before)) if start < found.rows else (None, None)


def _deviations(checkpoint: Checkpoint, found: Measured) -> tuple[float, ...]:
    """Return the standard deviations that the table's initialiser may have had."""
    configs = [nested(checkpoint.config, found.place.path), checkpoint.config]
    stated = (config.get(key) for config in configs if hasattr(config, "get") for key in INITIALIZERS)
    known = [float(value) for value in stated if isinstance(value, int | float) and 0 < value < 1e6]
    return tuple(dict.fromkeys((*known, DEFAULT_DEVIATION, TORCH_DEVIATION)))
