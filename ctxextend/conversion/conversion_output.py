"""The output of a conversion: its files, with the recipe and the model card."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ctxextend.card import (
    RECIPE_POINTER,
    known_base_model,
    model_card,
    read_card,
)
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.writing import Output
from ctxextend.errors import printable
from ctxextend.output import output_of
from ctxextend.plan import Plan
from ctxextend.recipe import Recipe
from ctxextend.record import (
    output_record,
    pinned_ref,
    recorded_settings,
    resize_facts,
)
from ctxextend.settings import Convert


class Converted(NamedTuple):
    """What the recipe and the card of a conversion state, next to its plan."""

    source: Checkpoint
    settings: Convert  # with the length as a number
    facts: Mapping[str, Any]  # of the recipe; see `output.record.output_record`
    records_rows: bool  # whether the recipe records the rows of the resized table too
    heading: str  # of the card's section
    sentences: Sequence[str]  # of the card's section


def prepare_conversion_output(plan: Plan, converted: Converted) -> Output:
    """Return the output of a conversion, to be written by `write_output`.

    Args:
        plan: What the output changes in the checkpoint that it is written from.
        converted: What was converted, and what to say about it.

    Raises:
        CheckpointError: A file to edit cannot be read.
    """
    source = converted.source
    name = f"{source.source.name}-{converted.settings.scheme}-{plan.max_len_after}"
    facts = converted.facts
    if converted.records_rows:
        facts = {**resize_facts(plan, recorded_settings(plan)), **facts}
    ref = pinned_ref(plan.model.ref, plan.checkpoint)
    record = output_record(plan, Recipe(ref, convert=converted.settings), facts)
    text = f"{' '.join(converted.sentences)}{RECIPE_POINTER}"
    card = model_card(
        read_card(plan.checkpoint),
        known_base_model(source),
        title=printable(name),
        section=f"## {converted.heading}\n\n{text}\n",
    )
    return output_of(plan, name, record, card, source)
