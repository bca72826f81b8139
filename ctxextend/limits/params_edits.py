"""Plan the values of Mistral's params.json, which vLLM reads before config.json."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ctxextend.checkpoint.filenames import PARAMS_FILE
from ctxextend.checkpoint.json_edit import Edit
from ctxextend.errors import MethodError
from ctxextend.limits.statements import generating_table
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

ATTENTION_ROUNDING = 1e-9  # relative, of settings that are computed


def params_edits(model: OpenedModel, changes: Sequence[Change]) -> Iterator[Edit]:
    """Yield the edits of the rotary settings in a params.json, which are the language model's.

    Raises:
        MethodError: It cannot state the new ones.
    """
    params = model.checkpoint.params or {}
    generating = generating_table(model.tables)
    for change in changes:
        if generating is None or change.name != generating.name or change.positions.rows:
            continue
        for layers, settings in change.changed_layers:
            before = _in_params(PARAMS_FILE, layers.parameters)
            for key, after in _in_params(PARAMS_FILE, settings).items():
                if after != before[key]:
                    yield Edit(file=PARAMS_FILE, path=(key,), before=params.get(key), after=after)


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
