"""What a context length costs: the bytes of the key-value cache of one sequence."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ctxextend.checkpoints.config_file import DTYPE_KEYS
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.checkpoints.safetensors_file import BITS, TORCH_DTYPES
from ctxextend.errors import counted, size_text
from ctxextend.families.kv_cache import CachedLayers, find_cached_layers
from ctxextend.families.lookup import Architecture, TableLocation, nested
from ctxextend.json_output import fields_in_json

DECODER = "decoder"
# Bits per value of the dtypes that a cache can have, as torch spells them.
CACHE_BITS = {name: BITS[stored] for stored, name in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class KvCache:
    """The key-value cache of a model for one sequence: its layers, and the dtype of its values."""

    dtype: str  # that of the weights or, if they are quantised, of the config, as torch spells it
    part: str  # ``decoder`` of encoder-decoder models, else empty
    layers: tuple[CachedLayers, ...]

    def size(self, tokens: int) -> int:
        """Return the size of the cache of a sequence, in bytes."""
        values = sum(layers.values(tokens) for layers in self.layers)
        return values * CACHE_BITS[self.dtype] // 8


@dataclass(frozen=True)
class CacheSize:
    """The key-value cache of one sequence of some tokens."""

    cache: KvCache = field(metadata=fields_in_json)
    tokens: int

    json_properties: ClassVar = ("bytes",)

    @property
    def bytes(self) -> int:
        """Its size in bytes."""
        return self.cache.size(self.tokens)


@dataclass(frozen=True)
class CacheCost:
    """The key-value cache of one sequence of the present length, and of one of the new length."""

    cache: KvCache = field(metadata=fields_in_json)
    tokens_before: int
    tokens_after: int

    json_properties: ClassVar = ("bytes_before", "bytes_after")

    @property
    def bytes_before(self) -> int:
        """Its size at the present length, in bytes."""
        return self.cache.size(self.tokens_before)

    @property
    def bytes_after(self) -> int:
        """Its size at the new length, in bytes."""
        return self.cache.size(self.tokens_after)


def find_kv_cache(
    checkpoint: Checkpoint, architecture: Architecture, location: TableLocation
) -> KvCache | None:
    """Return the key-value cache of a model, of its decoder if it has an encoder too.

    None if it has no cache, or if it is not known. Of a GGUF file, it is not: llama.cpp chooses
    the dtype of the cache, whatever that of the weights is
    (https://github.com/ggml-org/llama.cpp/issues/10373).

    Args:
        checkpoint: The files of the model.
        architecture: The whole model.
        location: The positions of the part that generates.
    """
    if gguf_of(checkpoint) is not None or checkpoint.adapter_of is not None:
        return None
    layers = find_cached_layers(architecture, location)
    dtype = _cache_dtype(checkpoint, location)
    if not layers or dtype is None:
        return None
    part = DECODER if checkpoint.config.get("is_encoder_decoder") is True else ""
    return KvCache(dtype=dtype, part=part, layers=layers)


def generating(locations: Sequence[TableLocation]) -> int:
    """Return the index of the positions of the part that generates: the decoder's, or the first."""
    for index, location in enumerate(locations):
        if location.part.endswith(DECODER):
            return index
    return 0


def _cache_dtype(checkpoint: Checkpoint, location: TableLocation) -> str | None:
    """Return the dtype in which a checkpoint's keys and values are computed; None if unknown."""
    is_quantised = bool(checkpoint.config.get("quantization_config"))
    main = _main_dtype(checkpoint)
    if main in TORCH_DTYPES and not is_quantised:
        return TORCH_DTYPES[main]
    return _stated_dtype(checkpoint.config, location)


def _main_dtype(checkpoint: Checkpoint) -> str | None:
    """Return the dtype of most parameters as safetensors spells it; None without any tensor."""
    counts = Counter[str]()
    for entry in checkpoint.weights.entries.values():
        counts[entry.dtype] += math.prod(entry.shape)
    return max(counts, key=counts.__getitem__, default=None)


def _stated_dtype(config: Mapping[str, Any], location: TableLocation) -> str | None:
    """Return the dtype that a config states, of a language model inside it first."""
    for path in (location.path, ()):
        for key in DTYPE_KEYS:
            stated = nested(config, (*path, key))
            if isinstance(stated, str):
                return stated if stated in TORCH_DTYPES.values() else None
    return None


# In words


def describe_cost(cost: CacheCost) -> str:
    """Say how large the cache is before and after, in which dtype."""
    size = size_text(cost.bytes_after)
    if cost.bytes_before != cost.bytes_after:
        size = f"{size_text(cost.bytes_before)} -> {size}"
    return f"{size} for one sequence in {cost.cache.dtype}"


def describe_layers(cache: KvCache) -> str:
    """Say what a cache consists of: the shapes of its layers."""
    return " + ".join(_describe_group(cache, layers) for layers in cache.layers)


def _describe_group(cache: KvCache, layers: CachedLayers) -> str:
    """Return the shape of the caches of a group of layers."""
    noun = f"{cache.part} layer" if cache.part else "layer"
    size = f"{counted(layers.kv_heads, 'KV head')} x {layers.key_size}"
    if layers.is_latent:
        size = f"{layers.key_size + layers.value_size} latent values"
    text = f"{counted(layers.count, noun)} x {size}"
    if layers.max_tokens is not None:
        text += f", at most {counted(layers.max_tokens, 'token')}"
    return text
