"""Position tables of rows: their statistics, and what is unusual about them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.json_output import not_in_json
from ctxextend.positions.position_report import PositionReport
from ctxextend.positions.positions import Positions
from ctxextend.provenance import Step
from ctxextend.tables.layouts import find_formula, sinusoidal_rows
from ctxextend.tables.stats import (
    Repetition,
    RowRange,
    TableStats,
    describe_random,
    describe_range,
    describe_rows,
    find_outliers,
    find_repetition,
    measure,
    median,
    row_ranges,
)

if TYPE_CHECKING:
    from ctxextend.positions.rows import Rows

MAX_LISTED = 6  # maximum number of outliers that are listed one by one
MAX_VALUES = 2**28  # of a computed table, whose size only the config states


@dataclass(frozen=True, eq=False, repr=False)
class TableReport(
    PositionReport, shows=("name", "positions", "reserved_rows", "hidden_size", "dtype")
):
    """One position table and its statistics.

    Row indices start at the tensor's first row, including reserved rows; positions start after the
    reserved rows.
    """

    # Relative to the checkpoint folder; empty if the table is computed by transformers, not stored.
    file: str
    # Reserved rows + positions; a few architectures have more rows after the last position.
    rows: int
    reserved_rows: int  # rows before position 0
    hidden_size: int
    dtype: str  # as in safetensors
    bytes: int  # size in the file
    share: float  # share of the checkpoint's parameters, 0 to 1
    new_rows: tuple[RowRange, ...] | None  # rows created by a resize; None if unknown
    # Norm of each row including reserved rows, shape (rows,).
    norms: NDArray[np.float64] = field(metadata=not_in_json)
    sinusoidal: str  # the layout of sinusoids that all rows equal; empty if they do not
    stats: TableStats = field(metadata=not_in_json)  # of the rows after the reserved ones
    outlier_reasons: dict[int, str] = field(metadata=not_in_json)  # by position
    repetition: Repetition | None = field(metadata=not_in_json)  # by position
    # The std of initialisation that a row matches, by position.
    untrained: dict[int, float] = field(metadata=not_in_json)
    # With reserved rows, shape (rows, hidden_size), in the file's dtype.
    values: NDArray[Any] = field(metadata=not_in_json)

    json_properties: ClassVar = (
        "norm",
        "neighbour_cosine",
        "outliers",
        "outlier_count",
        "zero_rows",
        "nonfinite_rows",
        "untrained_rows",
        "tiling",
    )

    @property
    def norm(self) -> dict[str, float | None]:
        """The norms of rows: ``min``, ``median``, ``mean`` and ``max``."""
        return _summary(self.stats.norms)

    @property
    def neighbour_cosine(self) -> dict[str, float | None]:
        """The cosines of neighbours: ``min``, ``median``, ``mean``, ``max`` and ``worst_row``."""
        cosines = self.stats.cosines
        worst_row = None
        if not np.isnan(cosines).all():
            worst_row = int(np.nanargmin(cosines)) + self.reserved_rows
        return {**_summary(cosines), "worst_row": worst_row}

    @property
    def outliers(self) -> list[dict[str, Any]]:
        """The first unusual rows: ``row`` and ``reason``."""
        return [
            {"row": position + self.reserved_rows, "reason": reason}
            for position, reason in [*self.outlier_reasons.items()][:MAX_LISTED]
        ]

    @property
    def outlier_count(self) -> int:
        """The number of unusual rows."""
        return len(self.outlier_reasons)

    @property
    def zero_rows(self) -> list[RowRange]:
        """Ranges of rows that are zero."""
        return self._ranges(self.stats.zeros)

    @property
    def nonfinite_rows(self) -> list[RowRange]:
        """Ranges of rows with NaN or infinity."""
        return self._ranges(self.stats.nonfinite)

    @property
    def untrained_rows(self) -> list[RowRange]:
        """Ranges of rows that look randomly initialised."""
        return self._ranges(self.untrained)

    def _ranges(self, positions: Iterable[int]) -> list[RowRange]:
        return row_ranges(position + self.reserved_rows for position in positions)

    @property
    def tiling(self) -> dict[str, Any] | None:
        """How rows repeat: ``period``, ``start``, ``stop`` and ``copies``; None if they do not."""
        repetition = self.repetition
        if repetition is None:
            return None
        return {
            "period": repetition.period,
            "start": repetition.start + self.reserved_rows,
            "stop": repetition.stop + self.reserved_rows,
            "copies": repetition.copies,
        }

    def findings(self) -> Iterator[str]:
        """Yield the findings, most severe first; rows are numbered by position."""
        yield from describe_defects(self)
        # Rows after the first period are copies.
        copies_start = len(self.stats.norms)
        if self.repetition is not None:
            copies_start = self.repetition.start + self.repetition.period
        outliers = [position for position in self.outlier_reasons if position < copies_start]
        for position in outliers[:MAX_LISTED]:
            yield f"outlier row {position}: {self.outlier_reasons[position]}"
        if len(outliers) > MAX_LISTED:
            yield f"outlier rows: {describe_rows(outliers[MAX_LISTED:])}"

    @property
    def trained_positions(self) -> int:  # type: ignore[override]
        """The positions before the last rows that are zero or look randomly initialised."""
        count = self.positions
        while count and (count - 1 in self.untrained or count - 1 in self.stats.zeros):
            count -= 1
        return count

    def is_new(self, position: int) -> bool:
        """Whether a resize created the row of a position; False if unknown."""
        row = position + self.reserved_rows
        return any(start <= row < stop for start, stop in self.new_rows or ())


def _summary(values: NDArray[np.float64]) -> dict[str, float | None]:
    values = values[np.isfinite(values)]
    if not values.size:
        return dict.fromkeys(("min", "median", "mean", "max"))
    return {
        "min": float(values.min()),
        "median": median(values),
        "mean": float(values.mean()),
        "max": float(values.max()),
    }


# Findings, as text


def describe_defects(table: TableReport) -> Iterator[str]:
    """Yield the findings that make a table unusable or untrained, most severe first.

    Rows are numbered by position, without reserved ones.
    """
    if table.stats.nonfinite:
        yield f"NaN or infinity: {describe_rows(table.stats.nonfinite)}"
    if table.stats.zeros:
        yield f"zero rows: {describe_rows(table.stats.zeros)}"
    repetition = table.repetition
    if repetition is not None:
        rows = "rows"
        if repetition.start > 0 or repetition.stop < len(table.stats.norms):
            rows = f"rows {describe_range(repetition.start, repetition.stop)}"
        yield (
            f"{rows} repeat every {repetition.period} positions ({repetition.copies:.4g} copies)"
        )
    yield from describe_random(table.untrained)


# Measuring a table


def report_table(
    checkpoint: Checkpoint, table: "Rows", recipe: Step | None, parameters: int
) -> TableReport:
    """Read a table once, and measure its rows.

    Args:
        checkpoint: Its checkpoint.
        table: The table.
        recipe: The resize that made the checkpoint, if any.
        parameters: The number of the checkpoint's parameters.

    Raises:
        CheckpointError: The table has an invalid shape, cannot be read, or is too large to compute.
    """
    name = table.name
    table.check_rows(has_config=False)
    if table.weights_file:
        values = checkpoint.weights.read(name)
        stated_in = f"{table.weights_file} {name}"
        stored_bytes = values.nbytes
        share = values.size / parameters
    else:
        values = _computed_rows(table)
        stated_in = f"{table.file} {table.length_key}"
        stored_bytes = 0
        share = 0.0
    first = table.reserved_rows
    with np.errstate(invalid="ignore", over="ignore"):
        reserved_norms = np.linalg.norm(values[:first].astype(np.float64), axis=1)
    stats = measure(values[first:])
    formula = find_formula(values[first:], table.initial_layout)
    positions = table.rows - table.other_rows
    return TableReport(
        name=name,
        part=table.part,
        config_key=table.length_key,
        positions=positions,
        key_value=table.key_value(positions),
        stated_in=stated_in,
        location=table,
        file=table.weights_file,
        rows=table.rows,
        reserved_rows=first,
        hidden_size=table.hidden_size,
        dtype=table.dtype,
        bytes=stored_bytes,
        share=share,
        new_rows=_new_rows(table, recipe),
        norms=np.concatenate([reserved_norms, stats.norms]),
        sinusoidal="" if formula is None else formula.layout,
        stats=stats,
        outlier_reasons=find_outliers(stats.norms, stats.cosines),
        repetition=find_repetition(values[first:]),
        untrained=table.find_random_rows(values[first:]),
        values=values,
    )


def _computed_rows(table: Positions) -> NDArray[Any]:
    if table.rows * table.hidden_size > MAX_VALUES:
        message = (
            f"config.json: {table.length_key} requires {table.rows:,} computed rows, too many to "
            "inspect."
        )
        raise CheckpointError(message, "Correct config.json.")
    values = sinusoidal_rows(np.arange(table.rows), table.hidden_size, table.initial_layout)
    values = values.astype(np.float32)
    first = table.reserved_rows
    values[max(first - 1, 0) : first] = 0  # the row of padding_idx
    return values


def _new_rows(table: Positions, recipe: Step | None) -> tuple[RowRange, ...] | None:
    """Return the rows that a recipe created; None if unknown."""
    if recipe is None:
        return None
    name = table.name
    before, after = recipe.rows.get(name, (0, 0))
    first = table.reserved_rows
    if after != table.rows or before <= first:
        return None
    if after <= before:
        return ()
    settings = replace(recipe.settings, method=recipe.methods.get(name, recipe.settings.method))
    kept = settings.choice.kept_rows(before - first)
    return ((first + kept, after),)
