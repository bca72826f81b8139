"""A checkpoint as it is looked at: its position tables, measured, and what in the folder states their length."""

import math
import os
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint, open_checkpoint
from ctxextend.checkpoints.source import resolve_source
from ctxextend.checkpoints.weights import read_floats
from ctxextend.errors import RecipeError, ResizeError
from ctxextend.families.architecture import Architecture, nested
from ctxextend.inspection.limits import ClientLimit, Limit, Measured, client_limits, find_limits, readers, with_mends
from ctxextend.recipe import Origin, Subject, WrittenRecipe, flag_words, written_recipe
from ctxextend.recognition import recognize
from ctxextend.tableplan import check_rows, describe_table, find_tables
from ctxextend.tables.oddities import Repetition, outlier_rows, repetition, seams, untrained_rows
from ctxextend.tables.rownumbers import Span, spans
from ctxextend.tables.stats import TableStats, measure

__all__ = ["Inspection", "TableReport", "inspect", "inspect_subject"]

# What transformers' configs call the standard deviation of their initialiser, and what it is where they say nothing.
INITIALIZERS = ("initializer_range", "init_std", "initializer_factor")
DEFAULT_DEVIATION = 0.02
# That of torch.nn.Embedding.
TORCH_DEVIATION = 1.0


@dataclass(frozen=True)
class TableReport:
    """One position table, looked at.

    Rows count from the tensor's first, offset rows included; positions from the first row behind those.

    Attributes:
        name: Its tensor in the checkpoint.
        part: What it is called where there are several: encoder, decoder, text, …; else empty.
        file: The file that holds it, below the checkpoint's root.
        config_key: The key of config.json that states its length, with dots where configs are nested.
        rows: Its rows: offset + positions, and in few families some behind the last position.
        positions: Usable positions.
        offset: Rows in front of position 0.
        hidden_size: Columns.
        dtype: As safetensors spells it.
        bytes: Its size in the file.
        share: Its share of all parameters of the checkpoint, 0 to 1.
        new_rows: The rows that a resize made, where the checkpoint says so; None where it does not.
        offset_norms: Norms of the offset rows, shape (offset,), float64.
        stats: Figures of the rows behind the offset.
        outliers: Positions that stand out, each with what stands out; see `outlier_rows`.
        repetition: Rows that are there more than once, by their positions.
        seams: Positions at which it jumps, by the older length whose multiples they are; see `seams`.
        untrained: Positions that look as an initialiser left them, each with its standard deviation.
        values: The rows themselves, offset rows included, shape (rows, hidden_size), in the file's dtype.
    """

    name: str
    part: str
    file: str
    config_key: str
    rows: int
    positions: int
    offset: int
    hidden_size: int
    dtype: str
    bytes: int
    share: float
    new_rows: tuple[Span, ...] | None
    offset_norms: NDArray[np.float64]
    stats: TableStats
    outliers: dict[int, str]
    repetition: Repetition
    seams: dict[int, tuple[int, ...]]
    untrained: dict[int, float]
    values: NDArray[Any]

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """The norm of every row, offset rows included, shape (rows,), float64."""
        return np.concatenate([self.offset_norms, self.stats.norms])

    def is_new(self, position: int) -> bool:
        """Whether a resize made the row of a position, as far as the checkpoint says."""
        return any(start <= position + self.offset < stop for start, stop in self.new_rows or ())

    def origin(self, row: int) -> str:
        """Return what a row is: ``offset``, ``learned``, ``new``, or empty where the checkpoint does not say."""
        if row < self.offset:
            return "offset"
        if self.new_rows is None:
            return ""
        return "new" if self.is_new(row - self.offset) else "learned"

    @cached_property
    def _found(self) -> tuple[frozenset[int], ...]:
        """The positions without numbers, those that are zero, and those behind seams."""
        behind = (position for positions in self.seams.values() for position in positions)
        return frozenset(self.stats.nonfinite), frozenset(self.stats.zeros), frozenset(behind)

    def remarks(self, row: int) -> list[str]:
        """Return what is unusual about one row."""
        position = row - self.offset
        found = {
            "holds NaN or infinity": position in self._found[0],
            "all zero": position in self._found[1],
            "untrained by the look of it": position in self.untrained,
            "behind a seam": position in self._found[2],
        }
        why = self.outliers.get(position)
        return [*(text for text, holds in found.items() if holds), *([why] if why else [])]

    def row_figures(self, rows: slice) -> list[dict[str, Any]]:
        """Return the figures of single rows as plain values; rows count from the tensor's first."""
        return [self._row(row) for row in range(*rows.indices(self.rows))]

    def _row(self, row: int) -> dict[str, Any]:
        position, cosines = row - self.offset, self.stats.cosines
        figures = [self.norms[row], cosines[position] if 0 <= position < len(cosines) else math.nan]
        norm, cosine = _plain(np.array(figures))
        return {
            "row": row,
            "position": position if 0 <= position < self.positions else None,
            "norm": norm,
            "cosine_to_next": cosine,
            "origin": self.origin(row),
            "remarks": self.remarks(row),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return all but the rows themselves as plain values; rows that are no numbers have figures of None."""
        stats, offset = self.stats, self.offset
        described = (
            *("name", "part", "file", "config_key", "rows", "positions", "offset", "hidden_size", "dtype", "bytes"),
            "share",
        )
        worst = stats.worst_neighbours
        repeated = self.repetition
        return {name: getattr(self, name) for name in described} | {
            "new_rows": None if self.new_rows is None else [list(span) for span in self.new_rows],
            "norms": _plain(self.norms),
            "neighbour_cosines": _plain(stats.cosines),
            "norm": _summary(stats.finite_norms) | {"variation": stats.norm_variation},
            "neighbour_cosine": _summary(stats.cosines[~np.isnan(stats.cosines)])
            | {"worst_row": None if worst is None else worst + offset},
            "effective_rank": stats.effective_rank,
            "components_for_95_percent": stats.components_for(0.95),
            "components": [vars(component) for component in stats.components],
            "mean_row_norm": stats.mean_norm,
            "outliers": [{"row": row + offset, "why": why} for row, why in self.outliers.items()],
            "zero_rows": [row + offset for row in stats.zeros],
            "nonfinite_rows": [row + offset for row in stats.nonfinite],
            "untrained_rows": [[start + offset, stop + offset] for start, stop in spans(self.untrained)],
            "tiling": {
                "period": repeated.period,
                "start": repeated.start + offset,
                "stop": repeated.stop + offset,
                "copies": repeated.copies,
            }
            if repeated.period
            else None,
            "duplicates": [[row + offset for row in group] for group in repeated.groups],
            "seams": [{"length": length, "positions": list(found)} for length, found in self.seams.items()],
        }


@dataclass(frozen=True)
class Inspection:
    """A checkpoint, looked at.

    Attributes:
        source: As the user named it.
        folder: Where it is on this machine.
        family: The model type.
        parameters: How many numbers all of its tensors hold, position buffers left out.
        method: What made the table's rows, where the checkpoint says so; else None.
        tables: Its position tables.
        limits: Every place that states a length.
        clients: What a user of each client gets.
        notes: What needs saying of how the reference was understood.
    """

    source: str
    folder: str
    family: str
    parameters: int
    method: str | None
    tables: tuple[TableReport, ...]
    limits: tuple[Limit, ...]
    clients: tuple[ClientLimit, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, in the words of ``--json``."""
        return {
            "source": self.source,
            "folder": self.folder,
            "family": self.family,
            "parameters": self.parameters,
            "method": self.method,
            "tables": [table.as_dict() for table in self.tables],
            "limits": [limit.as_dict() for limit in self.limits],
            "clients": [client.as_dict() for client in self.clients],
            "notes": list(self.notes),
        }


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
    origin = Origin(revision, subfolder, variant, family)
    return inspect_subject(Subject(os.fspath(reference), origin, table, config_key, offset), part)


def inspect_subject(subject: Subject, part: str | None = None) -> Inspection:
    """Look at what a command names; see `inspect`.

    Raises:
        CtxextendError: As `inspect`.
    """
    origin = subject.origin
    source = resolve_source(subject.source, origin.revision, origin.subfolder, origin.variant)
    checkpoint = open_checkpoint(source, origin.variant)
    architecture = recognize(checkpoint, subject)
    every = _measured(checkpoint, architecture)
    chosen = [found for found in every if part is None or f"{found.place.part}.".startswith(f"{part}.")]
    if not chosen:
        parts = " or ".join(dict.fromkeys(found.place.part for found in every if found.place.part))
        raise ResizeError(
            f"--part {part}: this model has no such part with a position table.",
            f"Its parts are {parts}." if parts else "It has one table: leave --part out.",
        )
    limits = with_mends(list(find_limits(checkpoint, architecture, chosen)), _mends(subject, every))
    clients = [
        client
        for tokenizer, reader in readers(chosen).items()
        for client in client_limits(checkpoint, limits, reader, tokenizer)
    ]
    written, notes = None, [*checkpoint.source.notes, *checkpoint.stored.notes]
    try:
        written = written_recipe(checkpoint)
    except RecipeError as error:
        notes.append(error.message)
    parameters = _parameters(checkpoint, every)
    reports = tuple(_report(checkpoint, found, written, parameters) for found in chosen)
    method = written.method if written else None
    names = subject.source, str(checkpoint.root), architecture.family.model_type
    return Inspection(*names, parameters, method, reports, tuple(limits), tuple(clients), tuple(notes))


def _measured(checkpoint: Checkpoint, architecture: Architecture) -> list[Measured]:
    found = []
    for place, name in find_tables(architecture, frozenset(checkpoint.names), str(checkpoint.root)):
        shape, _, file = describe_table(checkpoint, name)
        check_rows(place, shape[0], name, has_config=False)
        found.append(Measured(place, name, file, shape[0]))
    return found


def _mends(subject: Subject, tables: list[Measured]) -> dict[str, str | None]:
    """Return, for each table, the command that makes everything agree with it.

    None where tables that have their length by one key have another: then nothing in the folder can say it.
    """
    lengths = {table.positions for table in tables}
    values: dict[str, set[int]] = {}
    for table in tables:
        values.setdefault(table.place.config_key, set()).add(table.place.key_value(table.positions))
    at_odds = {key for key, found in values.items() if len(found) > 1}
    return {
        table.name: None if table.place.config_key in at_odds else _mend(subject, table, with_part=len(lengths) > 1)
        for table in tables
    }


def _mend(subject: Subject, table: Measured, *, with_part: bool) -> str:
    flags = {
        **vars(subject.origin),
        **{"part": table.place.part or None if with_part else None, "to": table.positions},
        **{"table": subject.table, "offset": subject.offset or None, "config-key": subject.config_key},
    }
    return shlex.join(["ctxextend", "resize", subject.source, *flag_words(flags), "--mend-limits"])


def _parameters(checkpoint: Checkpoint, tables: list[Measured]) -> int:
    places = [table.place for table in tables]
    return sum(
        math.prod(entry.shape)
        for file in checkpoint.weights
        for entry in file.entries.values()
        if not any(place.buffer(entry.name) for place in places)
    )


def _report(checkpoint: Checkpoint, found: Measured, written: WrittenRecipe | None, parameters: int) -> TableReport:
    place, file = found.place, checkpoint.holder(found.name)
    entry, values = file.entries[found.name], read_floats(file, found.name)
    behind = values[place.offset :]
    stats = measure(behind)
    new_rows, old = _new_rows(found, written)
    repeated = repetition(behind)
    lengths = {length for length in (old, repeated.period) if length}
    with np.errstate(invalid="ignore", over="ignore"):
        offset_norms = np.linalg.norm(values[: place.offset].astype(np.float64), axis=1)
    return TableReport(
        name=found.name,
        part=place.part,
        file=found.file,
        config_key=place.config_key,
        rows=found.rows,
        positions=found.positions,
        offset=place.offset,
        hidden_size=entry.shape[1],
        dtype=entry.dtype,
        bytes=entry.size,
        share=math.prod(entry.shape) / parameters,
        new_rows=new_rows,
        offset_norms=offset_norms,
        stats=stats,
        outliers=outlier_rows(stats),
        repetition=repeated,
        seams=seams(stats, lengths),
        untrained=untrained_rows(behind, stats, _deviations(checkpoint, found)),
        values=values,
    )


def _new_rows(found: Measured, written: WrittenRecipe | None) -> tuple[tuple[Span, ...] | None, int | None]:
    """Return the rows that a resize made and the positions there were before, where the recipe beside it says so."""
    before, after = written.rows.get(found.name, (0, 0)) if written else (0, 0)
    place = found.place
    if written is None or after != found.rows or before <= place.offset:
        return None, None
    if after <= before:
        return (), None
    options = written.recipe.resize.options
    start = before if options.keeps_learned_rows else place.offset + options.keep_first
    return (((start, found.rows),), place.positions(before)) if start < found.rows else (None, None)


def _deviations(checkpoint: Checkpoint, found: Measured) -> tuple[float, ...]:
    """Return the standard deviations that the table's initialiser may have had."""
    configs = [nested(checkpoint.config, found.place.path), checkpoint.config]
    stated = (config.get(key) for config in configs if hasattr(config, "get") for key in INITIALIZERS)
    known = [float(value) for value in stated if isinstance(value, int | float) and 0 < value < 1e6]
    return tuple(dict.fromkeys((*known, DEFAULT_DEVIATION, TORCH_DEVIATION)))


def _summary(values: NDArray[np.float64]) -> dict[str, float | None]:
    if not values.size:
        return dict.fromkeys(("min", "median", "mean", "max"))
    names = ("min", "median", "mean", "max")
    figures = (values.min(), np.median(values), values.mean(), values.max())
    return {name: float(figure) for name, figure in zip(names, figures, strict=True)}


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers for JSON, which has no word for those that are not finite."""
    return [float(value) if math.isfinite(value) else None for value in values]
