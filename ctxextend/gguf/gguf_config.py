"""The positions that the metadata of a GGUF file state, in the words of a config.

The keys and their defaults are those of ``llama_model_base::load_hparams`` in llama-model.cpp:
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-model.cpp.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import numpy as np

from ctxextend.errors import CheckpointError, UnsupportedModelError, did_you_mean
from ctxextend.gguf.gguf_architectures import (
    GGUF_ARCHITECTURES,
    LINEAR_METHOD,
    YARN_METHOD,
    GgufArchitecture,
)
from ctxextend.positions.facts import (
    FULL_LAYERS,
    ROTARY,
    SLIDING_LAYERS,
)
from ctxextend.tables.rope_types import ATTENTION_FACTOR, FACTOR, NEW, PARTIAL, THETA, TRAINED, TYPE

ARCHITECTURE = "general.architecture"
POSITION_TABLE = "position_embd.weight"
# Keys after the name of the architecture.
CONTEXT_LENGTH = "context_length"
FREQ_BASE = "rope.freq_base"
FREQ_BASE_LOCAL = "rope.freq_base_swa"  # of layers with a sliding window
SLIDING_WINDOW = "attention.sliding_window"
DIMENSIONS = "rope.dimension_count"  # rotated values per head
HEAD_COUNT = "attention.head_count"
DIMENSIONS_LOCAL = "rope.dimension_count_swa"
SCALING_TYPE = "rope.scaling.type"
SCALING_FACTOR = "rope.scaling.factor"
OLD_FACTOR = "rope.scale_linear"  # the first name of `SCALING_FACTOR`
TRAINED_LENGTH = "rope.scaling.original_context_length"
# By which llama.cpp multiplies cosines and sines: those of yarn in addition to the attention factor
# that follows from their factor.
ATTENTION = "rope.scaling.attn_factor"
DEFAULT_BASE = 10_000.0
NO_SCALING = "none"
LONG_LISTS = "longrope"
# Tensors of factors that divide frequencies: of llama3 settings, and of longrope ones.
FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
MAX_LENGTH_STATED = 1 << 32  # llama.cpp reads lengths as 32 bits

NEXT_STEP = (
    "Pass the checkpoint of transformers that it was made from; a resized one can be converted "
    "again."
)
ROUTE = "Resize the checkpoint that it was made from, and convert that again."


def read_config(
    values: Mapping[str, Any], arrays: Collection[str], tensors: Collection[str], file: str
) -> dict[str, Any]:
    """Return the positions that a GGUF file states, as a config.

    Under the name of the architecture, it has the length, the number of rotated values, and rotary
    settings as in transformers 5.

    Args:
        values: Its metadata by key, without arrays.
        arrays: The keys of its arrays.
        tensors: The names of its tensors.
        file: Its name, for messages.

    Raises:
        CheckpointError: A key is missing or malformed.
        UnsupportedModelError: Its architecture is not known.
    """
    reader = _Reader(values, arrays, file)
    row = find_row(values, file)
    config: dict[str, Any] = {CONTEXT_LENGTH: reader.length(CONTEXT_LENGTH)}
    stated: dict[str, Any] = {row.name: config}
    if row.model_class:
        stated["architectures"] = [row.model_class]
    if row.positions == ROTARY:
        config["rope"] = {"dimension_count": reader.dimensions()}
        config[NEW] = _settings(reader, row)
        config[ATTENTION] = reader.attention()
        config["factor_tensors"] = [name for name in FACTOR_TENSORS if _has(tensors, name)]
    elif POSITION_TABLE in tensors:
        config["embedding_length"] = reader.length("embedding_length")
    return stated


def _has(tensors: Collection[str], name: str) -> bool:
    """Whether a model has a tensor, or each of its layers its own."""
    return any(tensor == name or tensor.endswith(f".{name}") for tensor in tensors)


def find_row(values: Mapping[str, Any], file: str) -> GgufArchitecture:
    """Return what is known about the architecture of a GGUF file.

    Raises:
        CheckpointError: It states none.
        UnsupportedModelError: It is not known.
    """
    name = values.get(ARCHITECTURE)
    if not isinstance(name, str):
        message = f"{file}: {ARCHITECTURE} is {name!r:.100}, not the name of an architecture."
        raise CheckpointError(message, "Convert the model again.")
    if name in GGUF_ARCHITECTURES:
        return GGUF_ARCHITECTURES[name]
    similar = did_you_mean(name, GGUF_ARCHITECTURES)
    raise UnsupportedModelError(
        f"{file}: what llama.cpp computes from the positions of architecture {name!r:.100} is not "
        "known.",
        " ".join(text for text in (similar, NEXT_STEP) if text),
    )


class _Reader:
    """The metadata of one architecture."""

    def __init__(self, values: Mapping[str, Any], arrays: Collection[str], file: str) -> None:
        self.name = str(values.get(ARCHITECTURE))
        self._values = values
        self._arrays = arrays
        self._file = file

    def stated(self, key: str) -> Any:
        """Return the value of a key after the name of the architecture; None if it is missing.

        Raises:
            CheckpointError: It is an array. llama.cpp reads no array of these keys but of
                ``attention.head_count``, of which it then takes that of the first layer.
        """
        full_key = f"{self.name}.{key}"
        if full_key in self._arrays:
            message = f"{self._file}: {full_key} is an array, and not one value for all layers."
            hint = ROUTE
            if key == HEAD_COUNT:
                hint = f"Its {self.name}.{DIMENSIONS} is needed instead. {ROUTE}"
            raise CheckpointError(message, hint)
        return self._values.get(full_key)

    def length(self, key: str) -> int:
        """Return a positive integer.

        Raises:
            CheckpointError: It is missing, or anything else.
        """
        value = self.stated(key)
        if type(value) is not int or not 0 < value < MAX_LENGTH_STATED:
            self.refuse(key, "a positive integer of 32 bits")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a number of at least 0, in the fewest digits that are the same in 32 bits.

        Raises:
            CheckpointError: It is anything else.
        """
        value = self.stated(key)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf:
            self.refuse(key, "a number")
        return shortest(value)

    def attention(self) -> float:
        """Return the factor of all cosines and sines that the file states; 1 if it states none.

        llama.cpp applies it whatever the scaling is: `yarn_attn_factor` in llama-context.cpp.

        Raises:
            CheckpointError: It is malformed.
        """
        factor = self.number(ATTENTION, 1.0)
        if factor <= 0:
            self.refuse(ATTENTION, "a number above 0")
        return factor

    def dimensions(self) -> int:
        """Return the number of rotated values per head."""
        if self.stated(DIMENSIONS) is not None:
            return self.length(DIMENSIONS)
        if self.stated("attention.key_length") is not None:
            return self.length("attention.key_length")
        heads = self.length(HEAD_COUNT)
        return self.length("embedding_length") // heads

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Refuse a key that is missing or malformed.

        Raises:
            CheckpointError: Always.
        """
        full_key = f"{self.name}.{key}"
        value = self.stated(key)
        message = f"{self._file}: {full_key} must be {expected}, got {value!r:.100}."
        if value is None:
            message = f"{self._file}: {full_key} is missing."
        raise CheckpointError(message, "Convert the model again.")


def shortest(value: float) -> float:
    """Return a number as the format stores it: with 32 bits, in the fewest digits."""
    return float(str(np.float32(value)))


def _settings(reader: _Reader, row: GgufArchitecture) -> dict[str, Any]:
    """Return the rotary settings as ``rope_parameters``."""
    settings = _scaling(reader) | {THETA: reader.number(FREQ_BASE, DEFAULT_BASE)}
    if not settings[THETA] > 0:
        reader.refuse(FREQ_BASE, "a number above 0")
    if reader.stated(FREQ_BASE_LOCAL) is None:
        return settings
    local = {TYPE: "default", THETA: reader.number(FREQ_BASE_LOCAL, DEFAULT_BASE)}
    if reader.stated(DIMENSIONS_LOCAL) is not None:
        local[PARTIAL] = reader.length(DIMENSIONS_LOCAL) / reader.dimensions()
    return {FULL_LAYERS: settings, SLIDING_LAYERS: local}


def _scaling(reader: _Reader) -> dict[str, Any]:
    """Return what the file states about scaling.

    Without a type, llama.cpp scales linearly if there is a factor.
    """
    kind = reader.stated(SCALING_TYPE)
    if kind is None:
        kind = LINEAR_METHOD
    factor = reader.number(SCALING_FACTOR, reader.number(OLD_FACTOR, 0.0))
    if kind not in (NO_SCALING, LINEAR_METHOD, YARN_METHOD, LONG_LISTS):
        reader.refuse(SCALING_TYPE, "none, linear, yarn or longrope")
    trained: dict[str, Any] = {}
    if reader.stated(TRAINED_LENGTH) is not None:
        trained[TRAINED] = reader.length(TRAINED_LENGTH)
    if kind in (NO_SCALING, LONG_LISTS) or factor in (0, 1):
        return {TYPE: "default"}
    if factor < 1:
        reader.refuse(SCALING_FACTOR, "a number of at least 1")
    if kind == LINEAR_METHOD:
        return {TYPE: LINEAR_METHOD, FACTOR: factor, **trained}
    attention: dict[str, Any] = {}
    scale = reader.attention()
    if scale != 1:
        attention[ATTENTION_FACTOR] = scale * derived_attention(factor)
    length = {TRAINED: reader.length(CONTEXT_LENGTH)}
    return {TYPE: YARN_METHOD, FACTOR: factor, **length, **trained, **attention}


def derived_attention(factor: float) -> float:
    """Return the attention factor of yarn settings that follows from their factor."""
    return 0.1 * math.log(factor) + 1.0
