"""Rotary settings in both dialects: readers of only one get the same, or it is not written."""

import copy
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from ctxextend import plan_resize
from ctxextend.families.known_types import FAMILIES
from ctxextend.positions.rotary_lengths import layer_lengths
from ctxextend.families.lookup import find_architecture
from ctxextend.positions.rotary_settings import read_rope, rotary_dim, rotary_facts
from ctxextend.positions.positions import Changes
from ctxextend.positions.rotary_dialects import rope_changes
from ctxextend.positions.rotary_dialects import (
    both_dialects,
    has_settings,
    old_keys,
    stated_dialects,
    with_other_dialect,
)
from ctxextend.positions.positions import with_values
from ctxextend.positions.positions import Keys, Positions, nested
from ctxextend.tables.method_facts import LIMITS
from ctxextend.tables.rope_types import NEW, OLD
from ctxextend.tables.rotary_methods import RopeLengths, resize_rope
from tests.families.test_rope_settings import NAMES, load, loaded_settings, locate, read, scaled
from tests.helpers import model_types, rules

Config = dict[str, Any]
BOTH = (NEW, OLD)
TRAINED = "original_max_position_embeddings"
# Keys without which a type has no rotary positions, or no size of a head.
NEEDED: Mapping[str, Config] = {
    "falcon": {"alibi": False},
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "zamba2": {"use_mem_rope": True, "attention_head_dim": 64},
}
# Types with rotary positions that are not those of a part.
OWN_TYPES = sorted(
    name
    for name, family in FAMILIES.items()
    if any(table.rope and table.rope.methods for table in family.tables)
)
# Of these, configs that transformers builds; the others are parts without a class.
BUILT_TYPES = {*OWN_TYPES} & {*model_types.TYPES} - model_types.NO_CONFIG

# What ``rope_scaling`` and the keys next to it cannot state, by method.
#
# Classes of these read no ``rope_scaling``, and have no keys next to it for each type of layers.
ONLY_NEW = {
    "cohere_compass_text",
    "dory",
    "embedding_gemma2_text",
    "laguna",
    "mellum",
    "mimo_v2_flash",
    "neomme",
    "step3p5",
    "ultrabert",
    "zaya",
}
SPACED = {"diffusion_gemma_text", "gemma4_text", "gemma4_unified_text", "lfm3"}
# They would scale local layers too, or read no ``rope_scaling``, but keys next to it.
ONLY_UNSCALED = {"cohere2_moe", "dots3_note_text", "modernbert", "modernbert-decoder"}
UNSTATED = {
    # The ``rope_scaling`` of DeepSeek-V4 gives ``yarn`` settings attention_factor 1.
    "yarn": ONLY_NEW | ONLY_UNSCALED | {"deepseek_v4"},
    **dict.fromkeys(("linear", "dynamic"), ONLY_NEW | ONLY_UNSCALED),
    # These do not apply `switch`.
    "switch": (ONLY_NEW | ONLY_UNSCALED) - {"dots3_note_text", "embedding_gemma2_text"},
    # In transformers 4, local layers of OLMo 3 have the base of the others.
    "theta": ONLY_NEW | {"olmo3"},
    "proportional": SPACED,
    LIMITS: ONLY_NEW | SPACED,
}


def methods_of(location: Positions) -> list[str]:
    """Return the methods that apply to the settings of a config."""
    facts = rotary_facts(location)
    kind = read_rope(location)[0].parameters["rope_type"]
    methods = [*facts.methods, LIMITS]
    if rotary_dim(location, read_rope(location)[0].parameters) % 2:
        methods = [name for name in methods if name not in ("yarn", "switch")]
    if kind == "default":
        return methods
    return [kind, LIMITS]


def resized(location: Positions, method: str) -> Positions:
    """Return a location whose settings serve four times the length, in both dialects."""
    main = read_rope(location)[0]
    lengths = layer_lengths(location, main)
    after, _ = resize_rope(
        main.parameters,
        RopeLengths(lengths.first_trained, lengths.served, 4 * lengths.served),
        rotary_dim(location, main.parameters),
        name=method,
        methods=rotary_facts(location).methods,
    )
    changes = rope_changes(location, main, after)
    return with_values(location, with_other_dialect(location, changes))


def in_new_dialect(location: Positions) -> Positions:
    """Return a location whose config states its settings as ``rope_parameters``."""
    settings = {item.layer_type: dict(item.parameters) for item in read_rope(location)}
    return with_values(location, {(*location.path, NEW): settings.get("", settings)})


@pytest.mark.parametrize("source", ["defaults", "new"])
def test_only_known_types_cannot_state_settings_in_the_old_dialect(source: str) -> None:
    found = dict[str, set[str]]()
    for name in OWN_TYPES:
        config = {"model_type": name, **NEEDED.get(name, {})}
        location = locate(config)
        if source == "new":
            location = in_new_dialect(location)
        for method in methods_of(location):
            dialects = stated_dialects(resized(location, method))
            assert dialects in (BOTH, (NEW,))
            if dialects != BOTH:
                found.setdefault(method, set()).add(name)
    assert found == UNSTATED


def without(config: Config, paths: list[Keys]) -> Config:
    """Return a config without the values at some paths."""
    config = copy.deepcopy(config)
    for path in paths:
        parent = nested(config, path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
    return config


def only(location: Positions, config: Config, dialect: str) -> Config:
    """Return a config with the settings of only one dialect."""
    other_keys = [NEW]
    if dialect == NEW:
        other_keys = old_keys(location)
    return without(config, [path for key in other_keys for path in location.paths_of(key)])


@pytest.mark.parametrize("model_type", model_types.parameters(BUILT_TYPES))
def test_transformers_loads_the_same_settings_from_only_one_dialect(
    model_type: str, tmp_path: Path
) -> None:
    content = rules.save(rules.make_config(model_type), tmp_path)
    for method in methods_of(find_architecture(content).locations[0]):
        planned = plan_resize(tmp_path, rules.NEW, method).plan
        config = rules.edited(content, planned.edits)
        (table,) = planned.tables
        loaded = settings_of(table.location, config)
        for dialect in table.rope_dialects:
            one = only(table.location, config, dialect)
            assert one != config or table.rope_dialects != BOTH
            assert settings_of(table.location, one) == loaded, (method, dialect)


def settings_of(location: Positions, config: Config) -> Config:
    """Return the rotary settings that transformers loads, without the name of old readers."""
    part = reduce(getattr, location.path, rules.load_config(config))
    settings = part.rope_parameters
    if all(not isinstance(value, dict) for value in settings.values()):
        settings = {"": settings}
    found = Config()
    for name, values in settings.items():
        stated = {"partial_rotary_factor": 1.0, **values}
        found[name] = {
            key: value for key, value in stated.items() if key != "type" and value is not None
        }
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["scaled", "theta", "same"])
def test_each_dialect_of_a_published_config_loads_without_the_other(name: str, method: str) -> None:
    config = read(name)
    location = locate(config)
    first, *_ = read_rope(location)
    after = dict(first.parameters)
    if method == "scaled":
        after = scaled(after, location.value("max_position_embeddings"))
    if method == "theta":
        after["rope_theta"] = 123_456.0
    changes = rope_changes(location, first, after)
    planned = with_values(location, with_other_dialect(location, changes))
    new: Config = copy.deepcopy(dict(planned.config))

    expected: tuple[str, ...] = BOTH
    if name == "modernbert" and method == "scaled":
        expected = (NEW,)
    assert stated_dialects(planned) == expected
    assert with_other_dialect(planned, Changes()) == {}
    loaded = loaded_settings(new)
    assert loaded_settings(with_dialect_of_file(location, changes)) == loaded
    for dialect in expected:
        assert loaded_settings(only(location, new, dialect)) == loaded


def with_dialect_of_file(location: Positions, changes: Changes) -> Config:
    """Return a config with changes, in the dialect of its file."""
    return copy.deepcopy(dict(with_values(location, changes).config))


LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, TRAINED: 2048}
DEFAULT = {"rope_type": "default", "rope_theta": 10_000.0}
LISTS = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10_000.0, TRAINED: 4096, **LISTS}
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 32}


@pytest.mark.parametrize(
    ("model_type", "settings", "added"),
    [
        (
            "llama",
            YARN,
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    TRAINED: 2048,
                    "type": "yarn",
                    "rope_theta": 10_000.0,
                },
                "rope_theta": 10_000.0,
            },
        ),
        ("llama", DEFAULT, {"rope_theta": 10_000.0}),
        (
            "gpt_neox",
            {**DEFAULT, "partial_rotary_factor": 1.0},
            {"rotary_emb_base": 10_000.0, "rotary_pct": 1.0},
        ),
        (
            "phi",
            {**LINEAR, "partial_rotary_factor": 0.5},
            {
                "rope_scaling": {**LINEAR, "type": "linear"},
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
            },
        ),
        # Transformers 4.57 refuses other keys, and types than these two.
        (
            "olmo",
            LINEAR,
            {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 10_000.0},
        ),
        (
            "olmo2",
            YARN,
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    TRAINED: 2048,
                    "type": "yarn",
                    "rope_theta": 10_000.0,
                },
                "rope_theta": 10_000.0,
            },
        ),
        (
            "phi3",
            LONGROPE,
            {
                "rope_scaling": {"type": "longrope", **LISTS},
                "rope_theta": 10_000.0,
                TRAINED: 4096,
            },
        ),
        # Transformers 4.57 reads ``rope_scaling`` without a check.
        (
            "mllama_text_model",
            DEFAULT,
            {
                "rope_scaling": {**DEFAULT, "type": "default"},
                "rope_theta": 10_000.0,
            },
        ),
        (
            "qwen2_vl_text",
            {**DEFAULT, "mrope_section": [4, 6, 6]},
            {
                "rope_scaling": {
                    "rope_type": "default",
                    "mrope_section": [4, 6, 6],
                    "type": "mrope",
                    "rope_theta": 10_000.0,
                },
                "rope_theta": 10_000.0,
            },
        ),
        (
            "hunyuan_v1_dense",
            {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 1.0, "alpha": 50.0},
            {
                "rope_scaling": {
                    "rope_type": "dynamic",
                    "factor": 1.0,
                    "alpha": 50.0,
                    "type": "dynamic",
                    "rope_theta": 10_000.0,
                },
                "rope_theta": 10_000.0,
            },
        ),
    ],
)
def test_both_dialects_adds_what_transformers_4_demands(
    model_type: str, settings: Config, added: Config
) -> None:
    config: Config = {"model_type": model_type, "max_position_embeddings": 8192, NEW: settings}
    if model_type != "phi3":
        config |= SIZES
    changes = both_dialects([locate(config)])
    assert {key: value for (key,), value in changes.items()} == added
    both = {**config, **added}
    assert both_dialects([locate(both)]) == {}
    old_only = {key: value for key, value in both.items() if key != NEW}
    assert loaded_settings(old_only) == loaded_settings(both) == loaded_settings(config)
    (new_half,) = both_dialects([locate(old_only)]).values()
    assert new_half == settings


def test_both_dialects_states_longrope_settings_of_others_with_the_first_trained_length() -> None:
    settings = {**LONGROPE, "factor": 2.0, "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    config = {"model_type": "llama", **SIZES, "max_position_embeddings": 8192, NEW: settings}
    changes = both_dialects([locate(config)])
    assert changes[(TRAINED,)] == 4096
    assert changes[(OLD,)][TRAINED] == 4096


def test_resize_writes_only_what_transformers_4_accepts_in_a_file_of_the_old_dialect() -> None:
    config = {"model_type": "olmo", **SIZES, "max_position_embeddings": 2048, "rope_theta": 1e4}
    location = locate(config)
    (main,) = read_rope(location)
    changes = rope_changes(location, main, {**main.parameters, **LINEAR})
    assert changes[(OLD,)].keys() == {"rope_type", "type", "factor"}
    both = with_other_dialect(location, changes)
    assert both == {(OLD,): {"type": "linear", "factor": 4.0}, (NEW,): LINEAR}

    scaled_location = with_values(location, both)
    (main,) = read_rope(scaled_location)
    changes = rope_changes(scaled_location, main, {**main.parameters, "factor": 8.0})
    twice = with_other_dialect(scaled_location, changes)
    assert twice == {(OLD,): {"type": "linear", "factor": 8.0}, (NEW, "factor"): 8.0}


def test_a_new_base_of_olmo3_leaves_the_old_dialect_out() -> None:
    config = {
        "model_type": "olmo3",
        **SIZES,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_hidden_layers": 2,
        "rope_theta": 500_000.0,
    }
    location = locate(config)
    main = read_rope(location)[0]
    changes = rope_changes(location, main, {**main.parameters, "rope_theta": 1e6})
    assert changes == {("rope_theta",): 1e6}
    planned = with_values(location, with_other_dialect(location, changes))
    assert stated_dialects(planned) == (NEW,)
    assert planned.stated("rope_theta") is None
    loaded = load(dict(planned.config)).rope_parameters
    assert loaded["full_attention"]["rope_theta"] == 1e6
    assert loaded["sliding_attention"]["rope_theta"] == 500_000.0


def test_local_layers_with_other_settings_leave_the_old_dialect_out() -> None:
    scaled_local = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    config = {
        "model_type": "gemma3_text",
        NEW: {
            "full_attention": {**LINEAR, "rope_theta": 1e6},
            "sliding_attention": scaled_local,
        },
    }
    location = locate(config)
    assert both_dialects([location]) == {}
    assert stated_dialects(location) == (NEW,)


def test_yarn_settings_of_deepseek_v4_have_attention_factor_1_in_the_old_dialect() -> None:
    scaling = {"type": "yarn", "factor": 4.0, TRAINED: 2048}
    config = {"model_type": "deepseek_v4", "num_hidden_layers": 2, "rope_scaling": scaling}
    location = locate(config)
    main = read_rope(location)[0]
    assert main.parameters["attention_factor"] == 1.0
    both = with_values(location, with_other_dialect(location, Changes()))
    assert stated_dialects(both) == BOTH
    for dialect in BOTH:
        loaded = load(only(location, dict(both.config), dialect)).rope_parameters
        assert loaded["compress"]["attention_factor"] == 1.0
        assert loaded["compress"]["factor"] == 4.0

    without_factor = dict(main.parameters)
    del without_factor["attention_factor"]
    changes = rope_changes(location, main, without_factor)
    assert changes[(OLD,)] is None


def test_both_dialects_leaves_models_without_such_settings_as_they_are() -> None:
    for config in ({"model_type": "gpt2"}, {"model_type": "gptj"}, {"model_type": "bloom"}):
        locations = find_architecture(config).locations
        assert not any(has_settings(location) for location in locations)
        assert both_dialects(locations) == {}
