"""Rotary settings of published configs: as transformers loads them, before and after a resize."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend import CheckpointError, SchemeReport, inspect, resize
from tests.helpers.pico import config_of, read_json
from tests.helpers.rotary_configs import save_config

Config = dict[str, Any]
FOLDER = Path(__file__).parent / "rope_configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
FULL = "full_attention"
SLIDING = "sliding_attention"


def read(name: str) -> Config:
    config: Config = read_json(FOLDER / f"{name}.json")
    return config


def inspected(config: Config, name: str = "source") -> SchemeReport:
    """Return what `inspect` reports of the positions of a config."""
    save_config(Path(name), config)
    return inspect(name).schemes[0]


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


def settings_by_layer(scheme: SchemeReport) -> dict[str, Config]:
    """Return the meaning of settings by layer type."""
    return {item.layers: meaning(dict(item.parameters)) for item in scheme.layers}


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


@pytest.mark.parametrize("name", NAMES)
def test_inspect_reads_what_transformers_loads(name: str) -> None:
    config = read(name)
    scheme = inspected(config)
    assert settings_by_layer(scheme) == loaded_settings(config)
    for item in scheme.layers:
        assert item.is_local == (item.layers == SLIDING)
    assert (scheme.served, 2 * scheme.layers[0].pairs) == LENGTHS_AND_DIMS[name]


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LINEAR = {"rope_type": "linear", "factor": 2.0, "original_max_position_embeddings": 1024}
# Keys of the old dialect.
OLD_KEYS = {
    "rope_scaling",
    "rope_theta",
    "rotary_emb_base",
    "rotary_pct",
    "partial_rotary_factor",
    "global_rope_theta",
    "local_rope_theta",
    "rope_local_base_freq",
    "compress_rope_theta",
    "swa_rope_theta",
}
CHANGED: list[tuple[str, Config]] = [
    *((name, {}) for name in NAMES),
    ("nomic-bert", {"rope_parameters": None}),
    ("nomic-bert", {"rope_parameters": LINEAR, "rope_theta": 1e3}),
    ("modernbert", {"rope_scaling": LINEAR}),
    ("llama-2", {"rope_scaling": YARN, "rope_parameters": {**YARN, "rope_theta": 1e4}}),
]


def only(config: Config, dialect: str) -> Config:
    """Return a config with the settings of only one dialect."""
    removed = OLD_KEYS
    if dialect == "rope_scaling":
        removed = {"rope_parameters"}
    kept = {key: value for key, value in config.items() if key not in removed}
    if "text_config" in kept:
        kept["text_config"] = only(kept["text_config"], dialect)
    return kept


def methods_of(scheme: SchemeReport) -> tuple[str, ...]:
    """Return methods that apply to the settings of a config."""
    kind = scheme.layers[0].parameters["rope_type"]
    if kind == "default":
        return ("yarn", "theta", "limits")
    if kind == "longrope":
        return ("limits",)
    return ("auto",)


@pytest.mark.parametrize(("name", "changes"), CHANGED)
def test_resize_writes_settings_that_load_as_planned_from_each_dialect(
    name: str, changes: Config
) -> None:
    before = inspected({**read(name), **changes})
    main, *local = before.layers
    for method in methods_of(before):
        output = resize("source", 2 * before.served, method, output=method, verify=True).output
        after = inspect(output).schemes[0]
        new_main, *new_local = after.layers
        expected = dict(main.parameters)
        if method == "yarn":
            expected |= {**YARN, "factor": 2.0}
            expected["original_max_position_embeddings"] = before.served
        elif method == "theta":
            expected["rope_theta"] = new_main.parameters["rope_theta"]
            assert expected["rope_theta"] > main.parameters["rope_theta"]
        elif method == "auto":
            expected["factor"] *= 2
        elif "long_factor" in expected:  # without it, the attention factor would follow the length
            expected["factor"] = new_main.parameters["factor"]
            assert new_main.attention_factor == main.attention_factor
        assert new_main.parameters == expected
        assert [item.parameters for item in new_local] == [item.parameters for item in local]

        written = config_of(output)
        loaded = loaded_settings(written)
        assert settings_by_layer(after) == loaded
        assert after.location.dialects
        for dialect in after.location.dialects:
            assert loaded_settings(only(written, dialect)) == loaded


PHI3 = read("phi-3-128k")["rope_scaling"]


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        (
            "llama-2",
            {"rope_scaling": {"type": "linear"}},
            "factor of linear rotary positions must be a number from 1 to 1,",
        ),
        (
            "llama-2",
            {
                "rope_scaling": YARN,
                "rope_theta": 5e5,
                "rope_parameters": {**YARN, "rope_theta": 1e6},
            },
            "rope_theta is 500000.0 by rope_scaling, which transformers follows, but "
            "1000000.0 by rope_parameters.",
        ),
        (
            "llama-2",
            {"rope_scaling": {**YARN, "type": "linear"}},
            "rope_type is 'yarn', but type is 'linear'",
        ),
        (
            "phi-3-128k",
            {"rope_scaling": {**PHI3, "long_factor": [1.0] * 47}},
            "a list of 48 numbers above 0",
        ),
        (
            "modernbert",
            {"rope_parameters": YARN},
            "rope_parameters must be one object for each of full",
        ),
    ],
)
def test_inspect_refuses_malformed_settings(name: str, changes: Config, problem: str) -> None:
    with pytest.raises(CheckpointError) as error:
        inspected({**read(name), **changes})
    assert problem in str(error.value)


ALPHA = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1}
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 32, "max_position_embeddings": 64}


@pytest.mark.parametrize("alpha", [-1.0])
def test_inspect_refuses_a_malformed_alpha(alpha: Any) -> None:
    rope = {**ALPHA, "alpha": alpha}
    problem = "alpha of ntk_alpha rotary positions must be a number above 0"
    with pytest.raises(CheckpointError, match=problem):
        inspected({"model_type": "hunyuan_v1_dense", **SIZES, "rope_scaling": rope})


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", ALPHA),
        ("hunyuan_v1_dense", {**ALPHA, "alpha": None}),
    ],
)
def test_inspect_ignores_alpha_as_transformers_does(model_type: str, settings: Config) -> None:
    scheme = inspected({"model_type": model_type, **SIZES, "rope_scaling": settings})
    assert scheme.layers[0].parameters["rope_type"] == "dynamic"


def test_inspect_ignores_settings_of_audio() -> None:
    defaults = CONFIG_MAPPING["musicflamingo"]().to_dict()
    config = json.loads(json.dumps(defaults))
    audio_theta = config["rope_parameters"]["rope_theta"]
    text_theta = config["text_config"]["rope_parameters"]["rope_theta"]
    assert audio_theta != text_theta
    assert inspected(config).layers[0].parameters["rope_theta"] == 10_000.0


@pytest.mark.parametrize("config", [{}, {"text_config": None}, {"text_config": {}}])
def test_inspect_reads_configs_without_a_text_config(config: Config) -> None:
    scheme = inspected({"model_type": "llava", **config})
    assert scheme.layers[0].parameters["rope_type"] == "default"
