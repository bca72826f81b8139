"""What a resize changes in a checkpoint, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.length_limits import Edit
from ctxextend.checkpoints.rewrite import Layout, plan_layout
from ctxextend.checkpoints.safetensors_file import TensorFile
from ctxextend.families.lookup import Architecture
from ctxextend.plan.buffers import BufferPlan
from ctxextend.plan.find_tables import OpenedModel
from ctxextend.plan.tableplan import TablePlan
from ctxextend.recipe import RECIPE_FILE, TRUNCATE, CheckpointRef, Resize

__all__ = ["CARD_FILE", "Changes"]

CARD_FILE = "README.md"


@dataclass(frozen=True)
class Changes:
    """What a resize changes, known from shapes alone.

    Attributes:
        model: The source, opened and recognised.
        settings: What was asked for.
        tables: What becomes of each position table, the one that reads the tokenizer's texts first.
        edits: Values that change in JSON files.
        dropped: Position buffers that are left out of the weights, by name.
        remade: Position buffers that are made anew at the new length.
    """

    model: OpenedModel
    settings: Resize
    tables: tuple[TablePlan, ...]
    edits: tuple[Edit, ...]
    dropped: tuple[str, ...]
    remade: tuple[BufferPlan, ...]

    @property
    def ref(self) -> CheckpointRef:
        """The source as the user named it."""
        return self.model.ref

    @property
    def checkpoint(self) -> Checkpoint:
        """The source, its headers read."""
        return self.model.checkpoint

    @property
    def architecture(self) -> Architecture:
        """What the registry knows of the source."""
        return self.model.architecture

    @property
    def family(self) -> str:
        """The model type."""
        return self.architecture.family.model_type

    @property
    def max_len_before(self) -> int:
        """Usable positions now of the table that is read first."""
        return self.tables[0].max_len_before

    @property
    def max_len_after(self) -> int:
        """Usable token positions wanted."""
        return self.settings.to

    @property
    def is_changed(self) -> bool:
        """Whether any table gets another length."""
        return any(table.is_changed for table in self.tables)

    @property
    def makes_rows(self) -> bool:
        """Whether new rows are made: False where tables get shorter or stay."""
        return any(table.rows_after > table.rows_before for table in self.tables)

    @property
    def keeps_learned_rows(self) -> bool:
        """Whether every learned row that a longer table begins with stays as it is, bit for bit."""
        options = self.settings.options
        return all(options.kept_of(table.max_len_before) == table.max_len_before for table in self.tables)

    @property
    def method(self) -> str:
        """The method's name; `truncate` for shorter tables, `copy` for those that stay."""
        if self.makes_rows:
            return self.settings.options.method
        return TRUNCATE if self.is_changed else "copy"

    @property
    def default_output(self) -> Path:
        """Where the checkpoint goes if nothing else is said: ``<name>-<N>`` in the current folder."""
        return Path(f"{self.checkpoint.source.name}-{self.max_len_after}")

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The new layout of every weights file that changes or gets another name."""
        changed = {}
        for file in self.checkpoint.weights:
            shapes, name = self._shapes(file), self.checkpoint.output_name(file)
            dropped = [dropped for dropped in self.dropped if dropped in file.entries]
            if shapes or dropped or name != self.checkpoint.relative(file):
                changed[name] = plan_layout(file, shapes, dropped)
        return changed

    def _shapes(self, file: TensorFile) -> dict[str, tuple[int, ...]]:
        tables = (table for table in self.tables_in(file) if table.is_changed)
        shapes: dict[str, tuple[int, ...]] = {table.name: (table.rows_after, table.hidden_size) for table in tables}
        return shapes | {plan.name: plan.shape for plan in self.remade if plan.name in file.entries}

    @property
    def edits_index(self) -> bool:
        """Whether there is an index of shards, and it changes."""
        return self.checkpoint.index is not None and bool(self.layouts)

    @property
    def rewritten(self) -> tuple[str, ...]:
        """Weights files of the output that are not copies."""
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
        edited = (edit.file for edit in self.edits)
        return frozenset((*edited, *index, *self.checkpoint.made, RECIPE_FILE, CARD_FILE))
