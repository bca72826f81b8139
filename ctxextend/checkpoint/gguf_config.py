"""The positions that the metadata of a GGUF file state, in the words of a config, and back.

The keys and their defaults are those of ``llama_model_base::load_hparams`` in llama-model.cpp:
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-model.cpp.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctxextend.checkpoint.features import GGUF_ROUTE
from ctxextend.errors import CheckpointError, UnsupportedModelError, did_you_mean
from ctxextend.tables.rope_types import ATTENTION_FACTOR, FACTOR, NEW, PARTIAL, THETA, TRAINED, TYPE

_DATA = json.loads(Path(__file__).with_name("gguf_architectures.json").read_text("utf-8"))
# What llama.cpp does with the positions of each architecture; see the file.
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in _DATA["rotary"]},
    **{name: group for group in _DATA["others"] for name in group["types"]},
}
NAMESPACE = "gguf:"  # before the name of an architecture, as the ``model_type`` of a config
ARCHITECTURE = "general.architecture"
POSITION_TABLE = "position_embd.weight"
# Tensors of factors that divide frequencies: of llama3 settings, and of longrope ones.
FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
FULL_LAYERS = "full_attention"
SLIDING_LAYERS = "sliding_attention"
MAX_LENGTH = 1 << 32  # llama.cpp reads lengths as 32 bits
DEFAULT_BASE = 10_000.0
# Keys after the name of the architecture.
LENGTH = "context_length"
WIDTH = "embedding_length"
HEADS = "attention.head_count"
WINDOW = "attention.sliding_window"
BASE = "rope.freq_base"
WINDOW_BASE = "rope.freq_base_swa"  # of layers with a sliding window
SCALING = "rope.scaling.type"
OLD_SCALE = "rope.scale_linear"  # the first name of `SCALE`
SCALE = "rope.scaling.factor"
TRAINED_LENGTH = "rope.scaling.original_context_length"
# By which llama.cpp multiplies cosines and sines, whatever the scaling is; those of yarn also by
# the attention factor that follows from their factor: `yarn_attn_factor` in llama-context.cpp.
ATTENTION = "rope.scaling.attn_factor"


def shortest(value: float) -> float:
    """Return a number as the format stores it: with 32 bits, in the fewest digits."""
    return float(str(np.float32(value)))


def derived_attention(factor: float) -> float:
    """Return the attention factor of yarn settings that follows from their factor."""
    return 0.1 * math.log(factor) + 1.0


def read_config(values: Mapping[str, Any], tensors: Collection[str], file: str) -> dict[str, Any]:
    """Return the positions that a GGUF file states, as a config of transformers 5.

    Only lengths have the names and the place that they have in the file.

    Args:
        values: Its metadata by key.
        tensors: The names of its tensors.
        file: Its name, for messages.

    Raises:
        CheckpointError: A key is missing or malformed.
        UnsupportedModelError: Its architecture is not known.
    """
    name = values.get(ARCHITECTURE)
    row = ARCHITECTURES.get(str(name))
    if row is None:
        similar = did_you_mean(str(name), ARCHITECTURES)
        raise UnsupportedModelError(
            f"{file}: what llama.cpp computes from the positions of architecture {name!r:.100} is "
            "not known.",
            f"{similar} {GGUF_ROUTE}".strip(),
        )
    reader = _Reader(values, str(name), file)
    own = {LENGTH: reader.length(LENGTH)}
    config: dict[str, Any] = {"model_type": f"{NAMESPACE}{name}", name: own}
    if "class" in row:
        config["architectures"] = [row["class"]]
    config["has_table"] = POSITION_TABLE in tensors
    if config["has_table"]:
        own[WIDTH] = reader.length(WIDTH)
    if "positions" in row:
        return config
    config["head_dim"] = reader.dimensions("")
    settings = {**reader.scaling(), THETA: reader.number(BASE, DEFAULT_BASE)}
    window_base = reader.number(WINDOW_BASE, 0.0)
    has_window = bool(reader.stated(WINDOW))
    if not window_base and has_window and row.get("window_base") == "taken":
        window_base = settings[THETA]
    config["has_window_base"] = bool(window_base)
    config[NEW] = settings
    if window_base:
        local = {TYPE: "default", THETA: window_base}
        if reader.stated("rope.dimension_count_swa") is not None:
            local[PARTIAL] = reader.dimensions("_swa") / config["head_dim"]
        config[NEW] = {FULL_LAYERS: settings, SLIDING_LAYERS: local}
    return config


class _Reader:
    """The metadata of one architecture."""

    def __init__(self, values: Mapping[str, Any], name: str, file: str) -> None:
        self._values = values
        self._name = name
        self._file = file

    def stated(self, key: str) -> Any:
        """Return the value of a key after the name of the architecture; None if it is missing."""
        return self._values.get(f"{self._name}.{key}")

    def length(self, key: str) -> int:
        """Return a positive integer.

        Raises:
            CheckpointError: It is missing, or anything else.
        """
        value = self.stated(key)
        self._check(key, type(value) is int and 0 < value < MAX_LENGTH, "a positive integer")
        return int(value)

    def number(self, key: str, default: float) -> float:
        """Return a number of at least 0, in the fewest digits that are the same in 32 bits.

        Raises:
            CheckpointError: It is anything else.
        """
        value = self.stated(key)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and 0 <= value < math.inf
        self._check(key, is_number, "a number of at least 0")
        return shortest(value)

    def dimensions(self, suffix: str) -> int:
        """Return the number of rotated values per head."""
        for key in (f"rope.dimension_count{suffix}", "attention.key_length"):
            if self.stated(key) is not None:
                return self.length(key)
        return self.length(WIDTH) // self.length(HEADS)

    def scaling(self) -> dict[str, Any]:
        """Return the scaling as rotary settings.

        Without a type, llama.cpp scales linearly if there is a factor.
        """
        kind = self.stated(SCALING) or "linear"
        kinds = ("none", "linear", "yarn", "longrope")
        self._check(SCALING, kind in kinds, f"one of {', '.join(kinds)}")
        factor = self.number(SCALE, self.number(OLD_SCALE, 0.0))
        if kind in ("none", "longrope") or factor in (0, 1):
            return {TYPE: "default"}
        self._check(SCALE, factor > 1, "a number of at least 1")
        settings = {TYPE: kind, FACTOR: factor}
        if self.stated(TRAINED_LENGTH) is not None:
            settings[TRAINED] = self.length(TRAINED_LENGTH)
        scale = self.number(ATTENTION, 1.0)
        if kind == "yarn" and scale != 1:
            settings[ATTENTION_FACTOR] = scale * derived_attention(factor)
        return settings

    def _check(self, key: str, is_valid: bool, expected: str) -> None:
        if not is_valid:
            message = (
                f"{self._file}: {self._name}.{key} must be {expected} of 32 bits, got "
                f"{self.stated(key)!r:.100}."
            )
            raise CheckpointError(message, f"Convert the model again. {GGUF_ROUTE}")


def state_config(
    before: Mapping[str, Any], after: Mapping[str, Any], values: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a GGUF file that state another config than `read_config` read.

    Rotary settings are those that the converter of llama.cpp writes.

    Args:
        before: The config.
        after: The same with another length or other rotary settings.
        values: The metadata of the file by key.
    """
    name = values[ARCHITECTURE]
    yield f"{name}.{LENGTH}", after[name][LENGTH]
    if before.get(NEW) == after.get(NEW):
        return
    old: Mapping[str, Any] = before[NEW].get(FULL_LAYERS, before[NEW])
    new: Mapping[str, Any] = after[NEW].get(FULL_LAYERS, after[NEW])
    if new[THETA] != old[THETA]:
        yield f"{name}.{BASE}", shortest(new[THETA])
        # Layers with a window keep theirs, which llama.cpp would take from the others.
        if before["has_window_base"]:
            yield f"{name}.{WINDOW_BASE}", shortest(before[NEW][SLIDING_LAYERS][THETA])
    if new[TYPE] == "default":
        return
    yield f"{name}.{SCALING}", new[TYPE]
    yield f"{name}.{SCALE}", shortest(new[FACTOR])
    if f"{name}.{OLD_SCALE}" in values:
        yield f"{name}.{OLD_SCALE}", shortest(new[FACTOR])
    yield f"{name}.{TRAINED_LENGTH}", round(new[TRAINED])
    if ATTENTION_FACTOR in new:
        scale = new[ATTENTION_FACTOR] / derived_attention(new[FACTOR])
        yield f"{name}.{ATTENTION}", shortest(scale)
