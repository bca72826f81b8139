"""Plan a conversion, and prepare its output."""

from collections.abc import Sequence
from dataclasses import replace

from ctxextend.card import card_sentences
from ctxextend.checkpoint.json_edit import edit
from ctxextend.checkpoint.writing import Output
from ctxextend.conversion.conversion import Conversion, count_origins, twin_checkpoint
from ctxextend.conversion.conversion_output import Converted, prepare_conversion_output
from ctxextend.conversion.describe import scheme_text, summarise
from ctxextend.errors import printable
from ctxextend.limits.edits import raises_generation_limit
from ctxextend.notes import Note
from ctxextend.opening.opened_model import identify_model
from ctxextend.plan import Plan, make_plan
from ctxextend.settings import Convert, Resize
from ctxextend.tables.method_facts import COPY
from ctxextend.tables.methods import METHODS
from ctxextend.version import __version__


def plan_twin(conversion: Conversion) -> Plan:
    """Plan the limits of a twin that already has its new length, and the table of any other.

    The config of the twin states its own model type, so that one in the reference, which is that of
    the source, must not apply when the twin is identified. The plan has the whole reference, since
    its recipe states it.

    Raises:
        CheckpointError: A file of the source is malformed.
        ResizeError: The length is too large, or the method cannot create the rows.
    """
    source_ref = conversion.model.ref
    ref_without_type = replace(source_ref, model_type=None)
    identified = identify_model(twin_checkpoint(conversion), ref_without_type)
    twin = replace(identified, ref=source_ref)
    plan = make_plan(twin, _resize_of(conversion))
    # Where generated texts stop is the user's choice: it is not raised, but noted.
    edits = tuple(change for change in plan.edits if not raises_generation_limit(change))
    return _with_complete_config(replace(plan, edits=edits))


def _with_complete_config(plan: Plan) -> Plan:
    """Return a plan whose twin's config states the new length, and is not edited any more.

    The config before has never been a file.
    """
    checkpoint = plan.checkpoint
    config_file = checkpoint.config_file
    values = {change.path: change.after for change in plan.edits if change.file == config_file}
    if not values:
        return plan
    text = edit(checkpoint.text(config_file), values)
    checkpoint = replace(checkpoint, generated={**checkpoint.generated, config_file: text})
    return replace(
        plan,
        model=replace(plan.model, checkpoint=checkpoint),
        edits=tuple(change for change in plan.edits if change.file != config_file),
    )


def _resize_of(conversion: Conversion) -> Resize:
    """Return the resize of a twin: of its limits, or of its position table if it keeps one."""
    settings = conversion.settings
    method = settings.method
    creates_rows = conversion.twin.has_windows and settings.length > conversion.max_len_before
    if creates_rows and method is None:
        method = METHODS[COPY].choice()
    return Resize(
        settings.length,
        method=method,
        part=conversion.twin.part,
        fix_limits=True,
    )


def complete_settings(conversion: Conversion, twin_plan: Plan) -> Convert:
    """Return the settings as recipes state them: with the method, and with its settings."""
    settings = conversion.settings
    if not conversion.twin.has_windows or not twin_plan.extended:
        return settings
    return replace(settings, method=twin_plan.main_choice)


def prepare_conversion(
    conversion: Conversion, twin_plan: Plan, settings: Convert, notes: Sequence[Note]
) -> Output:
    """Return the output of a conversion, to be written by `write_output`.

    Args:
        conversion: How the twin's tensors are computed.
        twin_plan: The plan of the twin.
        settings: Those of `complete_settings`.
        notes: What the model card says about it.

    Raises:
        CheckpointError: A file to edit cannot be read.
    """
    after = twin_plan.max_len_after
    facts = {
        "model_type": conversion.type_before,
        "converted_to": twin_plan.model_type,
        "max_len_before": conversion.max_len_before,
    }
    converted = Converted(
        source=conversion.model.checkpoint,
        settings=settings,
        facts=facts,
        records_rows=conversion.twin.has_windows,
        heading=f"Converted to {scheme_text(conversion)}, {after} tokens",
        sentences=_card_sentences(conversion, twin_plan, notes),
    )
    return prepare_conversion_output(twin_plan, converted)


def _card_sentences(
    conversion: Conversion, twin_plan: Plan, notes: Sequence[Note]
) -> Sequence[str]:
    """Return what the model card of a twin says about it."""
    source = twin_plan.checkpoint.source
    source_name = printable(source.hub_id or source.name)
    rearranged = ", ".join(f"{count} {how}" for how, count in count_origins(conversion).items())
    change = "with its learned positions converted"
    computed = "Every tensor is"
    if conversion.twin.has_windows:
        change = "with its attention converted to windows"
        computed = "Every tensor is, before the position table is extended,"
    elif conversion.angles_name is not None:
        computed = f"Every tensor but {conversion.angles_name}, a table of angles, is"
    return (
        f"{source_name} {change} by ctxextend {__version__}: {summarise(conversion)}, from "
        f"{conversion.max_len_before} to {twin_plan.max_len_after} tokens.",
        f"{computed} computed from the source's: {rearranged}.",
        *card_sentences(notes),
    )
