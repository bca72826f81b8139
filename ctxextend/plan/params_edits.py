"""Plan the values of Mistral's params.json that a new length changes, or refuse the resize."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from ctxextend.errors import CheckpointError, MethodError, ResizeError
from ctxextend.families.lengths import layer_lengths
from ctxextend.families.lookup import TableLocation
from ctxextend.families.mistral_params import (
    MISTRAL_INFERENCE,
    Disagreement,
    find_unstatable,
    rope_changes_of_params,
)
from ctxextend.families.rope import rotary_dim, rotary_facts
from ctxextend.limits.generation import generating_table
from ctxextend.limits.length_edits import Edit, LengthChange
from ctxextend.limits.params_file import (
    ParamsFile,
    disagreeing_lengths,
    find_params,
    params_disagreements,
    params_length_changes,
)
from ctxextend.limits.statements import VLLM
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.table_plan import RopePlan, TablePlan, length_to_state
from ctxextend.tables.rope_types import FACTOR, NONE, TYPE, rotates
from ctxextend.tables.rotary_methods import RopeLengths, resize_rope

# What to do about settings that params.json cannot state.
WITHOUT_PARAMS = (
    "For other settings, remove params.json and consolidated*.safetensors from a copy of the "
    "folder: engines then read config.json and the weights of transformers."
)
REMOVE_PARAMS = (
    "Remove params.json and consolidated*.safetensors from a copy of the folder, and convert that: "
    "config.json and the weights of transformers stay."
)
# What to do about two lengths.
SET_BOTH = "Correct the wrong one, or pass --fix-limits to set both to the new length."
WITHOUT_CONFIG = (
    "For other settings, pass the folder in the format of transformers, if there is one."
)


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
        _check_statable(params, table, plan)
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
        if not item.is_statable:
            hint = f"If {params.name} is right, correct config.json. {WITHOUT_PARAMS}"
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
        raise CheckpointError(message, SET_BOTH)


def _check_statable(params: ParamsFile, table: TablePlan, plan: RopePlan) -> None:
    """Raise MethodError if params.json cannot state planned rotary settings."""
    unstatable = find_unstatable(params.values, plan.after)
    if unstatable is None:
        return
    if not rotates(plan.after):
        raise _cannot_remove(params)
    what = f"{unstatable.key} {value_text(unstatable.value)}"
    if unstatable.key == TYPE:
        what = f"{unstatable.value} settings"
    hints = [WITHOUT_CONFIG if params.is_only_config else WITHOUT_PARAMS]
    methods = _statable_methods(params, table, plan)
    if methods:
        hints.insert(0, f"Use --method {' or '.join(methods)}.")
    message = f"{params.name} cannot state {what}, and {readers_of(params)} reads it."
    raise MethodError(message, " ".join(hints))


def _cannot_remove(params: ParamsFile) -> MethodError:
    """Return the error for positions that are to be removed."""
    message = (
        f"--scheme {NONE}: {params.name} cannot state that no position is rotated, and "
        f"{readers_of(params)} reads it."
    )
    hint = REMOVE_PARAMS
    if params.is_only_config:
        hint = "Pass the folder in the format of transformers, if there is one."
    return MethodError(message, hint)


def _statable_methods(params: ParamsFile, table: TablePlan, plan: RopePlan) -> list[str]:
    """Return the methods whose settings for the same length params.json can state."""
    location = table.location
    before = plan.before.parameters
    lengths = layer_lengths(location, plan.before)
    found = list[str]()
    for name in rotary_facts(location).methods:
        with suppress(MethodError, ResizeError):  # it does not apply to this type, or length
            after, _ = resize_rope(
                before,
                RopeLengths(
                    first_trained=lengths.first_trained,
                    served=lengths.served,
                    after=table.max_len_after,
                ),
                rotary_dim(location, before),
                name=name,
            )
            if find_unstatable(params.values, after) is None:
                found.append(name)
    return found


def readers_of(params: ParamsFile) -> str:
    """Return who reads a params.json, as the subject of a verb."""
    if params.is_read_first:
        return VLLM
    return MISTRAL_INFERENCE


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
    stated = f"{item.config_key} {value_text(item.config_value)}"
    if not item.is_statable:
        stated += ", which params.json cannot state"
    return stated


def value_text(value: object) -> str:
    """Return a value as text; of settings, the factor that they have."""
    if isinstance(value, Mapping):
        return f"factor {value[FACTOR]}" if FACTOR in value else "settings"
    if isinstance(value, bool):  # as in JSON
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value)
