"""What `inspect` finds: position tables with their figures, and everything in the folder that states their length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import counted
from ctxextend.families.lookup import TableLocation
from ctxextend.json_output import Result, not_in_json, to_json
from ctxextend.tables.stats import Repetition, RowRange, TableStats, describe_range, describe_rows, row_ranges

# Findings of one kind that are told one by one.
TOLD = 6


@dataclass(frozen=True, eq=False, repr=False)
class TableReport(Result, shows="name positions reserved_rows hidden_size dtype"):
    """One position table and its figures.

    Rows count from the tensor's first, reserved rows included; positions from the first row behind those.
    """

    name: str  # its tensor in the checkpoint
    part: str  # what it is called where there are several: encoder, decoder, text, …; else empty
    file: str  # that holds it, below the checkpoint's root
    config_key: str  # of config.json, that states its length, with dots where configs are nested
    rows: int  # reserved + positions, and in few families some behind the last position
    positions: int  # usable ones
    reserved_rows: int  # before position 0
    hidden_size: int
    dtype: str  # as safetensors spells it
    bytes: int  # its size in the file
    share: float  # of all parameters of the checkpoint, 0 to 1
    new_rows: tuple[RowRange, ...] | None  # that a resize made; None where the checkpoint does not say
    norms: NDArray[np.float64]  # of every row, reserved rows included, shape (rows,)
    stats: TableStats = field(metadata=not_in_json)  # of the rows after the reserved ones
    outliers: dict[int, str] = field(metadata=not_in_json)  # positions that stand out, each with what does
    repetition: Repetition = field(metadata=not_in_json)  # rows that are there more than once, by their positions
    # Positions at which it jumps, by the older length whose multiples they are; see `find_seams`.
    seams: dict[int, tuple[int, ...]] = field(metadata=not_in_json)
    # Positions that look as an initialiser left them, each with its standard deviation.
    untrained: dict[int, float] = field(metadata=not_in_json)
    # The rows themselves, reserved rows included, shape (rows, hidden_size), in the file's dtype.
    values: NDArray[Any] = field(metadata=not_in_json)
    location: TableLocation = field(metadata=not_in_json)  # where the registry has it

    def json_more(self) -> dict[str, Any]:
        """Return what the JSON says of it beside; rows count from the tensor's first, reserved rows included."""
        stats, repeated, first = self.stats, self.repetition, self.reserved_rows
        cosines, worst = stats.cosines[~np.isnan(stats.cosines)], stats.worst_neighbours
        tiling = {"period": repeated.period, "start": repeated.start + first, "stop": repeated.stop + first}
        return {
            "neighbour_cosines": stats.cosines,
            "norm": {**_summary(stats.finite_norms), "variation": stats.norm_variation},
            "neighbour_cosine": {**_summary(cosines), "worst_row": None if worst is None else worst + first},
            "effective_rank": stats.effective_rank,
            "components_for_95_percent": stats.components_for(0.95),
            "components": stats.components,
            "mean_row_norm": stats.mean_norm,
            "outliers": [{"row": position + first, "reason": reason} for position, reason in self.outliers.items()],
            "zero_rows": [position + first for position in stats.zeros],
            "nonfinite_rows": [position + first for position in stats.nonfinite],
            "untrained_rows": row_ranges(position + first for position in self.untrained),
            "tiling": tiling | {"copies": repeated.copies} if repeated.period else None,
            "duplicates": [[position + first for position in group] for group in repeated.groups],
            "seams": [{"length": length, "positions": positions} for length, positions in self.seams.items()],
        }

    def findings(self) -> Iterator[str]:
        """Yield what is unusual in it, the gravest first."""
        stats, repeated = self.stats, self.repetition
        if stats.nonfinite:
            yield f"NaN or infinity at {describe_rows(stats.nonfinite)}"
        if stats.zeros:
            yield f"all zero at {describe_rows(stats.zeros)}"
        if repeated.period:
            whole = repeated.start == 0 and repeated.stop == len(stats.norms)
            where = "" if whole else f" over {describe_range(repeated.start, repeated.stop)}"
            yield f"tiled with period {repeated.period}, {repeated.copies:.4g} copies{where}"
        yield from (f"the same row stands at {describe_rows(same)}" for same in repeated.groups[:TOLD])
        if len(repeated.groups) > TOLD:
            yield f"and {len(repeated.groups) - TOLD} more groups of equal rows"
        for deviation in dict.fromkeys(self.untrained.values()):
            rows = [row for row, fits in self.untrained.items() if fits == deviation]
            what = f"({counted(len(rows), 'row')} as an initialiser of std {deviation:g} leaves them)"
            yield f"untrained by the look of it: {describe_rows(rows)} {what}"
        for length, positions in self.seams.items():
            reason = f"multiples of {length}" if len(positions) > 1 else "where a shorter table may have ended"
            yield f"seam: the table jumps at {describe_rows(positions)}, {reason}"
        # Of a tiled table the outliers of the first tile, since the others are its copies.
        first = repeated.start + repeated.period if repeated.period else len(stats.norms)
        outliers = [(row, reason) for row, reason in self.outliers.items() if row < first]
        yield from (f"outlier {row}: {reason}" for row, reason in outliers[:TOLD])
        if len(outliers) > TOLD:
            yield f"outliers too: {describe_rows(row for row, _ in outliers[TOLD:])}"

    def is_new(self, position: int) -> bool:
        """Whether a resize made the row of a position, as far as the checkpoint says."""
        return any(start <= position + self.reserved_rows < stop for start, stop in self.new_rows or ())

    def row_figures(self, rows: slice) -> list[dict[str, Any]]:
        """Return the figures of single rows as plain values; rows count from the tensor's first."""
        behind_seam = {position for positions in self.seams.values() for position in positions}
        found = []
        for row in range(*rows.indices(self.rows)):
            position = row - self.reserved_rows
            remarks = {
                "holds NaN or infinity": position in self.stats.nonfinite,
                "all zero": position in self.stats.zeros,
                "untrained by the look of it": position in self.untrained,
                "behind a seam": position in behind_seam,
                self.outliers.get(position, ""): position in self.outliers,
            }
            origin = "new" if self.is_new(position) else "learned"
            has_next = 0 <= position < len(self.stats.cosines)
            figures = {
                "row": row,
                "position": position if 0 <= position < self.positions else None,
                "norm": self.norms[row],
                "cosine_to_next": self.stats.cosines[position] if has_next else None,
                "origin": "reserved" if position < 0 else "" if self.new_rows is None else origin,
                "remarks": [remark for remark, has_file in remarks.items() if has_file],
            }
            found.append(to_json(figures))
        return found


@dataclass(frozen=True)
class Limit:
    """One place that states a length."""

    file: str  # below the checkpoint's root
    key: str  # the path of keys with dots, or a tensor's name
    # A number, a tensor's length, a padding strategy, or other values as text; None where nothing stands there.
    value: Any
    tokens: int | None  # how many token positions that means; None where it sets no limit
    library: str  # who obeys it
    table: str  # the table that it is about
    reason: str = ""  # what follows where it does not agree with that table
    fix: str | None = None  # the command that makes it agree; None where nothing does, or it does already

    json_properties: ClassVar = ("agrees",)

    def __post_init__(self) -> None:
        is_padding = isinstance(self.value, dict) and self.tokens is not None
        if not (self.value is None or isinstance(self.value, int) or is_padding):
            object.__setattr__(self, "value", str(self.value))  # JSON has no infinity, which 1e400 is read as

    @property
    def agrees(self) -> bool:
        """Whether it agrees with its table."""
        return not self.reason


@dataclass(frozen=True)
class LibraryLimit:
    """What a user of one client gets."""

    library: str  # ``transformers`` (with truncation=True), ``sentence-transformers``, or ``tokenizers`` alone
    tokens: int | None  # that it reads of a text; None where it cuts nowhere, 0 where the model does not load
    decided_by: str  # the place that decides it
    # Of a longer text: ``cut``, ``fails`` in the model, ``last position`` (its end shares that), ``not cut``, or
    # ``not loaded``.
    beyond: str


@dataclass(frozen=True, eq=False, repr=False)
class Inspection(Result, shows="source model_type verdict"):
    """What was found in a checkpoint."""

    source: str  # as the user named it
    folder: str  # where it is on this machine
    model_type: str
    parameters: int  # numbers that all of its tensors hold, position buffers left out
    method: str | None  # what made the table's rows, where the checkpoint says so
    trainable: str | None  # what was then trained, where it says so: ``new`` rows, ``positions`` or ``all``
    tables: tuple[TableReport, ...]
    limits: tuple[Limit, ...]  # every place that states a length
    libraries: tuple[LibraryLimit, ...]  # what a user of each client gets
    notes: tuple[str, ...]  # on how the reference was understood

    json_properties: ClassVar = ("verdict", "agrees")

    @property
    def agrees(self) -> bool:
        """Whether every limit agrees with its table."""
        return all(limit.agrees for limit in self.limits)

    @property
    def verdict(self) -> str:
        """In a sentence how long the tables are, whether all limits agree, and how the rows look."""
        parts = {table.part: str(table.positions) for table in self.tables}
        if len(set(parts.values())) > 1:
            parts = {part: f"{part} {positions}" for part, positions in parts.items()}
        wrong = [limit for limit in self.limits if not limit.agrees]
        said = [f"{limit.file} {limit.key} is {'unset' if limit.value is None else limit.value}" for limit in wrong]
        more = f" and {len(said) - 2} more" if len(said) > 2 else ""
        files = f"but limits disagree ({', '.join(said[:2])}{more})" if said else "all files agree"
        findings = [one for table in self.tables for one in table.findings() if not one.startswith(("outlier", "seam"))]
        new = sum(stop - start for table in self.tables for start, stop in table.new_rows or ())
        if new and not self.trainable and not any(one.startswith(("NaN", "all zero")) for one in findings):
            findings = [f"{counted(new, 'row')} made by {self.method}, not trained yet"]
        return f"{', '.join(dict.fromkeys(parts.values()))} positions, {files}; {(*findings, 'rows look trained')[0]}."


# A table of one model, and the model.
Shown = tuple[Inspection, TableReport]


def short_names(inspections: Sequence[Inspection]) -> dict[int, str]:
    """Return what each model is called, by its `id`: the end of its path, where that tells them apart."""
    short = [inspection.source.rstrip("/").rpartition("/")[2] for inspection in inspections]
    names = short if len(set(short)) == len(short) else [inspection.source for inspection in inspections]
    return {id(inspection): name for inspection, name in zip(inspections, names, strict=True)}


def tables_by_part(inspections: Sequence[Inspection]) -> list[list[Shown]]:
    """Return the tables, those of several models that are the same part together."""
    groups: dict[str, list[Shown]] = {}
    for inspection in inspections:
        for table in inspection.tables:
            groups.setdefault(table.part, []).append((inspection, table))
    return list(groups.values())


def _summary(values: NDArray[np.float64]) -> dict[str, float | None]:
    if not values.size:
        return dict.fromkeys(("min", "median", "mean", "max"))
    figures = {"min": values.min(), "median": np.median(values), "mean": values.mean(), "max": values.max()}
    return {name: float(figure) for name, figure in figures.items()}
