"""The notes of a removal of rotary positions, and its output: the same weights."""

from collections.abc import Sequence
from dataclasses import replace

from ctxextend.card import card_sentences
from ctxextend.checkpoint.writing import Output
from ctxextend.conversion.conversion_output import Converted, prepare_conversion_output
from ctxextend.errors import ResizeError, UnsupportedModelError, printable
from ctxextend.families.causal_masks import mask_remover
from ctxextend.limits.edits import plan_edits
from ctxextend.notes import Code, Level, Note
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.opening.own_code import check_own_code, with_type_note
from ctxextend.plan import Plan, weight_layouts, with_length
from ctxextend.plan_notes import NOT_TRAINED, far_notes, generation_notes, limit_notes, model_notes
from ctxextend.positions.change import Change
from ctxextend.provenance import SAME_LENGTH
from ctxextend.runtimes.engines import Statement
from ctxextend.serving.engine_facts import engine_notes
from ctxextend.settings import Convert, Resize
from ctxextend.tables.rope_types import NEW, TYPE
from ctxextend.version import __version__


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
    )


def removal_notes(plan: Plan, statements: Sequence[Statement]) -> tuple[Note, ...]:
    """Return the notes of a removal of rotary positions.

    Args:
        plan: What changes.
        statements: What engines do with the output.

    Raises:
        CheckpointError: A JSON file of the source is malformed.
    """
    text = (
        f"{NOT_TRAINED.format(plan.max_len_after)} Outputs are far from the source's, for short "
        "inputs too, since all weights were trained with rotary positions: train it at its old "
        "length."
    )
    notes = [Note(Code.UNTRAINED, Level.NOTE, text)]
    notes += far_notes(plan)
    notes += limit_notes(plan)
    notes += generation_notes(plan, old_length=plan.max_len_before)
    if any(change.positions_after.dialects == (NEW,) for change in plan.changes):
        text = (
            f"Rotary settings are stated only as {NEW}: programs that do not read it, such as "
            "transformers 4, still rotate."
        )
        notes.append(Note(Code.ENGINE, Level.NOTE, text))
    notes += model_notes(plan)
    notes += engine_notes(plan, statements)
    return tuple(notes)


def summarise(plan: Plan) -> str:
    """Return the removal in a few words, with the rope types that rotate nothing."""
    kinds = [
        str(settings[TYPE]) for change in plan.changes for settings in change.settings.values()
    ]
    named = " and ".join(dict.fromkeys(kinds))
    return f"{plan.model_type} without positions ({named} rotary settings that rotate nothing)"


def prepare_removal(plan: Plan, settings: Convert, notes: Sequence[Note]) -> Output:
    """Return the output of a removal of rotary positions, to be written by `write_output`.

    Args:
        plan: What changes.
        settings: With the length as a number.
        notes: What the model card says about it.

    Raises:
        CheckpointError: A file to edit cannot be read.
    """
    source = plan.checkpoint.source
    source_name = printable(source.hub_id or source.name)
    length = f"{plan.max_len_before} -> {plan.max_len_after} tokens"
    if plan.max_len_after == plan.max_len_before:
        length = f"{plan.max_len_after} tokens, as before"
    converted = Converted(
        source=plan.checkpoint,
        settings=settings,
        facts={"model_type": plan.model_type, "max_len_before": plan.max_len_before},
        records_rows=False,
        heading=f"Without positions, {plan.max_len_after} tokens",
        sentences=(
            f"{source_name} without its rotary positions, removed by ctxextend {__version__}: "
            f"{summarise(plan)}, {length}.",
            "All weights are the same: only config and tokenizer files were changed.",
            *card_sentences(notes),
        ),
    )
    return prepare_conversion_output(plan, converted)


def complete_settings(plan: Plan, settings: Convert) -> Convert:
    """Return the settings with the length as a number, as recipes state it."""
    return replace(settings, to=plan.max_len_after)
