"""What `inspect` finds: position tables with their figures, and everything in the folder that states their length."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.families.lookup import TableLocation
from ctxextend.json_output import json_key, not_in_json, to_json
from ctxextend.tables.stats import Repetition, RowRange, TableStats, row_ranges


@dataclass(frozen=True)
class TableReport:
    """One position table and its figures.

    Rows count from the tensor's first, reserved rows included; positions from the first row behind those.

    Attributes:
        name: Its tensor in the checkpoint.
        part: What it is called where there are several: encoder, decoder, text, …; else empty.
        file: The file that holds it, below the checkpoint's root.
        config_key: The key of config.json that states its length, with dots where configs are nested.
        rows: Its rows: reserved + positions, and in few families some behind the last position.
        positions: Usable positions.
        reserved_rows: Rows before position 0.
        hidden_size: Columns.
        dtype: As safetensors spells it.
        bytes: Its size in the file.
        share: Its share of all parameters of the checkpoint, 0 to 1.
        new_rows: The rows that a resize made, where the checkpoint says so; None where it does not.
        norms: The norm of every row, reserved rows included, shape (rows,), float64.
        stats: Figures of the rows after the reserved ones.
        outliers: Positions that stand out, each with what stands out; see `find_outliers`.
        repetition: Rows that are there more than once, by their positions.
        seams: Positions at which it jumps, by the older length whose multiples they are; see `find_seams`.
        untrained: Positions that look as an initialiser left them, each with its standard deviation.
        values: The rows themselves, reserved rows included, shape (rows, hidden_size), in the file's dtype.
        location: Where the registry has it.
    """

    name: str
    part: str
    file: str
    config_key: str
    rows: int
    positions: int
    reserved_rows: int = field(metadata=json_key("offset"))
    hidden_size: int
    dtype: str
    bytes: int
    share: float
    new_rows: tuple[RowRange, ...] | None
    norms: NDArray[np.float64]
    stats: TableStats = field(metadata=not_in_json)
    outliers: dict[int, str] = field(metadata=not_in_json)
    repetition: Repetition = field(metadata=not_in_json)
    seams: dict[int, tuple[int, ...]] = field(metadata=not_in_json)
    untrained: dict[int, float] = field(metadata=not_in_json)
    values: NDArray[Any] = field(metadata=not_in_json)
    location: TableLocation = field(metadata=not_in_json)

    json_properties: ClassVar = {
        "neighbour_cosines": "stats.cosines",
        "norm": "figures.norm",
        "neighbour_cosine": "figures.neighbour_cosine",
        "effective_rank": "stats.effective_rank",
        "components_for_95_percent": "figures.components_for_95_percent",
        "components": "stats.components",
        "mean_row_norm": "stats.mean_norm",
        **{name: f"figures.{name}" for name in ("outliers", "zero_rows", "nonfinite_rows", "untrained_rows", "tiling")},
        **{name: f"figures.{name}" for name in ("duplicates", "seams")},
    }

    @cached_property
    def figures(self) -> SimpleNamespace:
        """What the JSON says of it beside; rows count from the tensor's first, reserved rows included."""
        stats, repeated, first = self.stats, self.repetition, self.reserved_rows
        cosines, worst = stats.cosines[~np.isnan(stats.cosines)], stats.worst_neighbours
        tiling = {"period": repeated.period, "start": repeated.start + first, "stop": repeated.stop + first}
        return SimpleNamespace(
            norm={**_summary(stats.finite_norms), "variation": stats.norm_variation},
            neighbour_cosine={**_summary(cosines), "worst_row": None if worst is None else worst + first},
            components_for_95_percent=stats.components_for(0.95),
            outliers=[{"row": position + first, "why": why} for position, why in self.outliers.items()],
            zero_rows=[position + first for position in stats.zeros],
            nonfinite_rows=[position + first for position in stats.nonfinite],
            untrained_rows=row_ranges(position + first for position in self.untrained),
            tiling=tiling | {"copies": repeated.copies} if repeated.period else None,
            duplicates=[[position + first for position in group] for group in repeated.groups],
            seams=[{"length": length, "positions": positions} for length, positions in self.seams.items()],
        )

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
                "origin": "offset" if position < 0 else "" if self.new_rows is None else origin,
                "remarks": [remark for remark, holds in remarks.items() if holds],
            }
            found.append(to_json(figures))
        return found


@dataclass(frozen=True)
class Limit:
    """One place that states a length.

    Attributes:
        file: Path below the checkpoint's root.
        key: The path of keys with dots, or a tensor's name.
        value: What stands there: a number, a tensor's length, a padding strategy, or other values as text; None where
            nothing does.
        tokens: How many token positions that means; None where it sets no limit.
        client: Who obeys it.
        table: The table that it is about.
        why: What follows where it does not agree with that table; else empty.
        mend: The command that mends it; None where nothing needs to be.
    """

    file: str
    key: str
    value: Any
    tokens: int | None
    client: str
    table: str
    why: str = ""
    mend: str | None = None

    json_properties: ClassVar = ("agrees",)

    def __post_init__(self) -> None:
        is_padding = isinstance(self.value, dict) and self.tokens is not None
        if not (self.value is None or isinstance(self.value, int) or is_padding):
            object.__setattr__(self, "value", str(self.value))  # JSON has no infinity, which 1e400 is read as

    @property
    def agrees(self) -> bool:
        """Whether it agrees with its table."""
        return not self.why


@dataclass(frozen=True)
class ClientLimit:
    """What a user of one client gets.

    Attributes:
        client: ``transformers`` (with truncation=True), ``sentence-transformers``, or ``tokenizers`` alone.
        tokens: How many tokens of a text it reads; None where it cuts nowhere, 0 where the model does not load.
        decided_by: The place that decides it.
        beyond: What becomes of a longer text: ``cut``, ``fails`` in the model, ``last position`` (its end shares
            that), ``not cut``, or ``not loaded``.
    """

    client: str
    tokens: int | None
    decided_by: str
    beyond: str


@dataclass(frozen=True)
class Inspection:
    """What was found in a checkpoint.

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
