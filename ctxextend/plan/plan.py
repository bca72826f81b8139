"""The plan of a resize: a value that says what changes in a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.json_output import Result, not_in_json
from ctxextend.limits.length_edits import Edit
from ctxextend.notes import Code, Level, Note
from ctxextend.plan.buffers import BufferPlan, plan_buffers
from ctxextend.plan.choose import choose_methods
from ctxextend.plan.edits import plan_edits
from ctxextend.plan.gguf_edits import as_gguf_states, check_gguf_settings, with_methods_note
from ctxextend.plan.named_table import check_named_table
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.stated_type import check_own_code, with_type_note
from ctxextend.plan.table_checks import check_width
from ctxextend.plan.table_plan import ShortInputs, TablePlan
from ctxextend.plan.table_plans import plan_tables, with_length
from ctxextend.settings import Resize
from ctxextend.tables.choice import MethodChoice, limit_kept_first
from ctxextend.tables.method_facts import COPY, LIMITS, TRUNCATE


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Result, shows=("model_type", "method", "max_len_before", "max_len_after")):
    """What a resize changes in a checkpoint.

    A value: it is complete when it is created, and none of its members reads a file or raises.
    """

    kind: ClassVar = "method"  # of `summary`, as a label

    model: OpenedModel = field(metadata=not_in_json)  # the source
    settings: Resize = field(metadata=not_in_json)  # as requested, with `to` as a number
    tables: tuple[TablePlan, ...]  # the table for the tokenizer's input first
    edits: tuple[Edit, ...]  # changed values in JSON files
    # Position buffers that are not written, because transformers creates them.
    dropped: tuple[str, ...]
    # Position buffers at the new length.
    rebuilt_buffers: tuple[BufferPlan, ...] = field(metadata=not_in_json)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The source checkpoint."""
        return self.model.checkpoint

    @cached_property
    def model_type(self) -> str:
        """The model type."""
        return self.model.architecture.family.model_type

    @cached_property
    def stored(self) -> tuple[TablePlan, ...]:
        """The tables that the checkpoint contains; transformers computes the others."""
        return tuple(table for table in self.tables if table.is_stored)

    @cached_property
    def has_rows(self) -> bool:
        """Whether any position table is one of rows; rotary and unlimited positions have none."""
        return any(table.has_rows for table in self.tables)

    @cached_property
    def max_len_before(self) -> int:
        """Usable positions of the first table before the resize."""
        return self.tables[0].max_len_before

    @cached_property
    def max_len_after(self) -> int:
        """The requested context length, in usable positions."""
        return self.settings.positions

    @cached_property
    def is_changed(self) -> bool:
        """Whether the length of any table changes."""
        return any(table.is_changed for table in self.tables)

    @cached_property
    def creates_rows(self) -> bool:
        """Whether any table is extended, or any rotary setting is to change."""
        return any(table.is_extended for table in self.tables)

    @cached_property
    def keeps_learned_rows(self) -> bool:
        """Whether all learned rows are kept, bit for bit, at the start of every table.

        Inputs up to the old length then give identical outputs.
        """
        for table in self.tables:
            if table.rope:
                if any(plan.short_inputs is not ShortInputs.IDENTICAL for plan in table.rope):
                    return False
            elif table.choice is not None:
                length = table.max_len_before
                if table.choice.kept_rows(length) != length:
                    return False
        return True

    @cached_property
    def rounds_short_inputs(self) -> bool:
        """Whether short inputs give the same outputs as before, but for rounding."""
        for table in self.tables:
            if table.rope:
                worst = max(plan.short_inputs for plan in table.rope)
                if worst is ShortInputs.ROUNDED:
                    return True
        return False

    @cached_property
    def choices(self) -> dict[str, MethodChoice]:
        """The method of each extended table, by table name."""
        return {table.name: table.choice for table in self.tables if table.choice is not None}

    @cached_property
    def methods(self) -> dict[str, str]:
        """The method of each extended table with all of its settings, by table name."""
        return {name: choice.text for name, choice in self.choices.items()}

    @cached_property
    def main_choice(self) -> MethodChoice:
        """The method that creates new rows.

        If the tables' methods differ, that of the first table whose learned rows change.
        """
        choices = list(self.choices.values())
        for choice in choices:
            if not choice.keeps_learned_rows:
                return choice
        return choices[0] if choices else self.settings.choice

    @cached_property
    def method(self) -> str:
        """The name of the method that creates new rows.

        It is ``truncate`` when shrinking, and ``copy`` or ``limits`` if nothing changes.
        """
        if self.creates_rows:
            return self.main_choice.name
        if self.is_changed:
            return TRUNCATE
        return COPY if self.has_rows else LIMITS

    def choice_of(self, table: TablePlan) -> MethodChoice:
        """Return the method of one of `tables`, or the requested one if it is not extended."""
        if table.choice is None:
            return self.settings.choice
        return table.choice


def plan_model(
    model: OpenedModel,
    settings: Resize,
    recorded: Mapping[str, MethodChoice] | None = None,
    *,
    checks_width: bool = True,
) -> Plan:
    """Plan the resize of an open checkpoint.

    Only headers and small files are read, and stored position tables that are extended.

    Args:
        model: The source.
        settings: The length and the method.
        recorded: Methods that a recipe records, by table name; they replace the one in `settings`.
        checks_width: Whether to fail if the config states another width than a table has.

    Raises:
        CheckpointError: A file is malformed, or config and table disagree.
        UnsupportedModelError: The positions are those of the folder's own code.
        ResizeError: The length, the method or another setting is invalid for this model.
    """
    recorded = recorded or {}
    checkpoint = model.checkpoint
    check_named_table(checkpoint, model.ref)
    check_own_code(model)
    settings = with_length(settings, model.tables)
    has_config = bool(checkpoint.config)
    is_gguf = gguf_of(checkpoint) is not None
    if is_gguf:
        check_gguf_settings(model, settings)
        model = with_methods_note(model, settings)
    tables = plan_tables(model.tables, settings, recorded, has_config=has_config)
    if is_gguf:
        tables = as_gguf_states(tables)
    for table in tables:
        if checks_width and table.is_stored:
            check_width(table.location, table.hidden_size, table.name)
    if any(table.is_stored and table.is_changed for table in tables):
        model = model.without_other_format()
    # A method keeps at most all learned rows.
    learned = max(table.max_len_before for table in tables)
    given = settings.choice.keep_first
    kept = limit_kept_first(settings.choice, learned).keep_first
    if kept < given:
        settings = replace(settings, keep_first=kept)
        text = f"--keep-first {given} is taken as {learned}: the table has {learned} learned rows."
        model = model.with_note(Note(Code.METHOD, Level.NOTE, text))
    tables = choose_methods(checkpoint, tables, settings, recorded)
    edits = plan_edits(model, tables, settings)
    dropped, rebuilt = plan_buffers(checkpoint, tables, fix_limits=settings.fix_limits)
    return Plan(
        model=with_type_note(model),
        settings=settings,
        tables=tables,
        edits=edits,
        dropped=dropped,
        rebuilt_buffers=rebuilt,
    )


def with_settings(plan: Plan, settings: Resize) -> Plan:
    """Return a plan of the same lengths with another method for tables of rows.

    Raises:
        CheckpointError: A table cannot be read.
        ResizeError: The method cannot extend a table.
    """
    tables = choose_methods(plan.checkpoint, plan.tables, settings, {})
    return replace(plan, settings=settings, tables=tables)
