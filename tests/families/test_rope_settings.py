"""Rotary settings of published configs: as transformers loads them, before and after changes."""

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend.errors import CheckpointError
from ctxextend.positions.rotary_lengths import position_lengths
from ctxextend.families.lookup import find_architecture
from ctxextend.positions.rotary_settings import RopeLayers, read_rope, rotary_dim
from ctxextend.positions.rotary_dialects import rope_changes
from ctxextend.positions.positions import Positions, nested
from ctxextend.tables.frequencies import frequencies
from tests.helpers.pico import read_json

Config = dict[str, Any]
FOLDER = Path(__file__).parent / "rope_configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
FULL = "full_attention"
SLIDING = "sliding_attention"


def read(name: str) -> Config:
    config: Config = read_json(FOLDER / f"{name}.json")
    return config


def locate(config: Config) -> Positions:
    return find_architecture(config).locations[0]


def load(config: Config) -> Any:
    """Return the text config that transformers reads from a config, which stays as it is."""
    config_class = CONFIG_MAPPING[config["model_type"]]
    loaded = config_class.from_dict(copy.deepcopy(config))
    return loaded.get_text_config()


def loaded_settings(config: Config) -> dict[str, Config]:
    """Return the settings by layer type that transformers has, without keys that change nothing."""
    loaded = load(config)
    loaded.standardize_rope_params()  # as the rotary modules do
    settings = loaded.rope_parameters
    first = next(iter(settings.values()))
    if not isinstance(first, dict):
        return {"": meaning(settings)}
    return {name: meaning(values) for name, values in settings.items()}


def meaning(settings: Config) -> Config:
    settings = {"partial_rotary_factor": 1.0, **settings}
    settings.pop("type", None)
    return {key: value for key, value in settings.items() if value is not None}


def changed(config: Config, changes: dict[tuple[str, ...], Any]) -> Config:
    """Return the config with values at these paths, whose objects are created."""
    config = copy.deepcopy(config)
    for path, value in changes.items():
        parent = config
        for key in path[:-1]:
            parent[key] = parent.get(key) or {}
            parent = parent[key]
        parent[path[-1]] = copy.deepcopy(value)
    return config


def settings_by_layer(layers: Iterable[RopeLayers]) -> dict[str, Config]:
    """Return the meaning of settings by layer type."""
    return {item.layer_type: meaning(dict(item.parameters)) for item in layers}


@pytest.mark.parametrize("name", NAMES)
def test_read_rope_finds_what_transformers_loads(name: str) -> None:
    layers = read_rope(locate(read(name)))
    found = settings_by_layer(layers)
    assert found == loaded_settings(read(name))
    for item in layers:
        assert item.is_local == (item.layer_type == SLIDING)


def scaled(settings: Config, max_len: int) -> Config:
    """Return settings for twice the length, of the same type or yarn."""
    if settings["rope_type"] == "default":
        return {
            **settings,
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": max_len,
        }
    if settings["rope_type"] == "longrope":
        return {**settings, "factor": 64.0}
    return {**settings, "factor": 2 * settings["factor"]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["scaled", "theta"])
def test_rope_changes_loads_as_intended(name: str, method: str) -> None:
    config = read(name)
    location = locate(config)
    first, *local = read_rope(location)
    max_len = location.value("max_position_embeddings")
    settings = dict(first.parameters)
    if method == "scaled":
        after = scaled(settings, max_len)
    else:
        after = {**settings, "rope_theta": 123456.0}

    changes = rope_changes(location, first, after)
    length_path = location.paths_of("max_position_embeddings")[0]
    new = changed(config, changes | {length_path: 2 * max_len})

    intended = settings_by_layer(local)
    intended[first.layer_type] = meaning(after)
    assert loaded_settings(new) == intended
    new_first, *new_local = read_rope(locate(new))
    assert new_first == RopeLayers(first.layer_type, after)
    assert new_local == local

    text = nested(config, location.path)
    new_text = nested(new, location.path)
    keys = text.keys() | new_text.keys()
    differing = {key for key in keys if text.get(key) != new_text.get(key)}
    settings_keys = {
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "rotary_emb_base",
        "global_rope_theta",
    }
    assert differing <= settings_keys | {"max_position_embeddings"}
    is_scaled_modernbert = name == "modernbert" and method == "scaled"
    uses_new = "rope_parameters" in config or is_scaled_modernbert
    assert ("rope_parameters" in new_text) == uses_new


LENGTHS_AND_DIMS = {  # of the layers with full attention
    "llama-2": (4096, 128),
    "llama-3.1": (131_072, 128),
    "qwen2.5": (32_768, 128),
    "qwen2.5-yarn": (131_072, 128),
    "phi-3-128k": (131_072, 96),
    "gemma-3": (131_072, 256),
    "modernbert": (8192, 64),
    "deepseek-v3": (163_840, 64),
    "qwen2-vl": (32_768, 128),
    "nomic-bert": (2048, 64),
    "gpt-neox": (2048, 16),
    "mistral": (32_768, 128),
}


def test_position_lengths_and_rotary_dim_are_those_of_published_models() -> None:
    found = {}
    for name in NAMES:
        location = locate(read(name))
        served = position_lengths(location).served
        settings = read_rope(location)[0].parameters
        found[name] = (served, rotary_dim(location, settings))
    assert found == LENGTHS_AND_DIMS


LLAMA3 = read("llama-3.1")["rope_scaling"]
PHI3 = read("phi-3-128k")["rope_scaling"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        (
            "llama-2",
            {"rope_scaling": "linear"},
            "rope_scaling must be an object of settings, got 'linear'",
        ),
        (
            "llama-2",
            {"rope_scaling": {"type": "linear"}},
            "factor of linear rotary positions must be a number from 1 to 1,",
        ),
        ("llama-2", {"rope_scaling": {"type": "linear", "factor": 0.5}}, "000,000, got 0.5"),
        (
            "llama-2",
            {"rope_scaling": {"type": "lineer", "factor": 4}},
            "unknown rope_type 'lineer'. Did you mean linear?",
        ),
        (
            "llama-2",
            {"rope_theta": [1e4]},
            "rope_theta of default rotary positions must be a number above 0",
        ),
        (
            "llama-2",
            {"rope_scaling": YARN, "rope_parameters": {**YARN, "factor": 2.0}},
            "config.json: rope_scaling states factor 4.0, which transformers follows; "
            "rope_parameters states 2.0.",
        ),
        (
            "llama-2",
            {
                "rope_scaling": YARN,
                "rope_theta": 5e5,
                "rope_parameters": {**YARN, "rope_theta": 1e6},
            },
            "rope_theta next to rope_scaling is 500000.0, which transformers follows; "
            "rope_parameters states 1000000.0.",
        ),
        (
            "llama-2",
            {"rope_scaling": YARN, "rope_parameters": {**YARN, "rope_theta": 1e6}},
            "rope_scaling has the default rope_theta 10000.0, which transformers follows; "
            "rope_parameters states 1000000.0.",
        ),
        (
            "llama-2",
            {
                "model_type": "gemma3_text",
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "rope_parameters": {FULL: {"rope_type": "linear", "factor": 4.0}},
            },
            "rope_scaling states factor 8.0, which transformers follows; "
            "rope_parameters.full_attention states 4.0.",
        ),
        (
            "llama-2",
            {"rope_scaling": {**YARN, "type": "linear"}},
            "rope_type is 'yarn', but type is 'linear'",
        ),
        (
            "llama-2",
            {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e6}},
            "rope_parameters states rope_theta 1000000.0, which transformers follows; rope_theta "
            "next to it is 500000.0.",
        ),
        (
            "llama-2",
            {"rope_parameters": {FULL: YARN}},
            "rope_parameters must be an object of settings, got",
        ),
        (
            "llama-3.1",
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": None}},
            "got None",
        ),
        (
            "phi-3-128k",
            {"rope_scaling": {**PHI3, "long_factor": [1.0] * 47}},
            "a list of 48 numbers above 0",
        ),
        (
            "nomic-bert",
            {"model_type": "mellum", "rope_scaling": YARN},
            "rope_scaling must be null: these models read only",
        ),
        (
            "modernbert",
            {"rope_parameters": YARN},
            "rope_parameters must be one object for each of full",
        ),
        (  # transformers uses it, and no default instead of it
            "phi-3-128k",
            {"original_max_position_embeddings": 0},
            "must be a number from 1 to 1,000,000,000,000, got 0.",
        ),
    ],
)
def test_read_rope_refuses_malformed_settings(name: str, changes: Config, problem: str) -> None:
    location = locate({**read(name), **changes})
    with pytest.raises(CheckpointError) as error:
        read_rope(location)
    assert problem in str(error.value)


def test_rope_changes_keeps_both_dialects_if_they_mean_the_same() -> None:
    old = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    config = {
        **read("llama-2"),
        "rope_scaling": old,
        "rope_theta": 1e4,
        "rope_parameters": {**YARN, "rope_theta": 1e4},
    }
    (layers,) = read_rope(locate(config))
    settings = {**layers.parameters, "factor": 8.0}
    changes = rope_changes(locate(config), layers, settings)

    assert changes == {
        ("rope_scaling", "factor"): 8.0,
        ("rope_scaling", "rope_type"): "yarn",
        ("rope_parameters", "factor"): 8.0,
    }


def of(key: str, values: Config) -> dict[tuple[str, ...], Any]:
    return {(key, name): value for name, value in values.items()}


@pytest.mark.parametrize(
    ("name", "stated", "after", "expected"),
    [
        ("llama-2", {}, YARN, {("rope_scaling",): {**YARN, "type": "yarn"}}),
        (
            "llama-2",
            {"transformers_version": None},
            YARN,
            {("rope_scaling",): {**YARN, "type": "yarn"}},
        ),
        (
            "qwen2.5-yarn",
            {},
            {"factor": 8.0},
            of("rope_scaling", {"rope_type": "yarn", "factor": 8.0}),
        ),
        ("llama-3.1", {}, {"factor": 16.0}, of("rope_scaling", {"factor": 16.0})),
        ("llama-3.1", {}, {"rope_theta": 1e6}, {("rope_theta",): 1e6}),
        ("gpt-neox", {}, {"rope_theta": 5e4}, {("rotary_emb_base",): 5e4}),
        ("qwen2-vl", {}, YARN, of("rope_scaling", {**YARN, "type": "yarn"})),
        (
            "mistral",
            {"transformers_version": "5.1.0"},
            YARN,
            {("rope_scaling",): {**YARN, "type": "yarn"}},
        ),
        ("nomic-bert", {}, YARN, of("rope_parameters", YARN)),
        (
            "nomic-bert",
            {"rope_parameters": None},
            YARN,
            {("rope_parameters",): {"rope_theta": 1e3, **YARN}},
        ),
        (
            "nomic-bert",
            {"rope_parameters": {"type": "linear", "factor": 2.0}, "rope_theta": 1e3},
            {"factor": 4.0},
            of("rope_parameters", {"rope_type": "linear", "rope_theta": 1e3, "factor": 4.0}),
        ),
        ("modernbert", {}, {"rope_theta": 2e5}, {("global_rope_theta",): 2e5}),
        (
            "modernbert",
            {},
            YARN,
            {
                ("rope_parameters", FULL): {"rope_theta": 160_000.0, **YARN},
                ("rope_parameters", SLIDING): {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        (
            "modernbert",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            {"factor": 4.0},
            {
                ("rope_scaling",): None,
                ("rope_parameters", FULL): {
                    "rope_theta": 160_000.0,
                    "rope_type": "linear",
                    "factor": 4.0,
                },
                ("rope_parameters", SLIDING): {
                    "rope_theta": 1e4,
                    "rope_type": "linear",
                    "factor": 2.0,
                },
            },
        ),
        (
            "phi-3-128k",
            {},
            {"original_max_position_embeddings": 8192},
            {("original_max_position_embeddings",): 8192}
            | of(
                "rope_scaling", {"rope_type": "longrope", "original_max_position_embeddings": 8192}
            ),
        ),
    ],
)
def test_rope_changes_speaks_the_dialect_of_the_file(
    name: str, stated: Config, after: Config, expected: Any
) -> None:
    location = locate({**read(name), **stated})
    layers = read_rope(location)[0]
    settings = {**layers.parameters, **after}

    changes = rope_changes(location, layers, settings)
    no_changes = rope_changes(location, layers, layers.parameters)

    assert changes == expected
    assert no_changes == {}


ALPHA = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1}
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 32, "max_position_embeddings": 64}


@pytest.mark.parametrize("model_type", ["hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text"])
def test_read_rope_knows_the_fixed_base_of_alpha(model_type: str) -> None:
    theta_and_scaling = {"rope_theta": 10_000.0, "rope_scaling": ALPHA}
    location = locate({"model_type": model_type, **SIZES, **theta_and_scaling})
    (layers,) = read_rope(location)

    dim = rotary_dim(location, layers.parameters)
    inverse = frequencies(layers.parameters, dim, 64, 256).inverse
    base = 1e4 * 1000 ** (32 / 30)
    expected = base ** (-np.arange(0, 32, 2) / 32)
    np.testing.assert_allclose(inverse, expected)
    lengths = position_lengths(location)
    assert lengths.first_trained == 64
    assert lengths.stated == 64
    assert lengths.served == 64


@pytest.mark.parametrize("alpha", ["1000", -1.0])
def test_read_rope_refuses_a_malformed_alpha(alpha: Any) -> None:
    rope = {**ALPHA, "alpha": alpha}
    location = locate({"model_type": "hunyuan_v1_dense", **SIZES, "rope_scaling": rope})
    problem = "alpha of ntk_alpha rotary positions must be a number above 0"
    with pytest.raises(CheckpointError, match=problem):
        read_rope(location)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", ALPHA),  # this class reads no alpha
        ("hunyuan_v1_dense", {**ALPHA, "alpha": None}),
        ("hunyuan_v1_dense", {**ALPHA, "alpha": 0}),
    ],
)
def test_read_rope_ignores_alpha_as_transformers_does(model_type: str, settings: Config) -> None:
    config = {"model_type": model_type, **SIZES, "rope_scaling": settings}
    (layers,) = read_rope(locate(config))
    assert layers.parameters["rope_type"] == "dynamic"


SCALED = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def nested_config(model_type: str, outer: Config, **text: Any) -> Config:
    """Return a config with settings in its text config and next to it."""
    defaults = CONFIG_MAPPING[model_type]().to_dict()
    default = defaults["text_config"]["model_type"]
    return {
        "model_type": model_type,
        "text_config": {"model_type": default, **SIZES, **text},
        **outer,
    }


@pytest.mark.parametrize(
    ("text", "outer", "differing"),
    [
        ({"rope_theta": 1e6}, {"rope_theta": 1e5}, "rope_theta is 1000000.0 in text_config"),
        (
            {"rope_parameters": {"rope_theta": 1e6}},
            {"rope_theta": 1e5},
            "rope_theta is 1000000.0 in text_config",
        ),
        (
            {"rope_scaling": SCALED},
            {"rope_scaling": {**SCALED, "factor": 8.0}},
            "factor is 4.0 in text_config",
        ),
        (
            {"rope_scaling": SCALED},
            {"rope_parameters": {**SCALED, "factor": 8.0}},
            "factor is 4.0 in text_config",
        ),
        (
            {"rope_scaling": SCALED},
            {"rope_scaling": {"type": "default"}},
            "rope_type is 'yarn' in text_config",
        ),
        ({}, {"rope_scaling": "yarn"}, "rope_scaling must be an object"),
    ],
)
def test_read_rope_compares_every_setting_next_to_a_text_config(
    text: Config, outer: Config, differing: str
) -> None:
    location = locate(nested_config("llava", outer, **text))
    with pytest.raises(CheckpointError, match=differing):
        read_rope(location)


@pytest.mark.parametrize(
    ("text", "outer"),
    [
        ({"rope_scaling": SCALED, "rope_theta": 1e6}, {"rope_scaling": SCALED}),
        ({"rope_parameters": {**SCALED, "rope_theta": 1e6}}, {"rope_scaling": SCALED}),
        (
            {"rope_scaling": {**SCALED, "mrope_section": [4, 6, 6]}},
            {"rope_scaling": SCALED, "rope_theta": 1e4},
        ),
        ({"rope_scaling": SCALED}, {"rope_scaling": None, "rope_theta": None}),
        ({}, {"rope_scaling": {"type": "default"}}),
    ],
)
def test_read_rope_accepts_copies_that_mean_the_same(text: Config, outer: Config) -> None:
    with_copies = nested_config("llava", outer, **text)
    without_copies = nested_config("llava", {}, **text)
    (layers,) = read_rope(locate(with_copies))
    (expected,) = read_rope(locate(without_copies))
    assert layers.parameters == expected.parameters


def test_read_rope_ignores_settings_of_audio() -> None:
    defaults = CONFIG_MAPPING["musicflamingo"]().to_dict()
    config = json.loads(json.dumps(defaults))
    audio_theta = config["rope_parameters"]["rope_theta"]
    text_theta = config["text_config"]["rope_parameters"]["rope_theta"]
    assert audio_theta != text_theta
    (layers,) = read_rope(locate(config))
    assert layers.parameters["rope_theta"] == 10_000.0


def test_read_rope_reads_flat_configs_of_hunyuan() -> None:
    rope = {**ALPHA, "type": "xdrope", "xdrope_section": [4, 4, 4, 4]}
    config = {"model_type": "hunyuan_vl", **SIZES, "rope_theta": 10_000.0, "rope_scaling": rope}
    loaded = load(config)
    assert loaded.rope_parameters["rope_type"] == "dynamic"
    assert loaded.max_position_embeddings == 64
    location = locate(config)
    (layers,) = read_rope(location)
    assert layers.parameters["rope_type"] == "ntk_alpha"
    assert position_lengths(location).served == 64


@pytest.mark.parametrize("config", [{}, {"text_config": None}, {"text_config": {}}])
def test_read_rope_reads_configs_without_a_text_config(config: Config) -> None:
    (layers,) = read_rope(locate({"model_type": "llava", **config}))
    assert layers.parameters["rope_type"] == "default"
