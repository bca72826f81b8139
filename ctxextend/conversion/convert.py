"""Plan a conversion, and prepare its output."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from ctxextend.conversion.conversion import Conversion, twin_checkpoint
from ctxextend.conversion.describe import conversion_warnings, summarise
from ctxextend.conversion.find import SCHEME_NAMES
from ctxextend.errors import printable
from ctxextend.limits.length_edits import raises_generation_limit
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
    uses_ml_dtypes,
)
from ctxextend.plan.explain import Explanation
from ctxextend.plan.layouts import weight_layouts
from ctxextend.plan.opened_model import identify_model
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.recipe import RECIPE_FILE, Recipe, Resize
from ctxextend.version import __version__


def plan_twin(conversion: Conversion) -> Plan:
    """Plan the limits of a twin, which already has its new length.

    The config of the twin states its own model type, so that one in the reference, which is that of
    the source, must not apply when the twin is identified. The plan has the whole reference, since
    its recipe states it.

    Raises:
        CheckpointError: A file of the source is malformed.
        ResizeError: The length is too large.
    """
    source_ref = conversion.model.ref
    ref_without_type = replace(source_ref, model_type=None)
    identified = identify_model(twin_checkpoint(conversion), ref_without_type)
    twin = replace(identified, ref=source_ref)
    plan = plan_model(twin, Resize(conversion.settings.positions, fix_limits=True))
    # Where generated texts stop is the user's choice: it is not raised, but noted.
    return replace(
        plan, edits=tuple(edit for edit in plan.edits if not raises_generation_limit(edit))
    )


def prepare_conversion(conversion: Conversion, twin_plan: Plan, explanation: Explanation) -> Output:
    """Return the output of a conversion, to be written by `write_output`.

    Raises:
        CheckpointError: A file to edit cannot be read.
    """
    source = conversion.model.checkpoint
    name = f"{source.source.name}-{conversion.settings.scheme}-{twin_plan.max_len_after}"
    layouts = weight_layouts(twin_plan)
    recipe = partial(_encoded_recipe, conversion, twin_plan)
    planned_recipe = partial(recipe, hashes=placeholders(twin_plan))
    card = _card(conversion, twin_plan, explanation, title=printable(name))
    texts = encode(edited_texts(twin_plan, layouts) | {CARD_FILE: card})
    texts[RECIPE_FILE] = planned_recipe(Path(name))
    return Output(
        source=twin_plan.checkpoint,
        default_folder=Path(name),
        layouts=layouts,
        texts=texts,
        planned_recipe=planned_recipe,
        compute=partial(compute_tables, twin_plan, source, recipe),
    )


def _encoded_recipe(conversion: Conversion, twin_plan: Plan, folder: Path, hashes: Hashes) -> bytes:
    return _recipe(conversion, twin_plan, folder, hashes).encode("utf-8", UNDECODED)


def _recipe(conversion: Conversion, twin_plan: Plan, folder: Path, hashes: Hashes) -> str:
    """Return the recipe of a conversion; see `output.record.recipe_text`."""
    facts = {
        "model_type": conversion.type_before,
        "converted_to": twin_plan.model_type,
        "max_len_before": conversion.max_len_before,
    }
    return recipe_text(
        Recipe(pinned_ref(twin_plan.model.ref, twin_plan.checkpoint), convert=conversion.settings),
        twin_plan.checkpoint,
        facts,
        hashes.fingerprint,
        folder,
        uses_ml_dtypes=uses_ml_dtypes(twin_plan),
    )


def _card(conversion: Conversion, twin_plan: Plan, explanation: Explanation, *, title: str) -> str:
    """Return the model card of a twin."""
    source = twin_plan.checkpoint.source
    after = twin_plan.max_len_after
    source_name = printable(source.hub_id or source.name)
    rearranged = ", ".join(f"{count} {how}" for how, count in conversion.counts.items())
    sentences = [
        f"{source_name} with its learned positions converted by "
        f"ctxextend {__version__}: {summarise(conversion)}, from {conversion.max_len_before} to "
        f"{after} tokens.",
        f"{_computed_tensors(conversion)} computed from the source's: {rearranged}.",
        explanation.effects,
        *conversion_warnings(conversion, twin_plan),
    ]
    heading = f"## Converted to {SCHEME_NAMES[conversion.twin.scheme]} positions, {after} tokens"
    return model_card(
        read_card(twin_plan.checkpoint),
        known_base_model(conversion.model.checkpoint),
        title=title,
        section=f"{heading}\n\n{' '.join(sentences)}{RECIPE_POINTER}\n",
    )


def _computed_tensors(conversion: Conversion) -> str:
    """Return the tensors that are computed from the source's: all but a table of angles."""
    if conversion.angles_name is None:
        return "Every tensor is"
    return f"Every tensor but {conversion.angles_name}, a table of angles, is"
