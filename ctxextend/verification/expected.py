"""What a checkpoint should contain, as one value: everything that `verify` compares with."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.mistral_files import format_files
from ctxextend.conversion.conversion import Conversion
from ctxextend.limits.length_edits import Edit
from ctxextend.plan.buffers import BufferPlan
from ctxextend.plan.choose import resize_rows
from ctxextend.plan.plan import Plan
from ctxextend.plan.table_plan import TablePlan
from ctxextend.planned import Planned
from ctxextend.provenance import Provenance
from ctxextend.tables.choice import MethodChoice

TableValues = NDArray[Any]  # the values of a table, shape (rows, hidden_size)


class FoundBy(Enum):
    """How the resize or conversion that should have created a checkpoint was found."""

    PLAN = auto()  # it has just been executed
    RECIPE = auto()
    DETECTION = auto()  # this method with its defaults recreates all rows
    CLOSEST = auto()  # no method recreates all rows: this one recreates most


@dataclass(frozen=True)
class Recorded:
    """What the recipes of a checkpoint state beyond the settings of its resize or conversion."""

    trainable: str | None = None  # what was trained: one of `TRAINABLE`, or None
    adapted: frozenset[str] = frozenset()  # tensors that adapters changed, with ``*`` for layers
    unregistered_method: str | None = None  # None: the method is registered
    chain: tuple[Provenance, ...] = ()  # its recipe and those of its bases, newest first
    hashes: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each table, as written

    @property
    def is_trained(self) -> bool:
        """Whether a training changed any weights."""
        return bool(self.trainable or self.adapted)

    @property
    def keeps_old_weights(self) -> bool:
        """Whether no training changed weights that short inputs use: only new rows, if any."""
        return not self.adapted and self.trainable in (None, "new")


@dataclass(frozen=True)
class ExpectedRows:
    """How the rows of a stored table are recreated from those of the base."""

    method: str
    resize: Callable[[TableValues], TableValues]  # (rows_before, d) -> (rows_after, d)
    # Rows at the start that are copied bit for bit: reserved ones, and those that the method keeps.
    kept: int
    tolerance: float  # of other rows, relative to the median norm; 0: bit for bit


@dataclass(frozen=True)
class ExpectedBuffers:
    """The position buffers that a resize or conversion changes."""

    dropped: tuple[str, ...]  # names of those that are not written
    rebuilt: tuple[BufferPlan, ...]  # those that are written at the new length


@dataclass(frozen=True)
class ExpectedFiles:
    """The files of an output, by their paths in it."""

    names: Collection[str]  # all of them, with those of the weights
    texts: Mapping[str, bytes]  # the content of those that are edited or created
    copied: tuple[str, ...]  # those that are copied from the base
    edits: tuple[Edit, ...]  # changed values in JSON files


@dataclass(frozen=True)
class HowFound:
    """How it was found what a checkpoint should contain."""

    found_by: FoundBy
    keep_first: int = 0  # rows that a detected method keeps
    notes: tuple[str, ...] = ()  # for example why the recipe was not used


@dataclass(frozen=True)
class Expected:
    """The content of an output of a resize or a conversion, and what was trained afterwards."""

    base: Checkpoint  # of a conversion: the twin in memory
    conversion: Conversion | None  # None: a resize
    method: str | None  # the method of new rows; None of a conversion to other positions
    tables: tuple[TablePlan, ...]
    rows: Mapping[str, ExpectedRows]  # of stored tables, by name
    max_len: int  # the context length of the output, in usable positions
    buffers: ExpectedBuffers
    files: ExpectedFiles
    has_other_tables: bool  # whether the model has several tables, also unchanged ones
    changes_positions: bool  # whether any table or rotary setting changes
    # Whether no position of the base changes its meaning, so that short inputs give its outputs.
    keeps_positions: bool
    rounds_positions: bool  # whether they keep it but for rounding
    how_found: HowFound
    recorded: Recorded

    @property
    def stored(self) -> tuple[TablePlan, ...]:
        """The tables that the checkpoint contains; transformers computes the others."""
        return tuple(table for table in self.tables if table.is_stored)

    @property
    def replaces_positions(self) -> bool:
        """Whether it is a conversion to positions of another scheme."""
        return self.conversion is not None and not self.conversion.twin.has_windows

    @property
    def windows(self) -> Conversion | None:
        """The conversion to attention windows, which keeps positions; None if it is none."""
        if self.conversion is not None and self.conversion.twin.has_windows:
            return self.conversion
        return None

    @property
    def has_rope_changes(self) -> bool:
        """Whether any rotary setting changes."""
        return any(table.rope for table in self.tables)

    @property
    def stale_files(self) -> frozenset[str]:
        """Files in Mistral's own format, which an output of trained weights must not have."""
        if not self.recorded.is_trained:
            return frozenset()
        return frozenset(format_files(self.base))

    @property
    def kind(self) -> str:
        """What creates the checkpoint from its base, as a noun."""
        return "conversion" if self.conversion else "resize"


def expect(
    planned: Planned,
    found_by: FoundBy,
    recorded: Recorded | None = None,
    notes: tuple[str, ...] = (),
) -> Expected:
    """Return what a planned output contains."""
    plan = planned.plan
    output = planned.output
    conversion = planned.conversion
    method: str | None = plan.method
    if conversion is not None and not conversion.twin.has_windows:
        method = None
    keeps_positions = plan.keeps_learned_rows if plan.creates_rows else True
    keep_first = 0
    if found_by is FoundBy.DETECTION and plan.creates_rows:
        keep_first = plan.settings.choice.keep_first
    return Expected(
        base=plan.checkpoint,
        conversion=conversion,
        method=method,
        tables=plan.tables,
        rows=expected_rows(plan),
        max_len=plan.max_len_after,
        buffers=ExpectedBuffers(dropped=plan.dropped, rebuilt=plan.rebuilt_buffers),
        files=ExpectedFiles(
            names=output.file_sizes.keys(),
            texts=output.texts,
            copied=(*output.files.copied, *output.files.linked),
            edits=plan.edits,
        ),
        has_other_tables=len(plan.model.tables) > 1,
        changes_positions=plan.is_changed,
        keeps_positions=keeps_positions,
        rounds_positions=plan.rounds_short_inputs,
        how_found=HowFound(found_by=found_by, keep_first=keep_first, notes=notes),
        recorded=recorded or Recorded(),
    )


def expected_rows(plan: Plan) -> dict[str, ExpectedRows]:
    """Return how each stored table of a plan is recreated, by name."""
    found = dict[str, ExpectedRows]()
    for table in plan.stored:
        choice = plan.choice_of(table)
        # A table that gets no new rows has no method: it is cut, or stays as it is.
        method = plan.method if table.choice is None else choice.name
        learned = min(table.rows_before, table.rows_after) - table.reserved_rows
        found[table.name] = ExpectedRows(
            method=method,
            resize=partial(_resize, table, choice),
            kept=table.reserved_rows + choice.kept_rows(learned),
            tolerance=choice.facts.tolerance if plan.creates_rows else 0.0,
        )
    return found


def _resize(table: TablePlan, choice: MethodChoice, before: TableValues) -> TableValues:
    return resize_rows(table, before, choice)
