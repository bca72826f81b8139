"""The key-value caches of small models of any type that generates."""

import copy
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version
from transformers.models.auto import modeling_auto

from tests.helpers import rules, tiny, zoo

# The name of caches in arguments and outputs of models.
CACHE = "cache" if Version(version("transformers")) >= Version("5.24") else "past_key_values"
MAPPINGS = ("SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
WINDOW = 8  # tokens of a sliding window
LENGTHS = (5, 12, 40)  # below it, and above
LAYERS = 8  # of models whose config does not list the types of layers
MAX_PARAMETERS = 40_000_000  # of models that are run
# Small values of other keys than `tiny.SMALL` has, where they fit.
SMALL = {
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "moe_intermediate_size": 16,
    "vocab_size_per_layer_input": 48,
    "hidden_size_per_layer_input": 16,
}
# Values without which the default config of a type does not run.
NEEDED: Mapping[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
}
# Layers of which the last two read the caches of the others.
SHARED_LAYERS = {
    "num_hidden_layers": 4,
    "layer_types": 2 * ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 2,
}
GROUPED_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
# Of layers without a window, as files of Gemma 4 state them.
GLOBAL_HEADS = {
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
}
SIZES = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "head_dim",
    "sliding_window",
)

Content = dict[str, Any]  # of config.json


def _class_names(mapping: str) -> Mapping[str, Any]:
    """Return the class names by model type in one of transformers' tables."""
    names: Mapping[str, Any] = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")
    return names


TYPES = sorted({name for mapping in MAPPINGS for name in _class_names(mapping)})


def contents(model_type: str) -> Iterator[Content]:
    """Yield the config.json of small models of a type, the one that tells most first.

    There is none of types without positions to resize, or without a valid default config.
    """
    try:
        base = _content(rules.make_config(model_type)) | NEEDED.get(model_type, {})
    except Exception:
        return
    small = _each(base, lambda part: _shrink(_group(part)))
    shared = _each(small, _share)
    if shared != small:
        yield shared
    yield small
    yield _each(base, _group)
    yield _each(base, _shrink)
    yield base


def _content(config: Any) -> Content:
    """Return the config.json of a config."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        text = Path(folder, "config.json").read_text()
    content: Content = json.loads(text, object_hook=rules.read_infinity)
    return content


def _each(content: Content, edit: Callable[[Content], Content]) -> Content:
    """Return a config with an edit of it and of all configs in it."""
    edited = dict[str, Any]()
    for key, value in content.items():
        edited[key] = _each(value, edit) if isinstance(value, dict) else value
    return edit(edited)


def _group(part: Content) -> Content:
    """Return a config with fewer key-value heads than query heads, if it states both."""
    if all(isinstance(part.get(key), int) for key in GROUPED_HEADS):
        return part | GROUPED_HEADS
    return part


def _shrink(part: Content) -> Content:
    """Return a config with few experts and other small sizes."""
    few = dict[str, Any]()
    for key, count in SMALL.items():
        if isinstance(part.get(key), int) and part[key] > count:
            few[key] = count
    return part | few


def _share(part: Content) -> Content:
    """Return a config with layers that share caches, if the model type has such layers."""
    count = part.get("num_hidden_layers")
    if "num_kv_shared_layers" not in part:
        return part
    shared = _without_lists(part, count) | SHARED_LAYERS
    if "per_layer_config" in part:
        shared |= GLOBAL_HEADS
    return shared


def _without_lists(part: Content, count: Any) -> Content:
    """Return a config without lists of a value per layer, and without other such values."""
    kept = dict[str, Any]()
    for key, value in part.items():
        is_list = isinstance(value, list) and len(value) == count
        if not is_list and key != "per_layer_config":
            kept[key] = value
    return kept


# Other files of the same model type


def _with_window(part: Content) -> Content:
    """Return a config with a short window, of the layers that have one."""
    edited = dict(part)
    for key in ("sliding_window", "attention_chunk_size"):
        if key in part:
            edited[key] = WINDOW
    return edited


def _unlisted(part: Content, **changes: Any) -> Content:
    """Return a config that does not list the types of its layers, as those of transformers 4."""
    count = part.get("num_hidden_layers")
    if not isinstance(count, int) or not {"layer_types", "sliding_window"} & part.keys():
        return part
    edited = _without_lists(_with_window(part), count) | {"num_hidden_layers": LAYERS}
    edited.pop("layer_types", None)
    if "use_sliding_window" in part:
        edited |= {"use_sliding_window": True, "max_window_layers": 3}
    return edited | changes


def _without_sliding(part: Content) -> Content:
    """Return a config that does not list the types of its layers, and turns windows off."""
    if "use_sliding_window" not in part:
        return part
    return _unlisted(part, use_sliding_window=False)


def _without(key: str) -> Callable[[Content], Content]:
    """Return an edit that removes a key."""
    return lambda part: {name: value for name, value in part.items() if name != key}


def _with_new(key: str, value: int) -> Callable[[Content], Content]:
    """Return an edit that adds a key to language models that do not state it."""

    def add(part: Content) -> Content:
        if part.get(key) is not None or "vocab_size" not in part:
            return part
        return part | {key: value}

    return add


def _replacing(key: str, value: Any) -> Callable[[Content], Content]:
    """Return an edit that changes a key where it is stated."""
    return lambda part: part | {key: value} if key in part else part


VARIANTS: Mapping[str, Callable[[Content], Content]] = {
    "as transformers saves it": dict,
    "with a window": _with_window,
    "without types of layers": _unlisted,
    "with a pattern": lambda part: _unlisted(part, sliding_window_pattern=3),
    "without sliding": _without_sliding,
    "without a window": _without("sliding_window"),
    "without the size of heads": _without("head_dim"),
    "without key-value heads": _without("num_key_value_heads"),
    "with a size of heads": _with_new("head_dim", 24),
    "with key-value heads": _with_new("num_key_value_heads", 1),
    "with one head for all queries": _replacing("multi_query", True),
    "with a head for each query": _replacing("multi_query", False),
    "with attention to both sides": _replacing("use_bidirectional_attention", True),
    "with attention to both sides in images": _replacing("use_bidirectional_attention", "vision"),
    "with separate values": _replacing("attention_k_eq_v", False),
}


def variants(content: Content) -> Iterator[tuple[str, Content]]:
    """Yield other files of the model type, each with what is different."""
    seen = list[Content]()
    for name, edit in VARIANTS.items():
        edited = _each(content, edit)
        if edited not in seen:
            seen.append(edited)
            yield name, edited
    with suppress(Exception):
        saved = saved_again(content)
        if saved not in seen:
            yield "saved again", saved


def with_defaults(model_type: str) -> Iterator[tuple[Content, Content]]:
    """Yield valid configs that do not state some sizes, and how transformers saves them again.

    One states only the type of the language model in it, and the others all but one size.
    """
    for content in contents(model_type):
        edited = [_without(size)(content) for size in SIZES]
        for key, part in content.items():
            if isinstance(part, dict) and "vocab_size" in part:
                edited.append(content | {key: {"model_type": part["model_type"]}})
                edited += [content | {key: _without(size)(part)} for size in SIZES]
        for stated in edited:
            with suppress(Exception):
                yield stated, saved_again(stated)


def saved_again(content: Content) -> Content:
    """Return a config as transformers saves it after it has read it."""
    return _content(rules.load_config(content))


# Caches


def build(model_type: str, content: Content) -> Any:
    """Return a model of a config.json, of the first class that can be built; None if none can."""
    import transformers

    for mapping in MAPPINGS:
        names = _class_names(mapping).get(model_type, ())
        for name in (names,) if isinstance(names, str) else names:
            with suppress(Exception):
                config = rules.load_config(content)
                model_class = getattr(transformers, name)
                shapes = tiny.shapes(model_class, config)
                if sum(map(_size_of, shapes.values())) > MAX_PARAMETERS:
                    continue
                return model_class(copy.deepcopy(config)).train(False)
    return None


def _size_of(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def measured(model_type: str, content: Content) -> list[int] | None:
    """Return the numbers of values that a model of a config.json caches, by `LENGTHS`.

    None if it cannot be built, or has no cache.
    """
    model = build(model_type, content)
    if model is None:
        return None
    counts = list[int]()
    for tokens in LENGTHS:
        count = _cached_values(model, tokens)
        if count is None:
            return None
        counts.append(count)
    return counts


def _cached_values(model: Any, tokens: int) -> int | None:
    """Return the number of values in the cache after a text; None if the model has no cache.

    Of encoder-decoder models, it is the cache of the decoder's text. All tensors count but the
    states of layers that keep none of the tokens.
    """
    cache = _cache(model, tokens)
    if cache is None:
        return None
    cache = getattr(cache, "self_attention_cache", cache)
    count = 0
    for layer in cache.layers:
        for key in ("keys", "values", "indexer_keys"):
            values = getattr(layer, key, None)
            if isinstance(values, torch.Tensor):
                count += values.numel()
    return count


def _cache(model: Any, tokens: int) -> Any:
    """Return the cache of a model, or of a model inside it, after a text; None if it has none."""
    for path, names in zoo.text_readers(model):
        with suppress(Exception), torch.no_grad():
            inputs = {name: zoo.ARGUMENTS[name](model.config, tokens) for name in names}
            cache = model.get_submodule(path)(**inputs, use_cache=True).get(CACHE)
            if cache is not None:
                return cache
    return None
