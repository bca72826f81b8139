"""The flags with which a runtime reads a checkpoint at a longer length, without a new folder."""

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ctxextend.checkpoints.mistral_files import mistral_params
from ctxextend.errors import ResizeError, joined
from ctxextend.families.lookup import Keys, TableLocation, nested
from ctxextend.families.rope import NEW, read_rope
from ctxextend.families.rope_dialects import new_half, with_value, with_values
from ctxextend.json_output import Result, not_in_json
from ctxextend.plan.edits import config_changes
from ctxextend.plan.effects import describe_effects, suggest_kept_rows
from ctxextend.plan.for_runtime import RuntimePlan, plan_for_runtime
from ctxextend.plan.limit_warnings import missing_scaling
from ctxextend.plan.opened_model import open_without_weights
from ctxextend.plan.plan import Plan
from ctxextend.plan.table_plan import TablePlan, scales
from ctxextend.recipe import TENSOR_KEYS, CheckpointRef, Resize, accepts_settings, split_ref
from ctxextend.runtimes.commands import base_command
from ctxextend.runtimes.rule_schema import Runtime
from ctxextend.runtimes.runtime_notes import describe_ignored_factor, describe_ignored_lists
from ctxextend.runtimes.runtimes import find_runtime
from ctxextend.tables.rope_types import (
    BETA_FAST,
    BETA_SLOW,
    FACTOR,
    THETA,
    TRAINED,
    TYPE,
    YARN_BETAS,
    yarn_betas,
)

# Settings that change nothing of what flags state: of weights, of rows and of files.
NOT_IN_FLAGS = (
    *TENSOR_KEYS,
    "variant",
    "tokenizer",
    "keep_first",
    "drop_last",
    "part",
    "fix_limits",
    "dialect",
    "copy_code",
)


@dataclass(frozen=True, eq=False, repr=False)
class RuntimeFlags(Result, shows=("flags",)):
    """Flags that give a runtime the rotary settings and the length of a resize."""

    source: str  # as the user names it
    runtime: str  # its name
    version: str
    model_type: str
    method: str
    max_len_before: int
    max_len_after: int
    flags: str  # one line of shell words
    # Values of config.json, as objects in objects, that the flags replace; empty if the flags state
    # no JSON.
    override: Mapping[str, Any]
    serve: str  # the command that serves the checkpoint with the flags
    # Why another method than that of `auto` was chosen, what it costs in the runtime, and what
    # happens to outputs for short inputs if they change.
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)


class _FlagWords(NamedTuple):
    """The flags of one runtime."""

    words: tuple[str, ...]
    override: Mapping[str, Any]


@accepts_settings(CheckpointRef, Resize, without=NOT_IN_FLAGS)
def runtime_flags(
    reference: str | os.PathLike[str],
    to: int | str,
    runtime: str,
    method: str | None = None,
    **settings: Any,
) -> RuntimeFlags:
    """Return the flags with which a runtime reads a rotary model at a longer length.

    They replace a new folder: the runtime loads the checkpoint as it is. Of a Hub id, only
    config.json is downloaded.

    Args:
        reference: As in `resize`.
        to: The new context length, as in `resize`.
        runtime: ``"vllm"``, ``"sglang"`` or ``"llama.cpp"``.
        method: As in `resize`; by default one that the runtime applies.
        settings: Fields of `CheckpointRef` (``revision``, ``subfolder``, ``model_type``,
            ``trained_length``), as keyword arguments.

    Raises:
        SourceError: The reference does not exist or cannot be reached.
        CheckpointError: The config is missing or malformed.
        UnsupportedModelError: The model has no positions to resize.
        ResizeError: The runtime is unknown, has no such flags, or does not apply the method; or the
            model has a table of rows.
    """
    ref, _ = split_ref(reference, settings)
    return find_flags(ref, Resize(to, method=method), runtime)


def find_flags(ref: CheckpointRef, settings: Resize, key: str) -> RuntimeFlags:
    """Return the flags that replace a resize of rotary positions in a runtime.

    Args:
        ref: The checkpoint.
        settings: The length and the method.
        key: The runtime, as ``--for`` takes it.

    Raises:
        ResizeError: The runtime is unknown, has no such flags, or does not apply the method.
        CtxextendError: As `plan_resize`.
    """
    runtime = find_flags_runtime(key)
    write_folder = f"{ref.resize_command(to=settings.to)} --for {key}"
    writer = _WRITERS.get(key)
    if writer is None:
        message = f"{runtime.name} has no flags for rotary settings."
        hint = f"Write a folder: {write_folder}. Runtimes with flags: {joined(list(_WRITERS))}."
        raise ResizeError(message, hint)
    model = open_without_weights(ref, instead=f"Write a folder: {write_folder}.")
    planned = plan_for_runtime(model, settings, key)
    plan = planned.plan
    if not plan.is_changed:
        message = f"The model reads {plan.max_len_before} tokens already, without any flags."
        serve = base_command(runtime, ref.source, "").strip()
        raise ResizeError(message, f"Serve it as it is: {serve}")
    written = writer(planned)
    flags = shlex.join(written.words)
    statements = [item for item in (planned.statement,) if item is not None]
    return RuntimeFlags(
        source=ref.source,
        runtime=runtime.name,
        version=runtime.version,
        model_type=plan.model_type,
        method=plan.method,
        max_len_before=plan.max_len_before,
        max_len_after=plan.max_len_after,
        flags=flags,
        override=written.override,
        serve=base_command(runtime, ref.source, flags),
        notes=(
            *planned.notes,
            *describe_ignored_lists(statements),
            *_effects_on_short_inputs(planned),
        ),
        warnings=(
            *planned.warnings,
            *missing_scaling(plan),
            *describe_ignored_factor(statements),
        ),
    )


def find_flags_runtime(key: str) -> Runtime:
    """Return a runtime by its key.

    Raises:
        ResizeError: There is none; those with flags are named.
    """
    return find_runtime(key, suggested=list(_WRITERS))


def _effects_on_short_inputs(planned: RuntimePlan) -> Iterator[str]:
    """Yield what happens to outputs, as `resize` says it, if those for short inputs change."""
    plan = planned.plan
    if plan.keeps_learned_rows or plan.rounds_short_inputs:
        return
    hint = suggest_kept_rows(plan, planned.runtime)
    yield f"{describe_effects(plan)} {hint}".strip()


# Runtimes that take values of config.json as JSON


def _vllm_flags(planned: RuntimePlan) -> _FlagWords:
    """Return the flags of vLLM.

    It replaces a value at the top level, and merges those of a nested config. The config is one of
    transformers 5: ``rope_parameters`` replaces any dialect. With Mistral's params.json it has a
    second length, of which the smaller one counts.

    Source: vllm/config/model.py#L527 and vllm/transformers_utils/config.py of version 0.33.0.
    """
    override = config_override(planned.plan)
    if mistral_params(planned.plan.checkpoint) is not None:
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


def _sglang_flags(planned: RuntimePlan) -> _FlagWords:
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


def _json_flags(planned: RuntimePlan, flag: str, override: Mapping[str, Any]) -> _FlagWords:
    """Return a flag that takes values of config.json, and the options that the length needs."""
    words = [flag, json.dumps(override)]
    if planned.statement is not None:
        words += shlex.split(planned.statement.option)
    return _FlagWords(tuple(words), override)


def config_override(plan: Plan) -> dict[str, Any]:
    """Return the values of config.json that give a loaded config a plan's lengths and settings.

    The settings are complete, in ``rope_parameters``, since loaders replace objects as a whole. The
    values of a text model are nested as in the config that transformers 5 has after loading.
    """
    config = plan.checkpoint.config
    changes = config_changes(config, plan.model.architecture, plan.tables, fix_limits=False)
    override = dict[str, Any]()
    for table in plan.tables:
        location = with_values(replace(table.location, config=config), changes)
        values = {path: nested(location.config, path) for path in _length_paths(location)}
        if table.rope:
            values |= new_half(location, read_rope(location))
        inside = _config_path(location)
        for path, value in values.items():
            loaded = (*_loaded_path(plan, inside), *path[len(inside) :])
            override = with_value(override, loaded, value)
    return override


def _length_paths(location: TableLocation) -> list[Keys]:
    """Return the paths of the length in the config that transformers uses."""
    inside = _config_path(location)
    paths = [path for path in location.length_paths if path[:-1] == inside]
    if location.stated(TRAINED) is not None:
        paths.append((*inside, TRAINED))
    return paths


def _config_path(location: TableLocation) -> Keys:
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


def _llama_cpp_flags(planned: RuntimePlan) -> _FlagWords:
    """Return the flags of llama.cpp, which replace what the GGUF file of the checkpoint states.

    Source: ``common/arg.cpp`` of llama.cpp: ``--rope-scaling``, ``--rope-scale``,
    ``--yarn-orig-ctx``, ``--yarn-beta-fast``, ``--yarn-beta-slow`` and ``--rope-freq-base``.

    Raises:
        ResizeError: It has no flags for the settings.
    """
    plan = planned.plan
    words = ["-c", str(plan.max_len_after)]
    for table in plan.tables:
        if scales(table):
            words += _scaling_words(table)
    return _FlagWords(tuple(words), override={})


def _scaling_words(table: TablePlan) -> Iterator[str]:
    """Yield the flags of llama.cpp for the rotary settings of a table.

    Raises:
        ResizeError: It has none for them.
    """
    before = table.rope[0].before.parameters
    after = table.rope[0].after
    kind = after[TYPE]
    is_one_kind = len(table.rope) == 1 and before[TYPE] in ("default", kind)
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
        raise ResizeError(message, "Write a folder with `ctxextend resize`, and convert it.")
    facts = table.location.table.rope
    assert facts is not None
    if kind != "default" and after[THETA] != facts.theta[table.rope[0].before.layer_type]:
        # The converter drops the base of some model types.
        yield from ("--rope-freq-base", _number(after[THETA]))


def _number(value: float) -> str:
    return f"{value:.15g}"


_WRITERS: Mapping[str, Callable[[RuntimePlan], _FlagWords]] = {
    "vllm": _vllm_flags,
    "sglang": _sglang_flags,
    "llama.cpp": _llama_cpp_flags,
}
