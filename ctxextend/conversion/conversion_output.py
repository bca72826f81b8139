"""The output of a conversion: its files, with the recipe and the model card."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import printable
from ctxextend.output.card import (
    CARD_FILE,
    RECIPE_POINTER,
    UNDECODED,
    known_base_model,
    model_card,
    read_card,
)
from ctxextend.output.output import Output
from ctxextend.output.prepare import compute_tables, edited_texts, encode
from ctxextend.output.record import (
    Hashes,
    pinned_ref,
    placeholders,
    recipe_text,
    resize_facts,
    uses_ml_dtypes,
)
from ctxextend.plan.layouts import weight_layouts
from ctxextend.plan.plan import Plan
from ctxextend.recipe import RECIPE_FILE, Recipe
from ctxextend.settings import Convert


class Converted(NamedTuple):
    """What the recipe and the card of a conversion state, next to its plan."""

    source: Checkpoint
    settings: Convert  # with the length as a number
    facts: Mapping[str, Any]  # of the recipe; see `output.record.recipe_text`
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
    layouts = weight_layouts(plan)
    recipe = partial(_encoded_recipe, plan, converted)
    planned_recipe = partial(recipe, hashes=placeholders(plan))
    card = _card(plan, converted, title=printable(name))
    texts = encode(edited_texts(plan, layouts) | {CARD_FILE: card})
    texts[RECIPE_FILE] = planned_recipe(Path(name))
    return Output(
        source=plan.checkpoint,
        default_folder=Path(name),
        layouts=layouts,
        texts=texts,
        planned_recipe=planned_recipe,
        compute=partial(compute_tables, plan, source, recipe),
    )


def _encoded_recipe(plan: Plan, converted: Converted, folder: Path, hashes: Hashes) -> bytes:
    """Return the recipe of a conversion; see `output.record.recipe_text`."""
    facts = converted.facts
    if converted.records_rows:
        facts = {**resize_facts(plan, hashes.tables), **facts}
    text = recipe_text(
        Recipe(pinned_ref(plan.model.ref, plan.checkpoint), convert=converted.settings),
        plan.checkpoint,
        facts,
        hashes.fingerprint,
        folder,
        uses_ml_dtypes=uses_ml_dtypes(plan),
    )
    return text.encode("utf-8", UNDECODED)


def _card(plan: Plan, converted: Converted, *, title: str) -> str:
    """Return the model card of an output."""
    text = f"{' '.join(converted.sentences)}{RECIPE_POINTER}"
    return model_card(
        read_card(plan.checkpoint),
        known_base_model(converted.source),
        title=title,
        section=f"## {converted.heading}\n\n{text}\n",
    )
