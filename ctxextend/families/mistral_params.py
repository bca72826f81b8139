"""Mistral's own config, params.json: how each value of positions is spelled, and what cannot be.

Sources, read in 2026-11:

- vLLM 0.33 reads params.json before config.json:
  https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/transformers_utils/configs/mistral.py
- mistral-inference 1.6 reads sizes and ``rope_theta``, and ignores all other keys of positions:
  https://github.com/mistralai/mistral-inference/blob/main/src/mistral_inference/args.py
- llama.cpp's converter, with ``--mistral-format``, asks for all keys of ``yarn``:
  https://github.com/ggml-org/llama.cpp/blob/master/conversion/mistral.py
- transformers converts the files, and calls the values as below:
  https://github.com/huggingface/transformers/blob/main/src/transformers/models/ministral3/convert_ministral3_weights_to_hf.py
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ctxextend.errors import CheckpointError, joined
from ctxextend.families.lookup import Keys, nested
from ctxextend.families.rope import LARGEST_NUMBER, MAX_NUMBER
from ctxextend.tables.rope_types import (
    ATTENTION_FACTOR,
    FACTOR,
    LLAMA_4_BETA,
    PARTIAL,
    THETA,
    TRAINED,
    TYPE,
    Parameters,
)
from ctxextend.tables.rotary import yarn_attention_factor

MISTRAL_INFERENCE = "mistral-inference"
# Keys that every params.json of a transformer has; those of Meta's models lack the last one.
SIGN = ("dim", "n_layers", "hidden_dim")

# Lengths, both of which vLLM reads: the smaller one counts.
MAX_POSITIONS = "max_position_embeddings"
MAX_SEQ_LEN = "max_seq_len"
LENGTH_KEYS = (MAX_POSITIONS, MAX_SEQ_LEN)  # `limits.statements` says who reads them
# The length that vLLM, SGLang and mistral-inference take if nothing states one.
UNSTATED_LENGTH = 128_000

YARN_KEY = "yarn"
LLAMA_4 = "llama_4_scaling"
APPLY_SCALE = "apply_scale"
HEAD_DIM_KEY = "head_dim"
WINDOW = "sliding_window"
ROUNDS_BOUNDS = (
    "truncate"  # of yarn settings in transformers: whether bounds of wavelengths are rounded
)
EXPERTS = "moe"
# Keys of latent attention, which rotates a part of each head.
LATENT_KEYS = ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank")
ATTENTION_ROUNDING = 1e-9  # relative, of settings that are computed


class NumberRule(NamedTuple):
    """What a number must be."""

    text: str  # as an object of "must be"
    maximum: float
    is_at_least_1: bool = False  # instead of above 0
    is_whole: bool = False


LENGTH_RULE = NumberRule(
    text=f"a whole number from 1 to {LARGEST_NUMBER:,}",
    maximum=LARGEST_NUMBER,
    is_at_least_1=True,
    is_whole=True,
)
FACTOR_RULE = NumberRule(
    text=f"a number from 1 to {LARGEST_NUMBER:,}", maximum=LARGEST_NUMBER, is_at_least_1=True
)
NUMBER_RULE = NumberRule(text=f"a number above 0, up to {MAX_NUMBER:g}", maximum=MAX_NUMBER)


class SettingRow(NamedTuple):
    """A rotary setting: its path in params.json, and its key in transformers."""

    path: Keys
    setting: str
    rule: NumberRule
    default: float | None = None  # what readers take without the key; None: they need it


class SizeRow(NamedTuple):
    """A size of the model: its key in params.json, and in the config of transformers."""

    key: str
    config_key: str
    is_needed: bool = True


SIZE_ROWS = (
    SizeRow("dim", "hidden_size"),
    SizeRow("n_layers", "num_hidden_layers"),
    SizeRow("n_heads", "num_attention_heads"),
    SizeRow("n_kv_heads", "num_key_value_heads", is_needed=False),
    SizeRow(HEAD_DIM_KEY, HEAD_DIM_KEY, is_needed=False),
    SizeRow("hidden_dim", "intermediate_size"),
    SizeRow("vocab_size", "vocab_size"),
)
# In the order of Mistral's files. ``apply_scale`` is in none of these rows: it states whether the
# attention factor is the usual one of yarn, or 1.
YARN_ROWS = (
    SettingRow((YARN_KEY, TRAINED), TRAINED, LENGTH_RULE),
    SettingRow((YARN_KEY, FACTOR), FACTOR, FACTOR_RULE),
    SettingRow((YARN_KEY, "beta"), "beta_fast", NUMBER_RULE, default=32),
    SettingRow((YARN_KEY, "alpha"), "beta_slow", NUMBER_RULE, default=1),
)
YARN_KEYS = (*(row.path[-1] for row in YARN_ROWS), APPLY_SCALE)
LLAMA_4_ROWS = (
    SettingRow((LLAMA_4, TRAINED), TRAINED, LENGTH_RULE),
    SettingRow((LLAMA_4, "beta"), LLAMA_4_BETA, NUMBER_RULE),
)
# Rope types that params.json can state: ``default`` by ``rope_theta`` only.
STATABLE_TYPES = ("default", "yarn")


class Unstatable(NamedTuple):
    """A rotary setting of transformers that params.json cannot state: its key and value."""

    key: str
    value: Any


class Disagreement(NamedTuple):
    """A value of params.json that is not that of config.json; None: the file does not state it."""

    key: str
    value: Any
    config_key: str
    config_value: Any
    is_statable: bool = True  # whether params.json can state the value of config.json


def is_params(values: Mapping[str, Any]) -> bool:
    """Whether an object is Mistral's config of a transformer; many programs write a params.json."""
    return all(key in values for key in SIGN)


# Malformed files


def check_params(params: Mapping[str, Any], file: str) -> None:
    """Check what params.json states about positions.

    Args:
        params: Its content.
        file: Its name, for messages.

    Raises:
        CheckpointError: A value is malformed, or no reader accepts the file.
    """
    for key in LENGTH_KEYS:
        if params.get(key) is not None:
            _check_number(file, (key,), LENGTH_RULE, params[key])
    if params.get(THETA) is not None:
        _check_number(file, (THETA,), NUMBER_RULE, params[THETA])
    _check_object(params, file, YARN_KEY, YARN_ROWS)
    _check_object(params, file, LLAMA_4, LLAMA_4_ROWS)
    yarn = params.get(YARN_KEY) or {}
    unknown = [key for key in yarn if key not in YARN_KEYS]
    if unknown:
        message = f"{file}: {YARN_KEY} has the key {unknown[0]!r:.100}, which vLLM does not accept."
        raise CheckpointError(message, f"Its keys are {', '.join(YARN_KEYS)}.")
    applies = yarn.get(APPLY_SCALE, True)
    if not isinstance(applies, bool):
        raise _malformed(file, (YARN_KEY, APPLY_SCALE), "true or false", applies)
    _check_one_trained_length(params, file)


def _check_object(
    params: Mapping[str, Any], file: str, key: str, rows: Sequence[SettingRow]
) -> None:
    """Raise CheckpointError if an object of settings, which may be missing, is malformed."""
    settings = params.get(key)
    if settings is None or settings == {}:
        return
    if not isinstance(settings, Mapping):
        raise _malformed(file, (key,), "an object of settings", settings)
    for row in rows:
        value = nested(params, row.path)
        if value is None and row.default is not None and row.path[-1] not in settings:
            continue
        _check_number(file, row.path, row.rule, value)


def _check_one_trained_length(params: Mapping[str, Any], file: str) -> None:
    """Raise CheckpointError if the scaling of queries starts at another length than yarn.

    vLLM reads each length by itself: ``_get_llama_4_attn_scale`` of
    https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/models/mistral.py. The
    config of transformers has one key for both: ``Ministral3Attention.forward`` of
    https://github.com/huggingface/transformers/blob/main/src/transformers/models/ministral3/modeling_ministral3.py.
    """
    of_yarn = nested(params, (YARN_KEY, TRAINED))
    of_queries = nested(params, (LLAMA_4, TRAINED))
    if of_yarn is None or of_queries in (None, of_yarn):
        return
    message = (
        f"{file}: {LLAMA_4}.{TRAINED} is {of_queries}, but that of {YARN_KEY} is {of_yarn}. vLLM "
        "uses both, and transformers has one key for them."
    )
    raise CheckpointError(message, f"Correct the wrong one in {file}.")


def _check_number(file: str, path: Keys, rule: NumberRule, value: Any) -> None:
    """Raise CheckpointError if a value breaks a rule."""
    if not _follows(value, rule):
        raise _malformed(file, path, rule.text, value)


def _follows(value: Any, rule: NumberRule) -> bool:
    """Whether a value is a number that follows a rule."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if rule.is_whole and not isinstance(value, int):
        return False
    if rule.is_at_least_1 and value < 1:
        return False
    return 0 < value <= rule.maximum


def _malformed(file: str, path: Keys, rule: str, value: Any) -> CheckpointError:
    """Return the error for a value that is not what readers expect."""
    found = "nothing" if value is None else f"{value!r:.100}"
    message = f"{file}: {'.'.join(path)} must be {rule}, got {found}."
    return CheckpointError(message, f"Correct {file}.")


# Lengths


def length_in_vllm(params: Mapping[str, Any], config_length: int | None) -> int:
    """Return the context length that vLLM takes from checked values, in tokens.

    Args:
        params: The content of params.json.
        config_length: What config.json states; None without this file.
    """
    positions = params.get(MAX_POSITIONS)
    if positions is None:
        positions = UNSTATED_LENGTH if config_length is None else config_length
    stated: int = params.get(MAX_SEQ_LEN) or positions
    return min(positions, stated)


def stated_length(params: Mapping[str, Any]) -> int:
    """Return the context length that checked values state, in tokens: the smallest one.

    It can be more than `length_in_vllm`, since vLLM takes 128,000 for a missing
    ``max_position_embeddings`` even if ``max_seq_len`` is larger.
    """
    lengths = [params[key] for key in LENGTH_KEYS if params.get(key) is not None]
    return min(lengths, default=UNSTATED_LENGTH)


# Rotary settings


def disagreements(params: Mapping[str, Any], settings: Parameters) -> list[Disagreement]:
    """Return where the rotary settings of params.json are not those of config.json.

    A base that only one file states is not a disagreement: vLLM takes it from config.json.

    Args:
        params: The content of params.json, as checked.
        settings: Those of config.json, as transformers uses them.
    """
    found = list[Disagreement]()
    theta = params.get(THETA)
    if theta is not None and theta != settings[THETA]:
        found.append(Disagreement(THETA, theta, THETA, settings[THETA]))
    yarn = params.get(YARN_KEY) or None
    kind = settings[TYPE]
    unstatable = find_unstatable(params, settings)
    if unstatable is not None:
        found.append(
            Disagreement(
                key=YARN_KEY,
                value=yarn,
                config_key=unstatable.key,
                config_value=unstatable.value,
                is_statable=False,
            )
        )
    elif yarn is None and kind == "yarn":
        found.append(Disagreement(YARN_KEY, None, TYPE, kind))
    elif yarn is not None and kind == "default":
        found.append(Disagreement(YARN_KEY, yarn, TYPE, kind))
    elif yarn is not None:
        found += _unequal_yarn(params, settings)
    return [*found, *_unequal_llama_4(params, settings)]


def _unequal_yarn(params: Mapping[str, Any], settings: Parameters) -> list[Disagreement]:
    """Return where yarn settings of both files differ."""
    stated = _stated_settings(params, YARN_ROWS)
    found = _unequal(stated, settings, YARN_ROWS)
    attention = _attention_factor(params, stated[FACTOR])
    in_config = yarn_attention_factor(settings)
    if not math.isclose(attention, in_config, rel_tol=ATTENTION_ROUNDING):
        applies = params[YARN_KEY].get(APPLY_SCALE, True)
        found.append(
            Disagreement(f"{YARN_KEY}.{APPLY_SCALE}", applies, ATTENTION_FACTOR, in_config)
        )
    return found


def _unequal_llama_4(params: Mapping[str, Any], settings: Parameters) -> list[Disagreement]:
    """Return where the scaling of queries by position differs.

    A factor of 0 scales nothing.
    """
    scaling = params.get(LLAMA_4) or None
    beta = settings.get(LLAMA_4_BETA) or None
    if scaling is None and beta is None:
        return []
    if scaling is None or beta is None:
        return [Disagreement(LLAMA_4, scaling, LLAMA_4_BETA, beta)]
    return _unequal(_stated_settings(params, LLAMA_4_ROWS), settings, LLAMA_4_ROWS)


def _unequal(
    stated: Parameters, settings: Parameters, rows: Sequence[SettingRow]
) -> list[Disagreement]:
    """Return the settings of some rows that differ."""
    found = list[Disagreement]()
    for row in rows:
        in_config = settings.get(row.setting) or row.default
        if stated[row.setting] != in_config:
            key = ".".join(row.path)
            found.append(Disagreement(key, stated[row.setting], row.setting, in_config))
    return found


def _stated_settings(params: Mapping[str, Any], rows: Sequence[SettingRow]) -> dict[str, Any]:
    """Return settings by their keys in transformers, with the defaults of readers."""
    settings = dict[str, Any]()
    for row in rows:
        value = nested(params, row.path)
        settings[row.setting] = row.default if value is None else value
    return settings


def _attention_factor(params: Mapping[str, Any], factor: float) -> float:
    """Return by which factor params.json multiplies cosines and sines in yarn settings."""
    if nested(params, (YARN_KEY, APPLY_SCALE)) is False:
        return 1.0
    return yarn_attention_factor({FACTOR: factor})


def find_unstatable(params: Mapping[str, Any], settings: Parameters) -> Unstatable | None:
    """Return a rotary setting that a params.json cannot state; None if it can state all.

    Args:
        params: Its content.
        settings: Those of transformers.
    """
    kind = settings[TYPE]
    if kind not in STATABLE_TYPES:
        return Unstatable(TYPE, kind)
    partial = settings.get(PARTIAL, 1)
    if partial != 1 and not _is_latent(params):
        return Unstatable(PARTIAL, partial)
    if kind == "default":
        return None
    if not settings.get(ROUNDS_BOUNDS, True):
        return Unstatable(ROUNDS_BOUNDS, False)
    attention = yarn_attention_factor(settings)
    for statable in (1.0, yarn_attention_factor({FACTOR: settings[FACTOR]})):
        if math.isclose(attention, statable, rel_tol=ATTENTION_ROUNDING):
            return None
    return Unstatable(ATTENTION_FACTOR, attention)


def _is_latent(params: Mapping[str, Any]) -> bool:
    """Whether a model has latent attention: sizes state which part of each head it rotates."""
    return any(params.get(key) for key in LATENT_KEYS)


def rope_changes_of_params(params: Mapping[str, Any], after: Parameters) -> dict[Keys, Any]:
    """Return the values of params.json that give it other rotary settings, by path of keys.

    A new ``yarn`` object has all of its keys, since llama.cpp's converter asks for them. The length
    of ``llama_4_scaling`` changes only if the user corrects that of ``yarn``, which is the same.

    Args:
        params: Its content, as checked.
        after: Settings that it can state, see `find_unstatable`.
    """
    changes = dict[Keys, Any]()
    if params.get(THETA) != after[THETA]:
        changes[(THETA,)] = after[THETA]
    yarn = params.get(YARN_KEY) or None
    if after[TYPE] != "yarn":
        if yarn is not None:
            changes[(YARN_KEY,)] = None
        return changes
    values = {row.path[-1]: after.get(row.setting) or row.default for row in YARN_ROWS}
    attention = yarn_attention_factor(after)
    usual = yarn_attention_factor({FACTOR: after[FACTOR]})
    values[APPLY_SCALE] = math.isclose(attention, usual, rel_tol=ATTENTION_ROUNDING)
    if yarn is None:
        order = (TRAINED, FACTOR, APPLY_SCALE, "beta", "alpha")
        changes[(YARN_KEY,)] = {key: values[key] for key in order}
        return changes
    defaults = {row.path[-1]: row.default for row in YARN_ROWS} | {APPLY_SCALE: True}
    for key, value in values.items():
        if yarn.get(key, defaults[key]) != value:
            changes[YARN_KEY, key] = value
    if params.get(LLAMA_4) and params[LLAMA_4][TRAINED] != after[TRAINED]:
        changes[LLAMA_4, TRAINED] = after[TRAINED]
    return changes


# Folders with params.json only


def config_of_params(params: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return the config that transformers would have of the text model of a params.json.

    It has sizes, lengths and rotary settings, and no config of images or sounds, whose positions
    no resize changes.

    Args:
        params: Its content.
        file: Its path, for messages.

    Raises:
        CheckpointError: A value is malformed, the file does not state what its readers disagree
            about, or the model is not of a type with rotary positions that can be translated.
    """
    _check_kind(params, file)
    check_params(params, file)
    config: dict[str, Any] = {"model_type": _model_type(params)}
    for row in SIZE_ROWS:
        value = params.get(row.key)
        if value is None and not row.is_needed:
            continue
        _check_number(file, (row.key,), LENGTH_RULE, value)
        config[row.config_key] = value
    config[MAX_POSITIONS] = stated_length(params)
    config |= _window(params, file)
    theta = params.get(THETA)
    if theta is None:
        message = (
            f"{file} states no {THETA}: {MISTRAL_INFERENCE} takes 1,000,000, and the converter of "
            "transformers 10,000."
        )
        raise CheckpointError(message, f"Add the one of the training to {file}.")
    config["rope_parameters"] = _rope_of_params(params)
    return config


def _rope_of_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary settings that transformers would have, of a checked params.json."""
    rope: dict[str, Any] = {TYPE: "default", THETA: params[THETA]}
    if params.get(YARN_KEY):
        rope[TYPE] = "yarn"
        for setting in YARN_ROWS:
            value = nested(params, setting.path)
            if value is not None and value != setting.default:
                rope[setting.setting] = value
        if nested(params, (YARN_KEY, APPLY_SCALE)) is False:
            rope[ATTENTION_FACTOR] = 1.0
    if params.get(LLAMA_4):
        for setting in LLAMA_4_ROWS:
            rope[setting.setting] = nested(params, setting.path)
    return rope


def _check_kind(params: Mapping[str, Any], file: str) -> None:
    """Raise CheckpointError for a model whose positions are not translated."""
    hint = "Pass the folder in the format of transformers, if there is one."
    if params.get("model_type", "transformer") != "transformer":
        message = f"{file}: model_type {params['model_type']!r:.100} has no rotary positions."
        raise CheckpointError(message, hint)
    if _is_latent(params):
        stated = [key for key in LATENT_KEYS if params.get(key)]
        message = f"{file}: latent attention ({stated[0]}) is read only with a config.json."
        raise CheckpointError(message, hint)
    if not is_params(params):
        missing = [key for key in SIGN if key not in params]
        message = f"{file} does not state {joined(missing)}: it is not Mistral's config."
        raise CheckpointError(message, hint)


def _model_type(params: Mapping[str, Any]) -> str:
    """Return the type in transformers of the text model."""
    if params.get(EXPERTS):
        return "mixtral"
    return "ministral3" if params.get(LLAMA_4) else "mistral"


def _window(params: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return the sliding window: of all layers or, if it is a list, of those that have one.

    Raises:
        CheckpointError: It is malformed.
    """
    window = params.get(WINDOW)
    if window is None:
        return {WINDOW: None}
    if _follows(window, LENGTH_RULE):
        return {WINDOW: window}
    items = window if isinstance(window, list) else [window]
    stated = [item for item in items if item is not None]
    if items is not window or not all(_follows(item, LENGTH_RULE) for item in stated):
        raise _malformed(file, (WINDOW,), "a whole number, or a list of these and null", window)
    if not stated:
        return {WINDOW: None}
    types = ["full_attention" if item is None else "sliding_attention" for item in items]
    return {WINDOW: stated[0], "layer_types": types}
