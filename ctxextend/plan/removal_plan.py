"""Plan the removal of rotary positions: settings that rotate nothing, in all layers."""

from dataclasses import replace

from ctxextend.errors import MethodError, ResizeError, UnsupportedModelError
from ctxextend.families.causal_masks import mask_remover
from ctxextend.families.lengths import position_lengths
from ctxextend.families.rope import read_rope, rotary_facts
from ctxextend.plan.buffers import plan_buffers
from ctxextend.plan.choose import choose_methods
from ctxextend.plan.edits import plan_edits
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.plan import Plan
from ctxextend.plan.rotary_plan import planned_dialects
from ctxextend.plan.stated_type import check_own_code, with_type_note
from ctxextend.plan.table_plan import RopePlan, ShortInputs, TablePlan
from ctxextend.plan.table_plans import plan_length, with_length
from ctxextend.positions.positions import Positions
from ctxextend.positions.rotary import Rotary
from ctxextend.provenance import SAME_LENGTH
from ctxextend.settings import Convert, Resize
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import LIMITS
from ctxextend.tables.no_rotation import REMOVING_METHODS, Kind, none
from ctxextend.tables.rope_types import LLAMA_4_BETA, NONE

RESIZE_INSTEAD = "Resize it instead, with ctxextend resize."


def plan_removal(model: OpenedModel, settings: Convert) -> Plan:
    """Plan the removal of all rotary positions of an open checkpoint.

    Layers with a sliding window lose theirs too, as in DroPE (Gelberg et al. 2025,
    arXiv:2512.12167); the window stays.

    Raises:
        CheckpointError: The rotary settings, or a file to edit, are malformed.
        UnsupportedModelError: The positions are not rotary, the classes cannot remove them, or
            only positions tell the model the order of tokens.
        ResizeError: The length is shorter than the old one, or the old one is unknown.
        MethodError: A file of the folder cannot state the settings.
    """
    check_own_code(model)
    for table in model.tables:
        _check_positions(model, table)
        _check_is_causal(model, table)
        if settings.to is None:
            _check_length_is_known(table)
    resize = with_length(Resize(settings.to or SAME_LENGTH), model.tables)
    tables = list[TablePlan]()
    for table in model.tables:
        lengths = plan_length(table, model.tables, resize)
        if lengths.max_len_after < lengths.max_len_before:
            message = (
                f"The model accepts {lengths.max_len_before} tokens: a conversion to no positions "
                f"cannot make that {lengths.max_len_after}."
            )
            raise ResizeError(message, "Remove --to, or use a longer length.")
        tables.append(_without_positions(lengths))
    dropped, rebuilt = plan_buffers(model.checkpoint, tables, fix_limits=False)
    return Plan(
        model=with_type_note(model),
        settings=resize,
        tables=choose_methods(model.checkpoint, tables, resize, {}),
        edits=plan_edits(model, tables, resize),
        dropped=dropped,
        rebuilt_buffers=rebuilt,
    )


def _check_positions(model: OpenedModel, location: Positions) -> None:
    """Check that positions are rotary.

    Raises:
        UnsupportedModelError: They are not.
    """
    if isinstance(location, Rotary):
        return
    source = model.ref.source
    model_type = location.family.model_type
    if location.scheme == NONE:
        message = f"{source} ({model_type}) has no positions already."
        hint = "For longer inputs, raise its length limits with ctxextend resize."
        raise UnsupportedModelError(message, hint)
    message = (
        f"{source} ({model_type}) cannot be converted to no positions: its positions are "
        f"{location.scheme}, and only rotary ones are removed by settings."
    )
    hint = RESIZE_INSTEAD
    if location.has_rows:
        hint = (
            f"{RESIZE_INSTEAD} A GPT-2 can be converted to rotary positions and trained first: "
            "ctxextend convert MODEL --scheme rotary --to N"
        )
    raise UnsupportedModelError(message, hint)


def _check_is_causal(model: OpenedModel, location: Positions) -> None:
    """Check that a causal mask tells a model the order of tokens.

    Raises:
        UnsupportedModelError: Each token sees the later ones too.
    """
    cause = mask_remover(model.architecture, location)
    if cause is not None:
        message = (
            f"{model.ref.source} cannot be converted to no positions: {cause} has no causal mask. "
            "Without positions, it could not know the order of tokens."
        )
        raise UnsupportedModelError(message, RESIZE_INSTEAD)


def _check_length_is_known(location: Positions) -> None:
    """Raise ResizeError if the config does not tell the old length, which the output keeps."""
    question = position_lengths(location).question
    if question:
        message = f"{location.file}: {question}."
        raise ResizeError(message, "Pass the context length of the output: --to N.")


def _without_positions(table: TablePlan) -> TablePlan:
    """Return the plan of rotary positions with settings that rotate nothing, in all layers."""
    location = table.location
    plans = list[RopePlan]()
    kind = _kind_of(location)
    choice = MethodChoice(REMOVING_METHODS[NONE])
    for layers in read_rope(location):
        plan = RopePlan(
            before=layers,
            after=none(layers.parameters, kind),
            choice=choice,
            keeps_max_len=False,
            scales=True,
            short_inputs=ShortInputs.CHANGED,
        )
        plans.append(plan)
    return replace(
        table,
        lengths=position_lengths(location),
        rope=tuple(plans),
        rope_dialects=planned_dialects(location, plans),
    )


def _kind_of(location: Positions) -> Kind:
    """Return the rope type that removes the positions of a model.

    It is ``linear`` where the classes apply it, since other readers know it too: ``proportional``
    with no rotated pair is refused by transformers 4, and ignored by llama.cpp and mlx-lm, which
    then rotate.

    Raises:
        MethodError: The classes apply neither, or queries are scaled by their position.
    """
    model_type = location.family.model_type
    if any(layers.parameters.get(LLAMA_4_BETA) for layers in read_rope(location)):
        message = (
            f"--scheme {NONE}: {LLAMA_4_BETA} scales the queries of {model_type} models by their "
            "position, which would stay."
        )
        raise MethodError(message, RESIZE_INSTEAD)
    methods = rotary_facts(location).methods
    if "linear" in methods:
        return "linear"
    if "proportional" in methods:
        return "proportional"
    if not methods:
        message = (
            f"--scheme {NONE}: transformers ignores the rotary settings of {model_type} models."
        )
        hint = f"No config.json removes their positions: use ctxextend resize --method {LIMITS}."
        raise MethodError(message, hint)
    message = (
        f"--scheme {NONE}: {model_type} models apply only {', '.join(methods)}, and no settings of "
        "these stop the rotation."
    )
    raise MethodError(message, RESIZE_INSTEAD)
