"""The plan of a resize: a value that says what changes in a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.json_output import Result, not_in_json
from ctxextend.limits.length_edits import Edit
from ctxextend.notes import METHOD, NOTE, Note
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

    # What follows from these.

    checkpoint: Checkpoint = field(init=False, metadata=not_in_json)  # the source
    model_type: str = field(init=False, metadata=not_in_json)
    # The tables that the checkpoint contains; transformers computes the others.
    stored: tuple[TablePlan, ...] = field(init=False, metadata=not_in_json)
    # Whether any position table is one of rows; rotary and unlimited positions have none.
    has_rows: bool = field(init=False, metadata=not_in_json)
    # Usable positions of the first table before the resize, and those that were requested.
    max_len_before: int = field(init=False, metadata=not_in_json)
    max_len_after: int = field(init=False, metadata=not_in_json)
    # Whether the length of any table changes, or any rotary setting.
    is_changed: bool = field(init=False, metadata=not_in_json)
    # Whether any table is extended, or any rotary setting is to change.
    creates_rows: bool = field(init=False, metadata=not_in_json)
    # Whether all learned rows are kept, bit for bit, at the start of every table: inputs up to the
    # old length then give identical outputs.
    keeps_learned_rows: bool = field(init=False, metadata=not_in_json)
    # Whether short inputs give the same outputs as before, but for rounding.
    rounds_short_inputs: bool = field(init=False, metadata=not_in_json)
    # The method of each extended table by table name, and its text with all settings.
    choices: dict[str, MethodChoice] = field(init=False, metadata=not_in_json)
    methods: dict[str, str] = field(init=False, metadata=not_in_json)
    # The method that creates new rows. If the tables' methods differ, that of the first table whose
    # learned rows change.
    main_choice: MethodChoice = field(init=False, metadata=not_in_json)
    # Its name; ``truncate`` when shrinking, and ``copy`` or ``limits`` if nothing changes.
    method: str = field(init=False, metadata=not_in_json)

    def __post_init__(self) -> None:
        tables = self.tables
        is_changed = any(table.is_changed for table in tables)
        creates_rows = any(table.is_extended for table in tables)
        has_rows = any(table.has_rows for table in tables)

        # Short inputs
        keeps_learned_rows = True
        rounds_short_inputs = False
        for table in tables:
            effects = {plan.short_inputs for plan in table.rope}
            if effects:
                keeps_learned_rows &= effects == {ShortInputs.IDENTICAL}
                rounds_short_inputs |= max(effects) is ShortInputs.ROUNDED
            elif table.choice is not None:
                length = table.max_len_before
                keeps_learned_rows &= table.choice.kept_rows(length) == length

        # Methods
        choices = {table.name: table.choice for table in tables if table.choice is not None}
        changing = [choice for choice in choices.values() if not choice.keeps_learned_rows]
        main_choice = [*changing, *choices.values(), self.settings.choice][0]
        method = main_choice.name
        if not creates_rows and is_changed:
            method = TRUNCATE
        elif not creates_rows:
            method = COPY if has_rows else LIMITS

        vars(self).update(  # a frozen dataclass has no other way
            checkpoint=self.model.checkpoint,
            model_type=self.model.architecture.family.model_type,
            stored=tuple(table for table in tables if table.is_stored),
            has_rows=has_rows,
            max_len_before=tables[0].max_len_before,
            max_len_after=self.settings.positions,
            is_changed=is_changed,
            creates_rows=creates_rows,
            keeps_learned_rows=keeps_learned_rows,
            rounds_short_inputs=rounds_short_inputs,
            choices=choices,
            methods={name: choice.text for name, choice in choices.items()},
            main_choice=main_choice,
            method=method,
        )

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
        model = model.with_note(Note(METHOD, NOTE, text))
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
