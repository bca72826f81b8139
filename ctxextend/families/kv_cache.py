"""The shape of the key-value cache of a model, from its config.

It is that of the cache of transformers, for the model types of `CACHE_FACTS`: of others, nothing is
known. tests/families/test_kv_cache.py compares it with the caches of small models.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ctxextend.families.cache_facts import CACHE_FACTS, CONTAINERS, CacheFacts
from ctxextend.families.lookup import Architecture, TableLocation, nested, whole_number

# Values of ``layer_types``, with what the caches of such layers keep
# (https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/cache_utils.py,
# DYNAMIC_LAYER_TYPE_MAPPING): all tokens, those of a window, or no tokens, but perhaps a state.
FULL = "full_attention"
WINDOWED = "sliding_attention"
WINDOW_KEYS: Mapping[str, str] = {
    WINDOWED: "sliding_window",
    "chunked_attention": "attention_chunk_size",
}
WITHOUT_CACHE = ("conv", "linear_attention", "mlp", "moe")
HALVED_WINDOW = (True, "all")  # values of ``use_bidirectional_attention`` of Gemma 3 and 4

Config = Mapping[str, Any]


class LayerShape(NamedTuple):
    """The shape of the cache of one layer."""

    kv_heads: int  # 1 if the cache is a latent one
    key_size: int  # values per head and token; of a latent cache: of what it compresses
    value_size: int  # values per head and token; of a latent cache: of the rotary keys
    # The most tokens that it keeps; None: all. For a sliding window of 512 tokens, transformers
    # keeps 511 and adds the current one (`DynamicSlidingWindowLayer` in the file above).
    max_tokens: int | None
    is_latent: bool  # whether it keeps keys and values in compressed form


@dataclass(frozen=True)
class CachedLayers:
    """Layers of a model whose caches have the same shape, as `LayerShape` says."""

    count: int
    kv_heads: int
    key_size: int
    value_size: int
    max_tokens: int | None
    is_latent: bool

    def values(self, tokens: int) -> int:
        """Return the number of values in the caches of all these layers, for one sequence."""
        kept = tokens
        if self.max_tokens is not None:
            kept = min(tokens, self.max_tokens)
        return self.count * self.kv_heads * (self.key_size + self.value_size) * kept


def find_cached_layers(
    architecture: Architecture, location: TableLocation
) -> tuple[CachedLayers, ...]:
    """Return the layers of a model that cache keys and values, in groups of the same shape.

    Of encoder-decoder models, these are the decoder's layers. The keys and values of the encoder's
    output, which each of them caches too, do not count: they have the length of another text.

    Args:
        architecture: The whole model.
        location: The positions of the part that generates.

    Returns:
        Nothing if the model has no such layers, or if the config does not tell.
    """
    facts = CACHE_FACTS.get(location.family.model_type)
    is_inside = architecture.family.model_type != location.family.model_type
    if facts is None or (is_inside and architecture.family.model_type not in CONTAINERS):
        return ()
    config = location.config
    if location.path:
        config = nested(config, location.path)
    if not isinstance(config, Mapping):
        return ()
    return cached_layers(config, facts)


def cached_layers(config: Config, facts: CacheFacts) -> tuple[CachedLayers, ...]:
    """Return the layers that cache keys and values, by the config of a language model.

    Args:
        config: As in config.json.
        facts: The facts about its model type.

    Returns:
        Nothing if there are none, or if the config does not tell.
    """
    types = _layer_types(config, facts)
    if types is None or _has_other_rules(config, facts):
        return ()
    counts = Counter[LayerShape]()
    for layer, layer_type in enumerate(types):
        if layer_type in WITHOUT_CACHE:
            continue
        shape = _layer_shape(_config_of_layer(config, facts, layer, layer_type), facts, layer_type)
        if shape is None:
            return ()
        counts[shape] += 1
    return tuple(_groups(counts))


def _has_other_rules(config: Config, facts: CacheFacts) -> bool:
    """Whether the cache has another shape than the keys of sizes say."""
    if facts.windows != "none" and config.get("use_bidirectional_attention") in HALVED_WINDOW:
        return True
    # Of Falcon: transformers caches a copy of each key-value head for every query head, which no
    # other program has to do.
    return bool(config.get("new_decoder_architecture"))


def _groups(counts: Mapping[LayerShape, int]) -> Iterator[CachedLayers]:
    """Yield the layers of each shape."""
    for shape, count in counts.items():
        yield CachedLayers(
            count=count,
            kv_heads=shape.kv_heads,
            key_size=shape.key_size,
            value_size=shape.value_size,
            max_tokens=shape.max_tokens,
            is_latent=shape.is_latent,
        )


def _stated(config: Config, facts: CacheFacts, key: str) -> Any:
    """Return the value of a key, or transformers' default; None if neither is known."""
    for spelled in (key, facts.older_keys.get(key, key)):
        if spelled in config:
            return config[spelled]
    return facts.defaults.get(key)


def _size(config: Config, facts: CacheFacts, key: str) -> int | None:
    """Return the value of a key that is a size; None if it is not known."""
    size = whole_number(_stated(config, facts, key))
    if size is None or not 0 < size < 2**31:
        return None
    return size


# The types of layers


def _layer_types(config: Config, facts: CacheFacts) -> list[Any] | None:
    """Return the types of layers that have a separate cache; None if they are unknown."""
    count = _size(config, facts, facts.layers)
    if count is None or count > 2**16:
        return None
    types = config.get("layer_types")
    if types is None:
        types = _unlisted_types(config, facts, count)
    if not isinstance(types, list) or len(types) != count:
        return None
    if facts.has_global_heads and types[-1] != FULL:
        return None  # transformers changes the last type
    shared = config.get("num_kv_shared_layers")
    if not shared:
        return types
    if type(shared) is not int or not 0 < shared < count:
        return None
    return types[: count - shared]  # the last ones read the caches of these


def _unlisted_types(config: Config, facts: CacheFacts, count: int) -> list[str] | None:
    """Return the types of layers that a config does not list; None if they are unknown."""
    if facts.windows == "none":
        # transformers would keep only a window, although no layer of this model type has one.
        is_stray = any(config.get(key) is not None for key in WINDOW_KEYS.values())
        return None if is_stray else [FULL] * count
    if facts.windows == "listed if used":
        is_unused = config.get("use_sliding_window") is False
        return [FULL] * count if is_unused else None
    if facts.windows == "last layers":
        return _types_of_last_layers(config, count)
    if facts.windows == "all layers":
        return _types_of_all_layers(config, facts, count)
    if facts.windows == "but every n-th layer":
        return _types_by_period(config, facts, count)
    return None


def _types_of_all_layers(config: Config, facts: CacheFacts, count: int) -> list[str] | None:
    """Return the types of layers that all have a window, if there is any."""
    if "sliding_window" not in config and "sliding_window" not in facts.defaults:
        return None
    window = _stated(config, facts, "sliding_window")
    return [FULL if window is None else WINDOWED] * count


def _types_of_last_layers(config: Config, count: int) -> list[str] | None:
    """Return the types of layers of which the last ones have a window, if it is used."""
    if not config.get("use_sliding_window"):
        return [FULL] * count
    full = whole_number(config.get("max_window_layers"))
    if full is None or config.get("sliding_window") is None:
        return None
    return [FULL if layer < full else WINDOWED for layer in range(count)]


def _types_by_period(config: Config, facts: CacheFacts, count: int) -> list[str] | None:
    """Return the types of layers of which every n-th one sees all tokens."""
    period = facts.period
    if facts.period_key is not None and facts.period_key in config:
        stated = whole_number(config[facts.period_key])
        if stated is None or stated < 1:
            return None
        period = stated
    return [WINDOWED if (layer + 1) % period else FULL for layer in range(count)]


def _config_of_layer(config: Config, facts: CacheFacts, layer: int, layer_type: Any) -> Config:
    """Return the config of one layer: it states what is different there."""
    others = config.get("per_layer_config")
    if isinstance(others, Mapping):
        own = others.get(str(layer))
        return {**config, **own} if isinstance(own, Mapping) else config
    if not facts.has_global_heads or layer_type != FULL:
        return config
    own = {"head_dim": config.get("global_head_dim")}
    kv_heads = config.get("num_global_key_value_heads")
    if kv_heads is not None and config.get("attention_k_eq_v", True):
        own["num_key_value_heads"] = kv_heads
    return {**config, **own}


# The shape of a layer's cache


def _layer_shape(config: Config, facts: CacheFacts, layer_type: Any) -> LayerShape | None:
    """Return the shape of the cache of a layer; None if it is unknown."""
    sizes = _latent_sizes(config, facts) if facts.is_latent else _head_sizes(config, facts)
    if sizes is None:
        return None
    max_tokens = None
    if layer_type != FULL:
        key = WINDOW_KEYS.get(layer_type)
        window = None if key is None else _size(config, facts, key)
        if window is None or window < 2:
            return None
        max_tokens = window - 1
    kv_heads, key_size, value_size = sizes
    return LayerShape(
        kv_heads=kv_heads,
        key_size=key_size,
        value_size=value_size,
        max_tokens=max_tokens,
        is_latent=facts.is_latent,
    )


def _latent_sizes(config: Config, facts: CacheFacts) -> tuple[int, int, int] | None:
    """Return one head, and the sizes of compressed keys and values and of rotary keys.

    transformers 5.24 caches these, and expands them in each step
    (https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/models/deepseek_v3/modeling_deepseek_v3.py).
    """
    latent = _size(config, facts, "kv_lora_rank")
    rotary = _size(config, facts, "qk_rope_head_dim")
    if latent is None or rotary is None:
        return None
    return 1, latent, rotary


def _head_sizes(config: Config, facts: CacheFacts) -> tuple[int, int, int] | None:
    """Return the number of key-value heads, and the sizes of their keys and values."""
    kv_heads = _kv_heads(config, facts)
    size = _head_size(config, facts)
    if kv_heads is None or size is None:
        return None
    return kv_heads, size, size


def _kv_heads(config: Config, facts: CacheFacts) -> int | None:
    """Return the number of key-value heads; None if it is unknown."""
    if facts.multi_query_key is not None:
        is_multi_query = _stated(config, facts, facts.multi_query_key)
        if not isinstance(is_multi_query, bool):
            return None
        if is_multi_query:
            return 1
    if facts.kv_heads is None:
        return _size(config, facts, facts.heads)
    if _stated(config, facts, facts.kv_heads) is not None:
        return _size(config, facts, facts.kv_heads)
    if facts.kv_heads_may_lack:
        return _size(config, facts, facts.heads)
    return None


def _head_size(config: Config, facts: CacheFacts) -> int | None:
    """Return the number of values per head; None if it is unknown."""
    if facts.head_size is not None:
        if "head_dim" in config and facts.head_size != "head_dim":
            return None  # transformers reads both as one key
        if _stated(config, facts, facts.head_size) is not None:
            return _size(config, facts, facts.head_size)
        if not facts.head_size_may_lack:
            return None
    width = _size(config, facts, facts.width)
    heads = _size(config, facts, facts.heads)
    if width is None or heads is None:
        return None
    return width // heads
