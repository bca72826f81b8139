"""The notes of a removal of rotary positions, and its output: the same weights."""

from collections.abc import Sequence
from dataclasses import replace

from ctxextend.conversion.conversion_output import Converted, prepare_conversion_output
from ctxextend.errors import printable
from ctxextend.notes import Code, Level, Note
from ctxextend.output.card import card_sentences
from ctxextend.output.output import Output
from ctxextend.plan.effects import NOT_TRAINED, far_notes
from ctxextend.plan.length_notes import generation_notes, limit_notes
from ctxextend.plan.plan import Plan
from ctxextend.plan.plan_notes import model_notes
from ctxextend.runtimes.runtime_statements import RuntimeStatement, engine_notes
from ctxextend.settings import Convert
from ctxextend.tables.rope_types import NEW, TYPE
from ctxextend.version import __version__


def removal_notes(plan: Plan, statements: Sequence[RuntimeStatement]) -> tuple[Note, ...]:
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
    if any(table.rope_dialects == (NEW,) for table in plan.tables):
        text = (
            f"Rotary settings are stated only as {NEW}: programs that do not read it, such as "
            "transformers 4, still rotate."
        )
        notes.append(Note(Code.ENGINE, Level.NOTE, text))
    notes += model_notes(plan)
    notes += engine_notes(statements, plan.max_len_after)
    return tuple(notes)


def summarise(plan: Plan) -> str:
    """Return the removal in a few words, with the rope types that rotate nothing."""
    kinds = [str(rope.after[TYPE]) for table in plan.tables for rope in table.rope]
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
