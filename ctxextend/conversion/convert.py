"""Plan a conversion, and say what to know of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ctxextend.checkpoint.json_edit import Edit, edit
from ctxextend.conversion.conversion import Conversion, twin_checkpoint
from ctxextend.errors import ResizeError, UnsupportedModelError, listed
from ctxextend.families.causal_masks import mask_remover
from ctxextend.limits.edits import plan_edits, raises_generation_limit
from ctxextend.notes import Code, Level, Note
from ctxextend.opening.opened_model import OpenedModel, identify_model
from ctxextend.opening.own_code import check_own_code, with_type_note
from ctxextend.plan import Plan, make_plan, weight_layouts, with_length
from ctxextend.plan_notes import (
    NOT_TRAINED,
    far_notes,
    generation_notes,
    limit_notes,
    model_notes,
    table_notes,
)
from ctxextend.positions.change import Change, ShortInputs
from ctxextend.provenance import SAME_LENGTH
from ctxextend.serving.engine_statements import Statement, engine_notes
from ctxextend.settings import Convert, Resize
from ctxextend.tables.method_facts import COPY
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rope_types import NEW


def plan_twin(conversion: Conversion) -> Plan:
    """Plan the limits of a twin that already has its new length, and the table of any other.

    Raises:
        CheckpointError: A file of the source is malformed.
        ResizeError: The length is too large, or the method cannot create the rows.
    """
    settings = conversion.settings
    method = settings.method
    creates_rows = conversion.twin.has_windows and settings.length > conversion.max_len_before
    if method is None and creates_rows:
        method = METHODS[COPY].choice()
    # The config of the twin states its own model type, so that one in the reference, which is that
    # of the source, must not apply. The plan has the whole reference, since its recipe states it.
    ref = conversion.model.ref
    twin = identify_model(twin_checkpoint(conversion), replace(ref, model_type=None))
    resize = Resize(settings.length, method=method, part=conversion.twin.part, fix_limits=True)
    plan = make_plan(replace(twin, ref=ref), resize)
    if plan.extended:
        settings = replace(settings, method=plan.main_choice)

    # The config is complete as it is generated: it has never been a file to edit.
    checkpoint = plan.checkpoint
    config = checkpoint.config_file
    values = {change.path: change.after for change in plan.edits if change.file == config}
    generated = {**checkpoint.generated, config: edit(checkpoint.text(config), values)}
    edits = list[Edit]()
    for change in plan.edits:
        # Where generated texts stop is the user's choice: it is not raised, but noted.
        if change.file != config and not raises_generation_limit(change):
            edits.append(change)
    return replace(
        plan,
        model=replace(plan.model, checkpoint=replace(checkpoint, generated=generated)),
        edits=tuple(edits),
        convert=settings,
        length_before=conversion.max_len_before,
    )


def plan_removal(model: OpenedModel, settings: Convert) -> Plan:
    """Plan the removal of all rotary positions of an open checkpoint.

    Raises:
        CheckpointError: The rotary settings, or a file to edit, are malformed.
        UnsupportedModelError: The positions are not rotary, the classes cannot remove them, or
            only positions tell the model the order of tokens.
        ResizeError: The length is shorter than the old one, or the old one is unknown.
        MethodError: A file of the folder cannot state the settings.
    """
    check_own_code(model)
    for positions in model.tables:
        question = positions.lengths.question
        if settings.to is None and question:
            message = f"{positions.file}: {question}."
            raise ResizeError(message, "Pass the context length of the output: --to N.")
    resize = with_length(Resize(settings.to or SAME_LENGTH), model.tables)
    changes = list[Change]()
    for positions in model.tables:
        changes.append(positions.change_to_none(resize.length, model.ref.source))
        cause = mask_remover(model.architecture, positions)
        if cause is not None:
            message = (
                f"{model.ref.source} cannot be converted to no positions: {cause} has no causal "
                "mask. Without positions, it could not know the order of tokens."
            )
            raise UnsupportedModelError(message, "Resize it instead, with ctxextend resize.")
        before = positions.length()
        if resize.length < before:
            message = (
                f"The model accepts {before} tokens: a conversion to no positions cannot make that "
                f"{resize.length}."
            )
            raise ResizeError(message, "Remove --to, or use a longer length.")
    return Plan(
        model=with_type_note(model),
        settings=resize,
        changes=tuple(changes),
        edits=plan_edits(model, changes, fix_limits=False),
        layouts=weight_layouts(model.checkpoint, changes),
        convert=replace(settings, to=resize.length),
    )


# Notes


def conversion_notes(
    plan: Plan, conversion: Conversion | None, runtimes: Sequence[Statement]
) -> tuple[Note, ...]:
    """Return the notes of a conversion.

    Args:
        plan: What changes.
        conversion: How the twin's tensors are computed; None if positions are removed.
        runtimes: What engines do with the output.

    Raises:
        CheckpointError: A JSON file of the source is malformed.
    """
    notes = list[Note]()
    if conversion is not None and conversion.twin.has_windows:
        notes += _window_notes(conversion, plan)
        notes += table_notes(plan)
    else:
        replaced = "learned positions"
        if conversion is None:
            replaced = "rotary positions: train it at its old length"
        text = (
            f"{NOT_TRAINED.format(plan.max_len_after)} Outputs are far from the source's, for "
            f"short inputs too, since all weights were trained with {replaced}."
        )
        notes.append(Note(Code.UNTRAINED, Level.NOTE, text))
    notes += far_notes(plan)
    if conversion is not None:
        notes += _tensor_notes(conversion, plan)
    notes += limit_notes(plan)
    notes += generation_notes(plan)
    if conversion is None and plan.changes[0].positions_after.dialects == (NEW,):
        text = (
            f"Rotary settings are stated only as {NEW}: programs that do not read it, such as "
            "transformers 4, still rotate."
        )
        notes.append(Note(Code.ENGINE, Level.NOTE, text))
    notes += model_notes(plan)
    notes += engine_notes(plan, runtimes)
    return tuple(notes)


def _window_notes(conversion: Conversion, plan: Plan) -> Iterator[Note]:
    """Yield what a twin with attention windows gives, and which tokens attend to all others."""
    after = plan.max_len_after
    side = conversion.settings.half_window
    text = "Rows change, so short inputs have other outputs too"
    if plan.short_inputs is ShortInputs.IDENTICAL:
        same = min(side, after, conversion.max_len_before)
        text = (
            f"Inputs up to {same} tokens give the source's outputs within float32 rounding, if "
            "padded on the right with an attention mask"
        )
    text += f"; in longer ones, each token attends to {side} tokens on either side."
    if plan.extended:
        yield Note(Code.UNTRAINED, Level.NOTE, f"{NOT_TRAINED.format(after)} {text}")
    else:
        yield Note(Code.SHORT_INPUTS, Level.NOTE, text)

    text = (
        f"{conversion.head.global_attention} attends to all others, unless you pass a "
        "global_attention_mask to the model."
    )
    yield Note(Code.ATTENTION_WINDOW, Level.NOTE, text)


def _tensor_notes(conversion: Conversion, plan: Plan) -> Iterator[Note]:
    """Yield warnings about tensors that are dropped or missing, and about what is less exact."""
    model_class = plan.checkpoint.model_class
    if conversion.dropped:
        text = f"Dropped {listed(conversion.dropped)}: {model_class} has no place for them."
        yield Note(Code.TENSORS, Level.WARNING, text)
    if conversion.missing:
        text = (
            f"The source has no values for {listed(conversion.missing)}: transformers fills them "
            "at random. Only pooler_output depends on them."
        )
        yield Note(Code.TENSORS, Level.WARNING, text)
    if conversion.twin.limits:
        yield Note(Code.TENSORS, Level.WARNING, f"{conversion.twin.limits}.")
