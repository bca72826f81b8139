"""Plan the values of Mistral's params.json that a new length changes, or refuse the resize."""

from collections.abc import Iterator, Mapping, Sequence

from ctxextend.errors import CheckpointError, MethodError
from ctxextend.families.lookup import TableLocation
from ctxextend.families.mistral_params import (
    STATABLE_TYPES,
    Disagreement,
    rope_changes_of_params,
    why_not_statable,
)
from ctxextend.limits.generation import generating_table
from ctxextend.limits.length_edits import Edit, LengthChange
from ctxextend.limits.params_file import (
    ParamsFile,
    disagreeing_lengths,
    find_params,
    params_disagreements,
    params_length_changes,
)
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.table_plan import TablePlan, length_to_state
from ctxextend.tables.rope_types import FACTOR, TYPE

WITHOUT_PARAMS = (
    "remove params.json and consolidated*.safetensors from a copy of the folder: engines then read "
    "config.json and the weights of transformers"
)
WITHOUT_CONFIG = "pass the folder in the format of transformers, if there is one"


def params_edits(
    model: OpenedModel, tables: Sequence[TablePlan], *, fix_limits: bool
) -> Iterator[Edit]:
    """Yield the edits of a params.json, which states the positions of the language model.

    Raises:
        CheckpointError: It is malformed, or disagrees with config.json.
        MethodError: It cannot state the new rotary settings.
    """
    params = find_params(model.checkpoint)
    found = generating_table(model.tables)
    if params is None or found is None:
        return
    for table in tables:
        if table.name == found.name and table.lengths is not None:
            yield from _edits_of_table(params, table, fix_limits=fix_limits)


def _edits_of_table(params: ParamsFile, table: TablePlan, *, fix_limits: bool) -> Iterator[Edit]:
    """Yield the edits of the values that state the positions of a table."""
    _check_settings_agree(params, table.location)
    if not fix_limits:
        _check_lengths_agree(params, table)
    if not table.is_changed and not fix_limits:
        return
    change = LengthChange(table.location, table.max_len_before, table.max_len_after)
    stated_after = table.location.key_value(length_to_state(table))
    for key, value in params_length_changes(params, change, stated_after).items():
        yield Edit(file=params.name, path=(key,), before=params.values.get(key), after=value)
    for plan in table.rope:
        if plan.after == plan.before.parameters:
            continue
        _check_statable(params, table)
        for path, value in rope_changes_of_params(params.values, plan.after).items():
            before = params.values.get(path[0])
            if len(path) > 1:
                before = params.values[path[0]].get(path[1])
            yield Edit(file=params.name, path=path, before=before, after=value)


def _check_settings_agree(params: ParamsFile, location: TableLocation) -> None:
    """Raise CheckpointError if params.json and config.json state other rotary settings."""
    for item in params_disagreements(params, location):
        message = f"{params.name} and config.json disagree: {_describe_disagreement(item)}."
        hint = (
            f"Correct the wrong one: {readers_of(params)} reads {params.name}, others config.json."
        )
        raise CheckpointError(message, hint)


def _check_lengths_agree(params: ParamsFile, table: TablePlan) -> None:
    """Raise CheckpointError if params.json and config.json state other lengths."""
    location = table.location
    in_config = location.value(location.effective_key)
    for key, value in disagreeing_lengths(params, location, table.max_len_before).items():
        message = (
            f"{params.name} and config.json disagree: the former states {key} {value}, the latter "
            f"{location.config_key} {in_config}. vLLM takes the smaller one."
        )
        hint = "Correct the wrong one, or pass --fix-limits to set both to the new length."
        raise CheckpointError(message, hint)


def _check_statable(params: ParamsFile, table: TablePlan) -> None:
    """Raise MethodError if params.json cannot state the planned rotary settings."""
    facts = table.location.table.rope
    assert facts is not None
    what = ""
    if len(table.rope) > 1:
        what = "settings of single types of layers"
    for plan in table.rope:
        what = what or why_not_statable(plan.after)
    if not what:
        return
    message = f"{params.name} cannot state {what}, and {readers_of(params)} reads it."
    kept = table.rope[0].before.parameters[TYPE]
    methods = [name for name in ("yarn", "theta") if name in facts.methods]
    if kept != "default":  # a scaled model keeps its type
        methods = [kept] if kept in STATABLE_TYPES else []
    advice = WITHOUT_CONFIG if params.is_only_config else WITHOUT_PARAMS
    if methods:
        advice = f"use --method {' or '.join(methods)}, or {advice}"
    raise MethodError(message, f"{advice[0].upper()}{advice[1:]}.")


def readers_of(params: ParamsFile) -> str:
    """Return who reads a params.json, as the subject of a verb."""
    return "vLLM" if params.is_read_first else "mistral-inference"


def _describe_disagreement(item: Disagreement) -> str:
    """Say what params.json and config.json state, as a clause; the former comes first."""
    stated = f"the former states no {item.key}"
    if item.value is not None:
        stated = f"the former states {item.key} {value_text(item.value)}"
    return f"{stated}, the latter {in_config_text(item)}"


def in_config_text(item: Disagreement) -> str:
    """Say what config.json states where params.json disagrees."""
    if item.config_value is None:
        return f"no {item.config_key}"
    return f"{item.config_key} {value_text(item.config_value)}"


def value_text(value: object) -> str:
    """Return a value as text; of settings, the factor that they have."""
    if isinstance(value, Mapping):
        return f"factor {value[FACTOR]}" if FACTOR in value else "settings"
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value)
