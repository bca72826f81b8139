"""The flags with which a runtime reads a checkpoint at a longer length, without a new folder."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ctxextend.checkpoint.features import SERVE_WITH_FLAGS
from ctxextend.errors import ResizeError, joined
from ctxextend.limits.edits import config_changes
from ctxextend.plan import Plan
from ctxextend.positions.change import Change
from ctxextend.positions.positions import Keys, Positions, nested, with_values
from ctxextend.serving.for_runtime import RuntimePlan
from ctxextend.tables.rope_types import (
    BETA_FAST,
    BETA_SLOW,
    FACTOR,
    NEW,
    THETA,
    TRAINED,
    TYPE,
    YARN_BETAS,
    yarn_betas,
)

WRITE_FOLDER = "Write a folder: remove --dry-run."


def runtime_flags(planned: RuntimePlan) -> str:
    """Return the flags with which a runtime serves the source of a plan itself.

    They are shell words on one line, and replace a new folder.

    Raises:
        ResizeError: The positions are rows of a table or those of a GGUF file, or the runtime has
            no flags for the rotary settings.
    """
    plan = planned.plan
    writer = _WRITERS.get(planned.runtime.key)
    if writer is None:
        message = f"{planned.runtime.name} has no flags for rotary settings."
        raise ResizeError(message, f"Those of {joined(list(_WRITERS))} are known. {WRITE_FOLDER}")
    for table in plan.changes:
        if table.positions.rows:
            message = f"A longer context needs new rows of {table.name}, which no flag states."
            raise ResizeError(message, WRITE_FOLDER)
    plan.checkpoint.check(SERVE_WITH_FLAGS)
    if not plan.is_changed:
        message = f"The model reads {plan.max_len_before} tokens already, without any flags."
        raise ResizeError(message, "Serve it as it is.")
    return shlex.join(writer(planned))


# Runtimes that take values of config.json as JSON


def _vllm_flags(planned: RuntimePlan) -> list[str]:
    """Return the flags of vLLM.

    It replaces a value at the top level, and merges those of a nested config. The config is one of
    transformers 5: ``rope_parameters`` replaces any dialect. With Mistral's params.json it has a
    second length, of which the smaller one counts.

    Source: vllm/config/model.py#L527 and vllm/transformers_utils/config.py of version 0.33.0.
    """
    override = config_override(planned.plan)
    if planned.plan.checkpoint.params is not None:
        override = _with_second_length(override)
    return _json_flags(planned, "--hf-overrides", override)


def _with_second_length(override: Mapping[str, Any]) -> dict[str, Any]:
    """Return an override that states each length by the second key of params.json too."""
    values = dict[str, Any]()
    for key, value in override.items():
        values[key] = value
        if key == "max_position_embeddings":
            values["max_seq_len"] = value
        elif isinstance(value, Mapping) and key != NEW:
            values[key] = _with_second_length(value)
    return values


def _sglang_flags(planned: RuntimePlan) -> list[str]:
    """Return the flags of SGLang.

    It copies the values of a text config to the top level before it applies the flag, and some
    models read them there: they are stated at both places.

    Source: sglang/srt/utils/hf_transformers/config.py#L256 and #L405 of version 0.5.23.
    """
    override = config_override(planned.plan)
    copied = dict[str, Any]()
    for value in override.values():
        if isinstance(value, dict) and NEW in value:
            copied |= value
    return _json_flags(planned, "--json-model-override-args", {**copied, **override})


def _json_flags(planned: RuntimePlan, flag: str, override: Mapping[str, Any]) -> list[str]:
    """Return a flag that takes values of config.json, and the options that the length needs."""
    words = [flag, json.dumps(override)]
    if planned.statement is not None:
        words += shlex.split(planned.statement.option)
    return words


def config_override(plan: Plan) -> dict[str, Any]:
    """Return the values of config.json that give a loaded config a plan's lengths and settings.

    The settings are complete, in ``rope_parameters``, since loaders replace objects as a whole. The
    values of a text model are nested as in the config that transformers 5 has after loading.
    """
    config = plan.checkpoint.config
    changes = config_changes(config, plan.model.architecture, plan.changes, fix_limits=False)
    override = dict[str, Any]()
    for table in plan.changes:
        location = table.positions.with_config(with_values(config, changes))
        values = {path: nested(location.config, path) for path in _length_paths(location)}
        if table.settings:
            values |= location.values_in_new_dialect()
        inside = _config_path(location)
        for path, value in values.items():
            loaded = (*_loaded_path(plan, inside), *path[len(inside) :])
            override = with_values(override, {loaded: value})
    return override


def _length_paths(location: Positions) -> list[Keys]:
    """Return the paths of the length in the config that transformers uses."""
    inside = _config_path(location)
    paths = [path for path in location.length_paths if path[:-1] == inside]
    if location.stated(TRAINED) is not None:
        paths.append((*inside, TRAINED))
    return paths


def _config_path(location: Positions) -> Keys:
    """Return the path of the config that transformers uses."""
    return location.paths_of(location.effective_key)[-1][:-1]


def _loaded_path(plan: Plan, path: Keys) -> Keys:
    """Return where the config at a path is after loading.

    Old files of some models, such as Qwen2-VL, have the values of the text config outside of it.
    """
    if path:
        return path
    for part in plan.model.architecture.family.parts:
        if part.is_in_outer_config:
            return (part.config_key,)
    return path


# Runtimes with options for rotary settings


def _llama_cpp_flags(planned: RuntimePlan) -> list[str]:
    """Return the flags of llama.cpp, which replace what the GGUF file of the checkpoint states.

    Source: ``common/arg.cpp`` of llama.cpp: ``--rope-scaling``, ``--rope-scale``,
    ``--yarn-orig-ctx``, ``--yarn-beta-fast``, ``--yarn-beta-slow`` and ``--rope-freq-base``.

    Raises:
        ResizeError: It has no flags for the settings.
    """
    plan = planned.plan
    words = ["-c", str(plan.max_len_after)]
    for table in plan.changes:
        if table.settings and table.scales:
            words += _scaling_words(table)
    return words


def _scaling_words(table: Change) -> Iterator[str]:
    """Yield the flags of llama.cpp for the rotary settings of a table.

    Raises:
        ResizeError: It has none for them.
    """
    layers, after = table.changed_layers[0]
    kind = after[TYPE]
    is_one_kind = len(table.settings) == 1 and layers.parameters[TYPE] in ("default", kind)
    if kind == "default" and is_one_kind:
        yield from ("--rope-freq-base", _number(after[THETA]))
    elif kind == "linear" and is_one_kind:
        yield from ("--rope-scaling", "linear", "--rope-scale", _number(after[FACTOR]))
    elif kind == "yarn" and is_one_kind:
        yield from ("--rope-scaling", "yarn", "--rope-scale", _number(after[FACTOR]))
        yield from ("--yarn-orig-ctx", _number(after[TRAINED]))
        if any(after.get(name) for name in YARN_BETAS):
            betas = yarn_betas(after)
            yield from ("--yarn-beta-fast", _number(betas[BETA_FAST]))
            yield from ("--yarn-beta-slow", _number(betas[BETA_SLOW]))
    else:
        message = f"llama.cpp has no flags for the {kind} settings of this model."
        raise ResizeError(message, WRITE_FOLDER)
    if kind != "default" and after[THETA] != layers.default_theta:
        # The converter drops the base of some model types.
        yield from ("--rope-freq-base", _number(after[THETA]))


def _number(value: float) -> str:
    return f"{value:.15g}"


_WRITERS: Mapping[str, Callable[[RuntimePlan], list[str]]] = {
    "vllm": _vllm_flags,
    "sglang": _sglang_flags,
    "llama.cpp": _llama_cpp_flags,
}
