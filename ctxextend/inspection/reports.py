"""A checkpoint as it is looked at: its position tables, measured, and what in the folder states their length."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.inspection.clients import ClientLimit
from ctxextend.inspection.limits import Limit
from ctxextend.tables.stats import Repetition, RowRange, TableStats, row_ranges

__all__ = ["Inspection", "TableReport"]


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
    new_rows: tuple[RowRange, ...] | None
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
            "untrained_rows": [[start + offset, stop + offset] for start, stop in row_ranges(self.untrained)],
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
        trainable: What was then trained, where it says so: ``new`` rows, ``positions`` or ``all``; else None.
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
    trainable: str | None
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
            "trainable": self.trainable,
            "tables": [table.as_dict() for table in self.tables],
            "limits": [limit.as_dict() for limit in self.limits],
            "clients": [client.as_dict() for client in self.clients],
            "notes": list(self.notes),
        }


def _summary(values: NDArray[np.float64]) -> dict[str, float | None]:
    if not values.size:
        return dict.fromkeys(("min", "median", "mean", "max"))
    names = ("min", "median", "mean", "max")
    figures = (values.min(), np.median(values), values.mean(), values.max())
    return {name: float(figure) for name, figure in zip(names, figures, strict=True)}


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers for JSON, which has no word for those that are not finite."""
    return [float(value) if math.isfinite(value) else None for value in values]
