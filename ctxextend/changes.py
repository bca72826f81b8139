"""What a resize changes in a checkpoint, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.layout import Layout, plan_layout
from ctxextend.checkpoints.limits import Edit
from ctxextend.checkpoints.tensorfile import TensorFile
from ctxextend.families.schema import Family
from ctxextend.recipe import Recipe
from ctxextend.tableplan import TablePlan

__all__ = ["CARD_FILE", "RECIPE_FILE", "Changes"]

RECIPE_FILE = "ctxextend.yaml"
CARD_FILE = "README.md"


@dataclass(frozen=True)
class Changes:
    """What a resize changes, known from shapes alone.

    Attributes:
        recipe: What was asked for.
        checkpoint: The source, its headers read.
        family: The facts about its architecture.
        tables: What becomes of each position table.
        edits: Values that change in JSON files.
        dropped: Position buffers that are left out of the weights, by name.
    """

    recipe: Recipe
    checkpoint: Checkpoint
    family: Family
    tables: tuple[TablePlan, ...]
    edits: tuple[Edit, ...]
    dropped: tuple[str, ...]

    @property
    def max_len_before(self) -> int:
        """Usable token positions now."""
        return self.tables[0].max_len_before

    @property
    def max_len_after(self) -> int:
        """Usable token positions wanted."""
        return self.recipe.resize.to

    @property
    def makes_rows(self) -> bool:
        """Whether new rows are made: False for a shorter table and for one that stays."""
        return self.max_len_after > self.max_len_before

    @property
    def method(self) -> str:
        """The method's name; `truncate` for a shorter table, `copy` for one that stays."""
        if self.max_len_after < self.max_len_before:
            return "truncate"
        return self.recipe.resize.options.method if self.makes_rows else "copy"

    @property
    def default_output(self) -> Path:
        """Where the checkpoint goes if nothing else is said: ``<name>-<N>`` in the current folder."""
        return Path(f"{self.checkpoint.source.name}-{self.max_len_after}")

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The new layout of every weights file that changes."""
        changed = {}
        for file in self.checkpoint.weights:
            tables = [table for table in self.tables_in(file) if table.rows_after != table.rows_before]
            dropped = [name for name in self.dropped if name in file.entries]
            if tables or dropped:
                shapes = {table.name: (table.rows_after, table.hidden_size) for table in tables}
                changed[self.checkpoint.relative(file)] = plan_layout(file, shapes, dropped)
        return changed

    @property
    def edits_index(self) -> bool:
        """Whether there is an index of shards, and it changes."""
        return self.checkpoint.index is not None and bool(self.layouts)

    @property
    def rewritten(self) -> tuple[str, ...]:
        """Weights files whose tensors change."""
        return tuple(self.layouts)

    @property
    def edited(self) -> tuple[str, ...]:
        """Text files that exist in the source and change."""
        return tuple(sorted(self.text_files & self.checkpoint.files))

    @property
    def created(self) -> tuple[str, ...]:
        """Text files that the source does not have."""
        return tuple(sorted(self.text_files - self.checkpoint.files))

    @property
    def copied(self) -> tuple[str, ...]:
        """Files that are copied byte for byte."""
        return tuple(sorted(self.checkpoint.files - self.text_files - set(self.rewritten)))

    @property
    def output_files(self) -> frozenset[str]:
        """Every file of the output."""
        return self.checkpoint.files | self.text_files

    def tables_in(self, file: TensorFile) -> list[TablePlan]:
        """Return the tables that a weights file holds."""
        return [table for table in self.tables if table.name in file.entries]

    @property
    def text_files(self) -> frozenset[str]:
        """Text files that are edited or made."""
        index = [self.checkpoint.index_file] if self.edits_index else []
        return frozenset((*(edit.file for edit in self.edits), *index, RECIPE_FILE, CARD_FILE))
