"""Rotary settings in both dialects: readers of only one get the same, or it is not written."""

from pathlib import Path
from typing import Any

import pytest

from ctxextend import MethodError, inspect, list_families, resize
from tests.families.test_rope_settings import inspected, load, loaded_settings, only
from tests.helpers import model_types, rules
from tests.helpers.pico import config_of

Config = dict[str, Any]
NEW, OLD = "rope_parameters", "rope_scaling"
BOTH = (NEW, OLD)
TRAINED = "original_max_position_embeddings"
# By type, of those with rotary positions that are not those of a part.
METHODS = {
    table.model_type: table.methods
    for table in list_families()
    if table.scheme == "rotary" and table.methods and not table.part
}

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
    "limits": ONLY_NEW | SPACED,
}


@pytest.mark.parametrize("model_type", model_types.parameters(METHODS))
def test_transformers_loads_the_same_settings_from_only_one_dialect(
    model_type: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    rules.save(rules.make_config(model_type), source)
    kind = inspect(source).schemes[0].layers[0].parameters["rope_type"]
    methods = METHODS[model_type]
    if kind != "default":
        methods = (kind,)
    for method in (*methods, "limits"):
        output = tmp_path / method
        try:
            resize(source, rules.NEW, method, output=output)
        except MethodError as error:
            assert "are no pairs" in error.message
            continue
        dialects = inspect(output).schemes[0].location.dialects
        is_stated = model_type not in UNSTATED.get(method, set())
        assert dialects == (BOTH if is_stated else (NEW,)), method
        config = rules.read_content(output)
        loaded = loaded_settings(config)
        for dialect in dialects:
            assert loaded_settings(only(config, dialect)) == loaded, (method, dialect)


THETA = {"rope_theta": 10_000.0}
DEFAULT = {"rope_type": "default", **THETA}
LINEAR = {"rope_type": "linear", **THETA, "factor": 4.0}
YARN = {"rope_type": "yarn", **THETA, "factor": 4.0, TRAINED: 2048}
LISTS = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
LONGROPE = {"rope_type": "longrope", **THETA, "factor": 2.0, TRAINED: 4096, **LISTS}
MROPE = {**DEFAULT, "mrope_section": [4, 6, 6]}
ALPHA = {"rope_type": "dynamic", **THETA, "factor": 1.0, "alpha": 50.0}
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 32}


@pytest.mark.parametrize(
    ("model_type", "settings", "method", "added"),
    [
        ("llama", YARN, "limits", {OLD: {**YARN, "type": "yarn"}, **THETA}),
        (
            "llama",
            LONGROPE,
            "limits",
            {OLD: {**LONGROPE, "type": "longrope"}, **THETA, TRAINED: 4096},
        ),
        (
            "gpt_neox",
            {**DEFAULT, "partial_rotary_factor": 1.0},
            "limits",
            {"rotary_emb_base": 10_000.0, "rotary_pct": 1.0},
        ),
        (
            "olmo",
            DEFAULT,
            "linear",
            {NEW: LINEAR, OLD: {"type": "linear", "factor": 4.0}, **THETA},
        ),
        ("qwen2_vl_text", MROPE, "limits", {OLD: {**MROPE, "type": "mrope"}, **THETA}),
    ],
)
def test_resize_adds_what_transformers_4_demands(
    model_type: str, settings: Config, method: str, added: Config
) -> None:
    lengths = {"max_position_embeddings": 8192}
    before: Config = {"model_type": model_type, **SIZES, **lengths, NEW: settings}
    inspected(before)
    after = config_of(resize("source", 32_768, method, output="out").output)
    changes = {key: value for key, value in after.items() if value != before.get(key)}
    assert changes == {**added, "max_position_embeddings": 32_768}

    resize("out", 65_536, method, output="twice")
    twice = config_of("twice")
    if method == "linear":
        assert twice[OLD] == {"type": "linear", "factor": 8.0}
    else:
        assert twice == {**after, "max_position_embeddings": 65_536}


def test_a_new_base_of_olmo3_leaves_the_old_dialect_out() -> None:
    config = {
        "model_type": "olmo3",
        **SIZES,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_hidden_layers": 2,
        "rope_theta": 500_000.0,
    }
    served = inspected(config).served
    written = config_of(resize("source", 2 * served, "theta", output="out").output)
    assert written.get("rope_theta") is None
    loaded = load(written).rope_parameters
    assert loaded["full_attention"]["rope_theta"] > 500_000.0
    assert loaded["sliding_attention"]["rope_theta"] == 500_000.0


def test_local_layers_with_other_settings_leave_the_old_dialect_out() -> None:
    scaled_local = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    layers = {"full_attention": LINEAR, "sliding_attention": scaled_local}
    scheme = inspected({"model_type": "gemma3_text", NEW: layers})
    assert scheme.location.dialects == (NEW,)


def test_yarn_settings_of_deepseek_v4_have_attention_factor_1_in_the_old_dialect() -> None:
    scaling = {"type": "yarn", "factor": 4.0, TRAINED: 2048}
    config = {"model_type": "deepseek_v4", "num_hidden_layers": 2, OLD: scaling}
    scheme = inspected(config)
    assert scheme.layers[0].parameters["attention_factor"] == 1.0
    assert loaded_settings(config)["compress"]["attention_factor"] == 1.0
