"""The flags with which an engine reads a checkpoint at a longer length, without a new folder."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctxextend.checkpoint.features import SERVE_WITH_FLAGS
from ctxextend.errors import MethodError
from ctxextend.limits.edits import config_changes
from ctxextend.plan import Plan
from ctxextend.positions.positions import nested, with_values
from ctxextend.runtimes.engines import BETAS, ENGINES, RAISED_THETA
from ctxextend.serving.engine_statements import Statement, folder_facts
from ctxextend.tables.rope_types import NEW, THETA, TRAINED, TYPE

WRITE_FOLDER = "Write a folder: remove --dry-run."
# Of engines that take values of config.json as JSON.
OVERRIDES = {"vllm": "--hf-overrides", "sglang": "--json-model-override-args"}

STATED_BY_FLAGS = ("yarn", "linear", RAISED_THETA)  # positions of which llama.cpp has options


def engine_flags(plan: Plan, found: Sequence[Statement]) -> str:
    """Return the flags with which the requested engine serves the source of a plan itself.

    They are shell words on one line, and replace a new folder.

    Args:
        plan: What they change.
        found: What engines would do with the output of the plan.

    Raises:
        MethodError: The positions are rows of a table or those of a GGUF file, or the engine has
            no flags for the rotary settings.
    """
    engine = ENGINES[plan.engine or ""]
    if engine.key not in (*OVERRIDES, "llama.cpp"):
        message = f"{engine.name} has no flags for rotary settings."
        hint = f"Those of vllm, sglang and llama.cpp are known. {WRITE_FOLDER}"
        raise MethodError(message, hint)
    for change in plan.changes:
        if change.positions.rows:
            message = f"A longer context needs new rows of {change.name}, which no flag states."
            raise MethodError(message, WRITE_FOLDER)
    plan.checkpoint.check(SERVE_WITH_FLAGS)
    if not plan.is_changed:
        message = f"The model reads {plan.max_len_before} tokens already, without any flags."
        raise MethodError(message, "Serve it as it is.")
    if engine.key not in OVERRIDES:
        return _llama_cpp_flags(plan)
    override = config_override(plan)
    if engine.key == "sglang":
        override = _with_text_config(override)
    elif plan.checkpoint.params is not None:
        override = _with_second_length(override)
    words = [OVERRIDES[engine.key], json.dumps(override)]
    for item in found:
        if item.engine == engine:
            words += shlex.split(item.option)
    return shlex.join(words)


def _with_second_length(override: Mapping[str, Any]) -> dict[str, Any]:
    """Return an override for vLLM that states each length by the second key of params.json too.

    vLLM replaces a value at the top level, and merges those of a nested config. The config is one
    of transformers 5: ``rope_parameters`` replaces any dialect. With Mistral's params.json it has a
    second length, of which the smaller one counts.

    Source: vllm/config/model.py#L527 and vllm/transformers_utils/config.py of version 0.33.0.
    """
    values = dict[str, Any]()
    for key, value in override.items():
        values[key] = value
        if key == "max_position_embeddings":
            values["max_seq_len"] = value
        elif isinstance(value, Mapping) and key != NEW:
            values[key] = _with_second_length(value)
    return values


def _with_text_config(override: Mapping[str, Any]) -> dict[str, Any]:
    """Return an override for SGLang that states the values of a text config at the top level too.

    SGLang copies them there before it applies the flag, and some models read them there.

    Source: sglang/srt/utils/hf_transformers/config.py#L256 and #L405 of version 0.5.23.
    """
    copied = dict[str, Any]()
    for value in override.values():
        if isinstance(value, dict) and NEW in value:
            copied |= value
    return {**copied, **override}


def config_override(plan: Plan) -> dict[str, Any]:
    """Return the values of config.json that give a loaded config a plan's lengths and settings.

    The settings are complete, in ``rope_parameters``, since loaders replace objects as a whole. The
    values of a text model are nested as in the config that transformers 5 has after loading: old
    files of some models, such as Qwen2-VL, have them outside of it.
    """
    config = plan.checkpoint.config
    changes = config_changes(config, plan.model.architecture, plan.changes, fix_limits=False)
    outside = [part for part in plan.model.architecture.family.parts if part.is_in_outer_config]
    override = dict[str, Any]()
    for change in plan.changes:
        location = replace(change.positions, config=with_values(config, changes))
        # The path of the config that transformers uses.
        inside = location.paths_of(location.effective_key)[-1][:-1]
        paths = [path for path in location.length_paths if path[:-1] == inside]
        if location.stated(TRAINED) is not None:
            paths.append((*inside, TRAINED))
        values = {path: nested(location.config, path) for path in paths}
        if change.settings:
            values |= location.values_in_new_dialect()
        loaded = inside
        if not inside and outside:
            loaded = (outside[0].config_key,)
        for path, value in values.items():
            override = with_values(override, {(*loaded, *path[len(inside) :]): value})
    return override


def _llama_cpp_flags(plan: Plan) -> str:
    """Return the flags of llama.cpp, which replace what the GGUF file of the checkpoint states.

    Raises:
        MethodError: It has none for the settings.
    """
    length = f"-c {plan.max_len_after}"
    scaled = [change for change in plan.changes if change.scales]
    if not scaled:
        return length
    layers, after = scaled[0].changed_layers[0]
    is_one_kind = len(scaled[0].settings) == 1
    is_one_kind = is_one_kind and layers.parameters[TYPE] in ("default", after[TYPE])
    facts = folder_facts(plan)
    if facts is None or facts.positions not in STATED_BY_FLAGS or not is_one_kind:
        message = f"llama.cpp has no flags for the {after[TYPE]} settings of this model."
        raise MethodError(message, WRITE_FOLDER)
    names = [facts.positions]
    if BETAS in facts.has:
        names.append(BETAS)
    has_other_base = after[THETA] != layers.default_theta
    if facts.positions != RAISED_THETA and has_other_base:
        names.append(RAISED_THETA)  # the converter drops the base of some model types
    options = ENGINES["llama.cpp"].options
    return " ".join([length, *(options[name].format(**facts.values) for name in names)])
