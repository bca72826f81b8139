"""The positions that the metadata of a GGUF file state, in the words of a config.

The keys and their defaults are those of ``llama_model_base::load_hparams`` in llama-model.cpp:
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-model.cpp.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctxextend.checkpoint.features import GGUF_ROUTE
from ctxextend.errors import CheckpointError, UnsupportedModelError, did_you_mean
from ctxextend.tables.rope_types import (
    FACTOR,
    FULL_LAYERS,
    NEW,
    PARTIAL,
    SLIDING_LAYERS,
    THETA,
    TRAINED,
    TYPE,
)

_ROWS = json.loads(Path(__file__).with_name("gguf_architectures.json").read_text("utf-8"))
# What llama.cpp does with the positions of each architecture; see the file.
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in _ROWS["rotary"]},
    **{name: group for group in _ROWS["others"] for name in group["types"]},
}
NAMESPACE = "gguf:"  # before the name of an architecture, as the ``model_type`` of a config
POSITION_TABLE = "position_embd.weight"
DEFAULT_BASE = 10_000.0
# Keys after the name of the architecture, of rotary settings by their names in a config.
ROPE_KEYS = {
    THETA: "rope.freq_base",
    TYPE: "rope.scaling.type",
    FACTOR: "rope.scaling.factor",
    TRAINED: "rope.scaling.original_context_length",
}


def in_32_bits(value: Any) -> Any:
    """Return a number as the format stores it, in the fewest digits; other values as they are."""
    if isinstance(value, float):
        return float(str(np.float32(value)))
    return value


def read_config(
    name: str, values: Mapping[str, Any], tensors: Collection[str], file: str
) -> dict[str, Any]:
    """Return the metadata of a GGUF file as a config: positions in the words of transformers 5.

    Lengths, and all others, have the names that they have in the file. Nothing but the type of
    scaling and the rotated share of a head is checked here: all values are when they are used, as
    those of any config.

    Args:
        name: Its architecture.
        values: Its metadata by key.
        tensors: The names of its tensors.
        file: Its name, for messages.

    Raises:
        CheckpointError: Its scaling is malformed, or the rotated share of a head.
        UnsupportedModelError: Its architecture is not known.
    """
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file}: what llama.cpp computes from the positions of architecture {name!r:.100} is "
            "not known.",
            f"{did_you_mean(name, ARCHITECTURES)} {GGUF_ROUTE}".strip(),
        )
    prefix = f"{name}."
    own = {
        key.removeprefix(prefix): in_32_bits(value)
        for key, value in values.items()
        if key.startswith(prefix)
    }
    config: dict[str, Any] = {
        "model_type": f"{NAMESPACE}{name}",
        "architectures": [ARCHITECTURES[name].get("class")],
        "has_table": POSITION_TABLE in tensors,
        "hidden_size": own.get("embedding_length"),
        "num_attention_heads": own.get("attention.head_count"),
        "head_dim": own.get("rope.dimension_count", own.get("attention.key_length")),
        name: own,
    }
    if "positions" in ARCHITECTURES[name]:
        return config

    settings = {setting: own[key] for setting, key in ROPE_KEYS.items() if key in own}
    theta = settings.setdefault(THETA, DEFAULT_BASE)
    kind = settings.setdefault(TYPE, "linear")  # as llama.cpp scales if there is only a factor
    if kind not in ("none", "linear", "yarn", "longrope"):
        message = f"{file}: {prefix}{ROPE_KEYS[TYPE]} {kind!r:.100} is not a type of scaling."
        raise CheckpointError(message, f"Convert the model again. {GGUF_ROUTE}")
    if kind in ("none", "longrope") or settings.get(FACTOR, 1) in (0, 1):
        settings = {TYPE: "default", THETA: theta}
    config[NEW] = settings
    config["has_window_base"] = "rope.freq_base_swa" in own
    if config["has_window_base"]:
        local = {TYPE: "default", THETA: own["rope.freq_base_swa"]}
        if "rope.dimension_count_swa" in own:
            try:
                local[PARTIAL] = own["rope.dimension_count_swa"] / config["head_dim"]
            except (TypeError, ZeroDivisionError):
                message = f"{file}: {prefix}rope.dimension_count_swa is not a share of a head."
                raise CheckpointError(message, f"Convert the model again. {GGUF_ROUTE}") from None
        config[NEW] = {FULL_LAYERS: settings, SLIDING_LAYERS: local}
    return config
