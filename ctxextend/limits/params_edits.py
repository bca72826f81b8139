"""Plan the values of Mistral's params.json, which vLLM reads before config.json."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ctxextend.checkpoint.filenames import PARAMS_FILE
from ctxextend.checkpoint.json_edit import Edit, shown_value
from ctxextend.errors import CheckpointError, MethodError
from ctxextend.limits.statements import following_value, generating_table, params_lengths
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.positions.change import Change
from ctxextend.tables.frequencies import yarn_attention_factor
from ctxextend.tables.rope_types import (
    BETA_FAST,
    BETA_SLOW,
    FACTOR,
    LLAMA_4_BETA,
    THETA,
    TRAINED,
    TYPE,
    Parameters,
    yarn_betas,
)

YARN_DEFAULTS = {"apply_scale": True, "beta": 32, "alpha": 1}
ATTENTION_ROUNDING = 1e-9  # relative, of settings that are computed


def params_edits(
    model: OpenedModel, changes: Sequence[Change], *, fix_limits: bool
) -> Iterator[Edit]:
    """Yield the edits of a params.json, which states the positions of the language model.

    Raises:
        CheckpointError: It disagrees with config.json.
        MethodError: It cannot state the new rotary settings.
    """
    params = model.checkpoint.params
    generating = generating_table(model.tables)
    if params is None or generating is None:
        return
    for change in changes:
        if change.name != generating.name or change.positions.rows:
            continue
        before = change.max_len_before
        for key, value in params_lengths(model.checkpoint).items():
            after = following_value(change.positions, value, before, change.max_len_after)
            if after is None and not fix_limits:
                message = (
                    f"{PARAMS_FILE} and config.json disagree: {key} is {value}, and the context "
                    f"length {before}."
                )
                hint = "Correct the wrong one, or pass --fix-limits to set both."
                raise CheckpointError(message, hint)
            after = after or change.max_len_after
            if after != value:
                yield Edit(file=PARAMS_FILE, path=(key,), before=value, after=after)
        for layers, settings in change.changed_layers:
            values = _setting_changes(PARAMS_FILE, params, layers.parameters, settings)
            for key, after in values.items():
                yield Edit(file=PARAMS_FILE, path=(key,), before=params.get(key), after=after)


def _setting_changes(
    file: str, params: Mapping[str, Any], settings: Parameters, new: Parameters
) -> dict[str, Any]:
    before = _in_params(file, settings)
    after = _in_params(file, new)
    for key, value in before.items():
        stated = params.get(key) or None
        if key == "yarn" and isinstance(stated, Mapping):
            stated = {**stated, **YARN_DEFAULTS, **stated}
        if stated != value and not (key == THETA and stated is None):
            message = (
                f"{PARAMS_FILE} and config.json disagree: {key} is {shown_value(stated)}, and by "
                f"config.json {shown_value(value)}."
            )
            raise CheckpointError(message, "Correct the wrong one: vLLM reads params.json.")
    return {key: value for key, value in after.items() if value != before[key]}


def _in_params(file: str, settings: Parameters) -> dict[str, Any]:
    """Return rotary settings as a params.json states them.

    Its keys are those of vLLM 0.33:
    https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/transformers_utils/configs/mistral.py

    Raises:
        MethodError: It cannot state them.
    """
    values: dict[str, Any] = {THETA: settings[THETA], "yarn": None, "llama_4_scaling": None}
    beta = settings.get(LLAMA_4_BETA)
    if beta:
        values["llama_4_scaling"] = {TRAINED: settings.get(TRAINED), "beta": beta}
    kind = settings[TYPE]
    if kind == "default":
        return values
    if kind == "yarn":
        attention = yarn_attention_factor(settings)
        usual = yarn_attention_factor({FACTOR: settings[FACTOR]})
        applies_usual = math.isclose(attention, usual, rel_tol=ATTENTION_ROUNDING)
        if applies_usual or math.isclose(attention, 1, rel_tol=ATTENTION_ROUNDING):
            betas = yarn_betas(settings)
            values["yarn"] = {
                TRAINED: settings[TRAINED],
                FACTOR: settings[FACTOR],
                "apply_scale": applies_usual,
                "beta": betas[BETA_FAST],
                "alpha": betas[BETA_SLOW],
            }
            return values
    message = f"{file}, which vLLM reads before config.json, cannot state these {kind} settings."
    hint = "Remove params.json and consolidated* from a copy of the folder, and pass that."
    raise MethodError(message, hint)
