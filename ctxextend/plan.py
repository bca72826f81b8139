"""The plan of a resize: a value that says what changes in a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.features import SCALED_SETTINGS
from ctxextend.checkpoint.json_edit import Edit
from ctxextend.checkpoint.writing import Layout, plan_layouts
from ctxextend.errors import ResizeError
from ctxextend.json_output import Result, not_in_json
from ctxextend.limits.edits import plan_edits
from ctxextend.notes import Code, Level, Note
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.opening.own_code import check_own_code, with_type_note
from ctxextend.positions.change import Change, NewTensor, ShortInputs
from ctxextend.positions.positions import Positions, of_part
from ctxextend.settings import Convert, Resize
from ctxextend.tables.method_facts import TRUNCATE, MethodChoice
from ctxextend.tables.methods import TRUNCATION_CHOICE


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Result, shows=("model_type", "method", "max_len_before", "max_len_after")):
    """What a resize changes in a checkpoint.

    A value: it is complete when it is created, and none of its members reads a file or raises.
    """

    kind: ClassVar = "method"  # of `summary`, as a label

    model: OpenedModel = field(metadata=not_in_json)  # the source
    settings: Resize = field(metadata=not_in_json)  # as requested, with `to` as a number
    # The positions for the tokenizer's input first.
    changes: tuple[Change, ...] = field(metadata={"json": "tables"})
    edits: tuple[Edit, ...]  # changed values in JSON files
    # Of weights files that change or are renamed, by new name.
    layouts: Mapping[str, Layout] = field(metadata=not_in_json)
    # Whether limits disagree that are left as they are, since the length stays.
    has_wrong_limits: bool = field(default=False, metadata=not_in_json)
    # The settings of a conversion, as recipes state them; None of a resize.
    convert: Convert | None = field(default=None, metadata=not_in_json)
    # The context length of a conversion's source: a twin has its new length already.
    length_before: int | None = field(default=None, metadata=not_in_json)

    # What follows from these values.
    checkpoint: Checkpoint = field(init=False, metadata=not_in_json)  # the source
    output_name: str = field(init=False, metadata=not_in_json)  # of the output, by default
    model_type: str = field(init=False, metadata=not_in_json)
    # Of the first table, or of a conversion's source.
    max_len_before: int = field(init=False, metadata=not_in_json)
    max_len_after: int = field(init=False, metadata=not_in_json)  # as requested
    # The tables that the checkpoint contains; transformers computes the others.
    stored: tuple[Change, ...] = field(init=False, metadata=not_in_json)
    # The tables that are extended, and positions whose rotary settings are to change.
    extended: tuple[Change, ...] = field(init=False, metadata=not_in_json)
    is_changed: bool = field(init=False, metadata=not_in_json)  # whether any length changes
    # The tables and position buffers of the output, by name; of these, the buffers; and buffers
    # that are not written, because transformers creates them.
    tensors: Mapping[str, NewTensor] = field(init=False, metadata=not_in_json)
    buffers: tuple[str, ...] = field(init=False, metadata=not_in_json)
    dropped: tuple[str, ...] = field(init=False)
    # What inputs up to the old length get: the largest change of all positions.
    short_inputs: ShortInputs = field(init=False, metadata=not_in_json)
    # The method of each extended table with all of its settings, by table name.
    methods: Mapping[str, str] = field(init=False, metadata=not_in_json)
    # The method that creates new rows. If the tables' methods differ, that of the first table whose
    # learned rows change.
    main_choice: MethodChoice = field(init=False, metadata=not_in_json)
    # The method that gives the same rows again, for recipes: that of all tables, with the settings
    # that were chosen. None if no table changes; if tables differ, what the user requested.
    recorded_method: MethodChoice | None = field(init=False, metadata=not_in_json)
    # Its name; ``truncate`` when shrinking, and ``copy`` or ``limits`` if nothing changes.
    method: str = field(init=False, metadata=not_in_json)
    # The engine that the output is for: the only one that reads it, or the requested one.
    engine: str | None = field(init=False, metadata=not_in_json)

    def __post_init__(self) -> None:
        changes = self.changes
        extended = tuple(change for change in changes if change.is_extended)
        is_changed = any(change.is_changed for change in changes)
        choices = [change.choice for change in extended if change.choice is not None]
        changing = [choice for choice in choices if not choice.keeps_learned_rows]
        main_choice = (changing or choices or [self.settings.choice])[0]
        methods = {item.name: item.choice.text for item in extended if item.choice}
        method = main_choice.name
        recorded_method = self.settings.choice if self.settings.method is not None else None
        if not extended:
            method = TRUNCATE if is_changed else changes[0].positions.unchanged_method
            recorded_method = TRUNCATION_CHOICE if is_changed else None
        elif len(set(methods.values())) == 1:
            recorded_method = main_choice
        tensors = [tensor for change in changes for tensor in change.tensors]
        dropped = [name for change in changes for name in change.dropped]
        name = self.model.checkpoint.source.name
        if self.convert is not None:
            name = f"{name}-{self.convert.scheme}"
        values = {
            "checkpoint": self.model.checkpoint,
            "output_name": f"{name}-{self.settings.length}",
            "model_type": self.model.architecture.family.model_type,
            "max_len_before": self.length_before or changes[0].max_len_before,
            "max_len_after": self.settings.length,
            "stored": tuple(change for change in changes if change.dtype),
            "extended": extended,
            "is_changed": is_changed,
            "tensors": {tensor.name: tensor for tensor in tensors},
            "buffers": tuple(tensor.name for tensor in tensors if not tensor.is_table),
            "dropped": tuple(dict.fromkeys(dropped)),
            "short_inputs": max(change.short_inputs for change in changes),
            "methods": methods,
            "main_choice": main_choice,
            "recorded_method": recorded_method,
            "method": method,
            "engine": self.model.checkpoint.engine or self.settings.engine,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)


def make_plan(
    model: OpenedModel,
    settings: Resize,
    recorded: Mapping[str, MethodChoice] | None = None,
) -> Plan:
    """Plan the resize of an open checkpoint.

    Only headers and small files are read, and stored position tables that are extended.

    Args:
        model: The source.
        settings: The length and the method.
        recorded: Methods that a recipe records, by table name; they replace the one in `settings`.

    Raises:
        CheckpointError: A file is malformed, or config and table disagree.
        UnsupportedModelError: The positions are those of the folder's own code.
        ResizeError: The length, the method or another setting is invalid for this model.
    """
    if model.ref.table is not None:
        from ctxextend.opening.named_table import check_named_table  # few users name a table

        check_named_table(model.checkpoint, model.ref.table)
    if model.own_class is not None:
        check_own_code(model)
    selected = of_part(model.tables, settings.part)
    settings = with_length(settings, selected)
    features = [f"--method {settings.choice.name}"]
    for key, value in settings.choice.settings.items():
        if value is not None:
            features.append(f"{features[0]}:{key}")
    model.checkpoint.check(*features)
    learned = max(positions.length() for positions in selected)
    given = settings.choice.keep_first
    if settings.choice.facts.reads_kept_rows and given > learned:
        text = f"--keep-first {given} is taken as {learned}: the table has {learned} learned rows."
        model = model.with_notes(Note(Code.METHOD, Level.NOTE, text))
        settings = replace(settings, keep_first=learned)
    model.checkpoint.check_unchanged()  # the rows of a file that was cut since cannot be mapped
    changes = change_positions(model.tables, selected, settings, recorded or {})
    if any(change.settings and change.scales for change in changes):
        model.checkpoint.check(SCALED_SETTINGS)
    has_effect = settings.fix_limits or any(change.is_changed for change in changes)
    edits = plan_edits(model, changes, fix_limits=settings.fix_limits or not has_effect)
    if model.ref.model_type is not None:
        model = with_type_note(model)
    return Plan(
        model=model,
        settings=settings,
        changes=changes,
        edits=edits if has_effect else (),
        layouts=weight_layouts(model.checkpoint, changes),
        has_wrong_limits=bool(edits) and not has_effect,
    )


def weight_layouts(checkpoint: Checkpoint, changes: Sequence[Change]) -> Mapping[str, Layout]:
    """Return the new layout of every weights file that changes, by its new name.

    Files of other formats than safetensors are among them, since they are rewritten.

    Raises:
        CheckpointError: A header would exceed the limit of safetensors.
    """
    shapes = {}
    dropped = list[str]()
    for change in changes:
        dropped += change.dropped
        for tensor in change.tensors:
            # Buffers are rebuilt even if the length stays: they may be wrong.
            if change.is_changed or not tensor.is_table:
                shapes[tensor.name] = tensor.shape
    return plan_layouts(checkpoint, shapes, dropped)


def with_length(settings: Resize, selected: Sequence[Positions]) -> Resize:
    """Replace a factor such as ``4x`` with a number of positions.

    Raises:
        CheckpointError: The config states no valid length of positions without a table.
        ResizeError: The tables differ in length, so that the factor means several lengths.
    """
    if isinstance(settings.to, int):
        return settings
    lengths = {positions.part: positions.length() for positions in selected}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{part} {length}" for part, length in lengths.items())
        raise ResizeError(
            f"--to {settings.to}: the tables differ in length ({listed}).",
            "Pass a number with --to, or one table with --part.",
        )
    _, length = lengths.popitem()
    return replace(settings, to=settings.to.times(length))


def change_positions(
    found: Sequence[Positions],
    selected: Sequence[Positions],
    settings: Resize,
    recorded: Mapping[str, MethodChoice],
) -> tuple[Change, ...]:
    """Return the changes of the requested positions of a checkpoint or of a loaded model.

    Args:
        found: All positions of the model.
        selected: Those to change.
        settings: With the length as a number.
        recorded: Methods that a recipe records, by table name; they replace the one in `settings`.

    Raises:
        CheckpointError: The config and a table disagree.
        ResizeError: The model does not support the length, or a setting does not apply.
    """
    lengths = _new_lengths(found, selected, settings)
    changes = list[Change]()
    for positions in selected:
        own = replace(settings, method=recorded.get(positions.name, settings.method))
        length = lengths[positions.name]
        changes.append(positions.change(own, length, has_others=len(selected) > 1))
    return tuple(changes)


def _new_lengths(
    found: Sequence[Positions], selected: Sequence[Positions], settings: Resize
) -> dict[str, int]:
    """Return the new number of usable positions of each selected table, by name.

    Tables can share a config key, which must then fit the longest.

    Raises:
        ResizeError: A table that is not selected shares a key, or one grows and another shrinks.
    """
    keys = {positions.length_key for positions in selected}
    names = {positions.name for positions in selected}
    for other in found:
        if other.length_key in keys and other.name not in names:
            both = other.part.rpartition(".")[0]
            raise ResizeError(
                f"--part {settings.part}: {other.name} shares the config key {other.length_key}, "
                "so both must be resized together.",
                f"Use --part {both}." if both else "Remove --part.",
            )

    lengths = dict[str, int]()
    for positions in selected:
        values = [
            other.key_value(settings.length)
            for other in found
            if other.length_key == positions.length_key
        ]
        lengths[positions.name] = positions.length_of_key(max(values))
    grows = [item for item in selected if lengths[item.name] > item.length()]
    shrinks = [item for item in selected if lengths[item.name] < item.length()]
    if grows and shrinks:
        parts = [f"--part {item.part or '…'}" for item in (grows[-1], shrinks[-1])]
        raise ResizeError(
            f"--to {settings.to} would extend {grows[-1].name} (from {grows[-1].length()}) and "
            f"shrink {shrinks[-1].name} (from {shrinks[-1].length()}).",
            f"Resize one at a time: {' or '.join(parts)}.",
        )
    return lengths
