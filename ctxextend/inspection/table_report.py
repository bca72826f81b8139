"""Results of `inspect`: statistics of position tables, and all length limits of a checkpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import counted
from ctxextend.inspection.scheme_report import PositionReport, SchemeReport
from ctxextend.json_output import Result, not_in_json, to_json
from ctxextend.plan.untrained import describe_untrained
from ctxextend.recipe import FROZEN
from ctxextend.tables.sinusoids import LayoutFit
from ctxextend.tables.stats import (
    Repetition,
    RowRange,
    TableStats,
    describe_range,
    describe_rows,
    median,
    row_ranges,
)

MAX_LISTED = 6  # maximum number of duplicate groups, and of outliers, that are listed one by one


@dataclass(frozen=True, eq=False, repr=False)
class TableReport(PositionReport, shows="name positions reserved_rows hidden_size dtype"):
    """One position table and its statistics.

    Row indices start at the tensor's first row, including reserved rows; positions start after the
    reserved rows.
    """

    # relative to the checkpoint folder; empty if the table is not stored but computed by
    # transformers
    file: str
    rows: (
        int  # reserved rows + positions; a few architectures have more rows after the last position
    )
    reserved_rows: int  # rows before position 0
    hidden_size: int
    dtype: str  # as in safetensors
    bytes: int  # size in the file
    share: float  # share of the checkpoint's parameters, 0 to 1
    new_rows: tuple[RowRange, ...] | None  # rows created by a resize; None if unknown
    norms: NDArray[np.float64]  # norm of each row including reserved rows, shape (rows,)
    sinusoidal: (
        LayoutFit | None
    )  # how sinusoidal its rows are; None if rows are not finite, or equal
    stats: TableStats = field(metadata=not_in_json)  # of the rows after the reserved ones
    outliers: dict[int, str] = field(metadata=not_in_json)  # reason by position
    repetition: Repetition = field(metadata=not_in_json)  # duplicate rows, by position
    # Positions where the table jumps, by the older length that they are multiples of; see
    # `find_seams`.
    seams: dict[int, tuple[int, ...]] = field(metadata=not_in_json)
    untrained: dict[int, float] = field(
        metadata=not_in_json
    )  # std of initialisation that a row matches, by position
    values: NDArray[Any] = field(
        metadata=not_in_json
    )  # with reserved rows, (rows, hidden_size), in the file's dtype

    def json_more(self) -> dict[str, Any]:
        """Return the computed JSON keys; row indices include reserved rows."""
        stats, repeated, first = self.stats, self.repetition, self.reserved_rows
        cosines = stats.cosines[~np.isnan(stats.cosines)]
        worst = stats.worst_neighbours
        tiling = {
            "period": repeated.period,
            "start": repeated.start + first,
            "stop": repeated.stop + first,
        }
        return {
            "neighbour_cosines": stats.cosines,
            "norm": {**_summary(stats.finite_norms), "variation": stats.norm_variation},
            "neighbour_cosine": {
                **_summary(cosines),
                "worst_row": None if worst is None else worst + first,
            },
            "effective_rank": stats.effective_rank,
            "components": stats.components,
            "mean_row_norm": stats.mean_norm,
            "outliers": [
                {"row": position + first, "reason": reason}
                for position, reason in self.outliers.items()
            ],
            "zero_rows": [position + first for position in stats.zeros],
            "nonfinite_rows": [position + first for position in stats.nonfinite],
            "untrained_rows": row_ranges(position + first for position in self.untrained),
            "tiling": tiling | {"copies": repeated.copies} if repeated.period else None,
            "duplicates": [[position + first for position in group] for group in repeated.groups],
            "seams": [
                {"length": length, "positions": positions}
                for length, positions in self.seams.items()
            ],
        }

    def findings(self) -> Iterator[str]:
        """Yield the findings, most severe first."""
        stats, repeated = self.stats, self.repetition
        if stats.nonfinite:
            yield f"NaN or infinity: {describe_rows(stats.nonfinite)}"
        if stats.zeros:
            yield f"zero rows: {describe_rows(stats.zeros)}"
        if repeated.period:
            is_whole = repeated.start == 0 and repeated.stop == len(stats.norms)
            rows = "rows" if is_whole else f"rows {describe_range(repeated.start, repeated.stop)}"
            yield f"{rows} repeat every {repeated.period} positions ({repeated.copies:.4g} copies)"
        yield from (
            f"duplicate rows: {describe_rows(group)}" for group in repeated.groups[:MAX_LISTED]
        )
        if len(repeated.groups) > MAX_LISTED:
            yield f"duplicate rows: {len(repeated.groups) - MAX_LISTED} more groups"
        yield from describe_untrained(self.untrained)
        for length, positions in self.seams.items():
            reason = (
                f"multiples of {length}"
                if len(positions) > 1
                else "possible end of a shorter table"
            )
            yield f"seam: {describe_rows(positions)} ({reason})"
        first = (
            repeated.start + repeated.period if repeated.period else len(stats.norms)
        )  # later ones are copies
        outliers = [(row, reason) for row, reason in self.outliers.items() if row < first]
        yield from (f"outlier row {row}: {reason}" for row, reason in outliers[:MAX_LISTED])
        if len(outliers) > MAX_LISTED:
            yield f"outlier rows: {describe_rows(row for row, _ in outliers[MAX_LISTED:])}"

    @property
    def trained_positions(self) -> int:
        """The positions before the last rows that are zero or look randomly initialised."""
        count = self.positions
        while count and (count - 1 in self.untrained or count - 1 in self.stats.zeros):
            count -= 1
        return count

    def is_new(self, position: int) -> bool:
        """Whether a resize created the row of a position; False if unknown."""
        return any(
            start <= position + self.reserved_rows < stop for start, stop in self.new_rows or ()
        )

    def row_statistics(self, rows: slice) -> Iterator[dict[str, Any]]:
        """Yield JSON values for each of `rows`; indices include reserved rows."""
        seams = {position for positions in self.seams.values() for position in positions}
        for row in range(*rows.indices(self.rows)):
            position = row - self.reserved_rows
            remarks = {
                "NaN or infinity": position in self.stats.nonfinite,
                "zero row": position in self.stats.zeros,
                "looks untrained": position in self.untrained,
                "seam": position in seams,
                self.outliers.get(position, ""): position in self.outliers,
            }
            origin = "new" if self.is_new(position) else "learned"
            has_next = 0 <= position < len(self.stats.cosines)
            statistics = {
                "row": row,
                "position": position if 0 <= position < self.positions else None,
                "norm": self.norms[row],
                "cosine_to_next": self.stats.cosines[position] if has_next else None,
                "origin": "reserved" if position < 0 else "" if self.new_rows is None else origin,
                "remarks": [remark for remark, applies in remarks.items() if applies],
            }
            yield to_json(statistics)


@dataclass(frozen=True)
class Limit:
    """One length limit in a file of a checkpoint."""

    file: str  # relative to the checkpoint folder
    key: str  # dotted path of keys, or a tensor name
    # a number, a tensor's length, a padding strategy, or any other value as text; None if it is not
    # set
    value: Any
    tokens: int | None  # the value in tokens; None if it sets no limit
    used_by: str  # the libraries that use it, or ``none``
    table: str  # the position table that it refers to
    reason: str = ""  # the effect if it disagrees with that table
    fix: str | None = None  # the command that fixes it; None if it agrees or cannot be fixed
    remark: str = ""  # what else to know about it, whether it agrees or not

    json_properties: ClassVar = ("agrees",)

    def __post_init__(self) -> None:
        is_padding = isinstance(self.value, dict) and self.tokens is not None
        if not (self.value is None or isinstance(self.value, int) or is_padding):
            object.__setattr__(
                self, "value", str(self.value)
            )  # 1e400 is read as infinity, which JSON cannot represent

    @property
    def agrees(self) -> bool:
        """Whether it agrees with its table."""
        return not self.reason


@dataclass(frozen=True)
class LibraryLimit:
    """The effective limit in one library."""

    name: (
        str  # ``transformers`` (with truncation=True), ``sentence-transformers`` or ``tokenizers``
    )
    tokens: int | None  # maximum input length; None if unlimited, 0 if the model does not load
    decided_by: str  # file and key that set it
    # Longer inputs: ``cut``, ``fails``, ``last position`` (all further tokens share it), ``more
    # rows`` (computed when needed), ``untrained`` (rotary angles that were never trained), ``any
    # length``, ``not cut`` or ``not loaded``.
    beyond: str


@dataclass(frozen=True, eq=False, repr=False)
class Inspection(Result, shows="source model_type verdict"):
    """The result of `inspect` for one checkpoint."""

    source: str  # as given by the user
    folder: str  # local path
    model_type: str
    parameters: int  # number of parameters, without position buffers
    method: str | None  # method that created the table's rows, from the recipe
    trainable: (
        str | None
    )  # what was trained afterwards, from the recipe: one of `TRAINABLE`, or None
    tables: tuple[TableReport, ...]
    schemes: tuple[
        SchemeReport, ...
    ]  # positions without a table of rows: rotary, ALiBi or relative
    limits: tuple[Limit, ...]  # all length limits in the checkpoint
    libraries: tuple[LibraryLimit, ...]  # the effective limit per library
    notes: tuple[str, ...]  # how the reference was resolved, and about the recipe

    json_properties: ClassVar = ("verdict", "agrees")

    @property
    def agrees(self) -> bool:
        """Whether every limit agrees with its table."""
        return all(limit.agrees for limit in self.limits)

    @property
    def verdict(self) -> str:
        """One sentence: number of positions, whether all limits agree, and state of the rows."""
        parts = {report.part: str(report.positions) for report in (*self.tables, *self.schemes)}
        if len(set(parts.values())) > 1:
            parts = {part: f"{part} {positions}" for part, positions in parts.items()}
        wrong = [limit for limit in self.limits if not limit.agrees]
        listed = [
            f"{limit.file} {limit.key} is {'unset' if limit.value is None else limit.value}"
            for limit in wrong
        ]
        more = f" and {len(listed) - 2} more" if len(listed) > 2 else ""
        files = (
            f"but limits disagree ({', '.join(listed[:2])}{more})" if listed else "all files agree"
        )
        kinds = ", ".join(dict.fromkeys(kind for report in self.schemes for kind in report.kinds))
        stated = (
            f"{', '.join(dict.fromkeys(parts.values()))} positions{f' ({kinds})' * bool(kinds)}, "
            f"{files}"
        )
        if not self.tables:
            return f"{stated}."
        texts = (text for table in self.tables for text in table.findings())
        findings = [text for text in texts if not text.startswith(("outlier", "seam"))]
        new = sum(stop - start for table in self.tables for start, stop in table.new_rows or ())
        is_formula = all(table.sinusoidal and table.sinusoidal.is_formula for table in self.tables)
        untrained = new and not is_formula and self.trainable in FROZEN
        if untrained and not any(text.startswith(("NaN", "zero rows")) for text in findings):
            how = "frozen in training" if self.trainable else "not trained yet"
            findings = [f"{counted(new, 'new row')} created by {self.method}, {how}"]
        state = "rows are sinusoidal" if is_formula else "rows look trained"
        return f"{stated}; {(*findings, state)[0]}."


ModelTable = tuple[Inspection, TableReport]  # a model and one of its tables


def short_names(inspections: Sequence[Inspection]) -> dict[int, str]:
    """Return a display name by `id` of each inspection: the last path component if unique, else the
    whole source.
    """
    short = [inspection.source.rstrip("/").rpartition("/")[2] for inspection in inspections]
    names = (
        short
        if len(set(short)) == len(short)
        else [inspection.source for inspection in inspections]
    )
    return {id(inspection): name for inspection, name in zip(inspections, names, strict=True)}


def tables_by_part(inspections: Sequence[Inspection]) -> list[list[ModelTable]]:
    """Return the tables of all models, grouped by part."""
    groups: dict[str, list[ModelTable]] = {}
    for inspection in inspections:
        for table in inspection.tables:
            groups.setdefault(table.part, []).append((inspection, table))
    return list(groups.values())


def _summary(values: NDArray[np.float64]) -> dict[str, float | None]:
    if not values.size:
        return dict.fromkeys(("min", "median", "mean", "max"))
    return {
        "min": float(values.min()),
        "median": median(values),
        "mean": float(values.mean()),
        "max": float(values.max()),
    }
