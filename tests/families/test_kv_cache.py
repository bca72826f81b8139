"""The key-value cache that a config means is that of a model with this config in transformers.

`make test` builds a few types of each kind, and `make test-slow` all types that generate.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend.families.cache_facts import CACHE_FACTS
from ctxextend.families.kv_cache import CachedLayers, find_cached_layers
from ctxextend.families.lookup import find_architecture
from ctxextend.plan.cache_cost import generating
from tests.helpers import kv_caches

REPRESENTATIVE = {
    "bart",
    "bloom",
    "deepseek_v3",
    "falcon",
    "gemma3",
    "gemma4_text",
    "gpt2",
    "gpt_bigcode",
    "lfm2",
    "llama",
    "mistral",
    "qwen2",
    "t5",
}
PARAMETERS = [
    pytest.param(name, marks=() if name in REPRESENTATIVE else pytest.mark.slow)
    for name in kv_caches.TYPES
]


def layers_of(content: dict[str, Any]) -> tuple[CachedLayers, ...]:
    """Return the layers with a cache by the config of a model."""
    architecture = find_architecture(content)
    locations = architecture.locations
    return find_cached_layers(architecture, locations[generating(locations)])


def values_of(layers: Sequence[CachedLayers], tokens: int) -> int:
    return sum(group.values(tokens) for group in layers)


@pytest.mark.parametrize("model_type", PARAMETERS)
def test_find_cached_layers_counts_what_transformers_caches(
    model_type: str, record_property: Callable[[str, object], None]
) -> None:
    runs = 0
    compared = 0
    is_known = False
    for content in kv_caches.contents(model_type):
        is_known = bool(layers_of(content))
        for variant, edited in kv_caches.variants(content):
            counts = kv_caches.measured(model_type, edited)
            if counts is None:
                continue
            runs += 1
            layers = layers_of(edited)
            if layers:
                assert [values_of(layers, tokens) for tokens in kv_caches.LENGTHS] == counts, (
                    variant
                )
                compared += 1
        if runs:
            break
    assert compared or not is_known, (
        f"no small {model_type} model can be run: remove it from families/cache_facts.py"
    )
    outcome = "without facts"
    if compared:
        outcome = "as transformers caches them"
    record_property("key-value caches", (outcome, 1))


@pytest.mark.parametrize("model_type", PARAMETERS)
def test_find_cached_layers_reads_defaults_as_transformers_does(model_type: str) -> None:
    for content, saved in kv_caches.with_defaults(model_type):
        layers = layers_of(content)
        if layers:
            assert layers == layers_of(saved), content


@pytest.mark.parametrize(
    "model_type", [name for name, facts in CACHE_FACTS.items() if facts.defaults]
)
def test_cache_facts_state_defaults_of_transformers(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type]()
    for key, value in CACHE_FACTS[model_type].defaults.items():
        assert getattr(config, key) == value


def test_find_cached_layers_says_nothing_of_unknown_shapes() -> None:
    llama = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": 64,
    }
    falcon = llama | {"model_type": "falcon", "multi_query": True}
    assert layers_of(llama)
    assert layers_of(falcon)
    unclear = [
        llama | {"num_key_value_heads": "4"},
        llama | {"num_hidden_layers": 0},
        llama | {"layer_types": ["full_attention"]},
        llama | {"layer_types": ["full_attention", "other"]},
        llama | {"layer_types": ["full_attention", "sliding_attention"]},
        llama | {"sliding_window": 8},
        llama | {"model_type": "bert"},
        falcon | {"new_decoder_architecture": True},
        falcon | {"multi_query": None},
    ]
    for content in unclear:
        assert not layers_of(content), content
