"""Explain the removal of rotary positions, and prepare its output: the same weights."""

from collections.abc import Sequence
from dataclasses import replace

from ctxextend.conversion.conversion_output import Converted, prepare_conversion_output
from ctxextend.errors import printable
from ctxextend.output.output import Output
from ctxextend.plan.effects import UNTRAINED
from ctxextend.plan.explain import Explanation, find_runtimes, model_notes, runtime_notes
from ctxextend.plan.file_warnings import file_warnings
from ctxextend.plan.length_notes import generation_notes
from ctxextend.plan.limit_warnings import low_limits
from ctxextend.plan.plan import Plan
from ctxextend.plan.runtime_facts import folder_facts
from ctxextend.settings import Convert
from ctxextend.tables.rope_types import NEW
from ctxextend.version import __version__

KEEP_HINT = "Train it at its old length with ctxextend train DIR --data TEXT --steps 200."


def explain_removal(plan: Plan) -> Explanation:
    """Explain the plan of a removal of rotary positions.

    Raises:
        CheckpointError: A JSON file of the source is malformed.
    """
    facts = folder_facts(plan)
    runtimes = find_runtimes(facts)
    return Explanation(
        summary=_summarise(plan),
        details=(_summarise(plan), _lengths_text(plan)),
        notes=(
            *model_notes(plan),
            *_dialect_notes(plan),
            *generation_notes(plan.model, plan.tables),
        ),
        warnings=(*low_limits(plan), *file_warnings(plan.checkpoint)),
        untrained=(),
        choices=(),
        effects=_describe_effects(plan),
        keep_hint=KEEP_HINT,
        runtimes=runtimes,
        runtime_notes=runtime_notes(facts, runtimes),
    )


def _summarise(plan: Plan) -> str:
    """Return the removal in a few words, with the rope types that rotate nothing."""
    kinds = [str(rope.after["rope_type"]) for table in plan.tables for rope in table.rope]
    named = " and ".join(dict.fromkeys(kinds))
    return f"{plan.model_type} without positions ({named} rotary settings that rotate nothing)"


def _lengths_text(plan: Plan) -> str:
    """Return the context length before and after."""
    if plan.max_len_after == plan.max_len_before:
        return f"{plan.max_len_after} tokens, as before"
    return f"{plan.max_len_before} -> {plan.max_len_after} tokens"


def _dialect_notes(plan: Plan) -> list[str]:
    """Return a note if readers of only ``rope_scaling`` would still rotate."""
    for table in plan.tables:
        if table.rope_dialects == (NEW,):
            return [
                f"Rotary settings are stated only as {NEW}: programs that do not read it, such as "
                "transformers 4, still rotate."
            ]
    return []


def _describe_effects(plan: Plan) -> str:
    """Return what to expect of the outputs before any training."""
    return (
        f"{UNTRAINED.format(plan.max_len_after)} Outputs are far from the source's, for short "
        "inputs too, since all weights were trained with rotary positions."
    )


def prepare_removal(plan: Plan, settings: Convert, explanation: Explanation) -> Output:
    """Return the output of a removal of rotary positions, to be written by `write_output`.

    Args:
        plan: What changes.
        settings: With the length as a number.
        explanation: What the model card says about it.

    Raises:
        CheckpointError: A file to edit cannot be read.
    """
    converted = Converted(
        source=plan.checkpoint,
        settings=settings,
        facts={"model_type": plan.model_type, "max_len_before": plan.max_len_before},
        records_rows=False,
        heading=f"Without positions, {plan.max_len_after} tokens",
        sentences=_card_sentences(plan, explanation),
    )
    return prepare_conversion_output(plan, converted)


def complete_settings(plan: Plan, settings: Convert) -> Convert:
    """Return the settings with the length as a number, as recipes state it."""
    return replace(settings, to=plan.max_len_after)


def _card_sentences(plan: Plan, explanation: Explanation) -> Sequence[str]:
    """Return what the model card says about a model whose rotary positions are removed."""
    source = plan.checkpoint.source
    source_name = printable(source.hub_id or source.name)
    return (
        f"{source_name} without its rotary positions, removed by ctxextend {__version__}: "
        f"{explanation.summary}, {_lengths_text(plan)}.",
        "All weights are the same: only config and tokenizer files were changed.",
        explanation.effects,
        *low_limits(plan),
    )
