import re
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend import (
    UnsupportedModelError,
    inspect,
    list_families,
    plan_resize,
)
from ctxextend.families.registry import FAMILIES, POSITION_SCHEMES
from tests.helpers.rotary_configs import save_config
from tests.helpers.trainings import invoke

# Composite types without default parts in transformers.
OF_ANY_PARTS = (
    "gemma4_assistant",
    "rag",
    "nougat",
    "encoder-decoder",
    "speech-encoder-decoder",
    "vision-encoder-decoder",
)


# Model types of which transformers reads no length.
WITHOUT_LENGTH = (
    "bloom",
    "longt5",
    "mt5",
    "recurrent_gemma",
    "switch_transformers",
    "t5",
    "udop",
    "umt5",
)


@pytest.mark.all_types
def test_registry_covers_every_model_type_of_transformers() -> None:
    known = {*FAMILIES, *POSITION_SCHEMES}
    assert known == set(CONFIG_MAPPING.keys())


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_registry_has_the_defaults_and_parts_of_transformers(model_type: str) -> None:
    family = FAMILIES[model_type]
    defaults = {} if model_type in WITHOUT_LENGTH else family.defaults
    for key, value in defaults.items():
        default: Any = CONFIG_MAPPING[model_type]()
        for name in key.split("."):
            if name == "global_head_dim":
                default = default.per_layer_config["full_attention"]
            default = getattr(default, name.removeprefix("global_"), None)
        # The trained length of relative and ALiBi positions, which no class reads.
        is_unread = default is None and key in ("n_positions", "seq_length")
        assert default == value or is_unread, key
    parts = () if model_type in OF_ANY_PARTS else family.parts
    for part in parts:
        config = CONFIG_MAPPING[model_type]()
        part_config = getattr(config, part.config_key)
        assert part_config.model_type == part.model_type


def test_inspect_limits_the_nesting_depth() -> None:
    config: dict[str, Any] = {"model_type": "bart"}
    for _ in range(40):
        config = {"model_type": "rag", "generator": config}
    save_config(Path("source"), config)
    with pytest.raises(UnsupportedModelError, match="nested too deeply"):
        inspect("source")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "mamba"},
            "This mamba model has no position table to resize; it uses no position embeddings",
        ),
        (
            {"model_type": "vit"},
            "no position table for tokens; it uses only positions of image patches",
        ),
        (
            {"model_type": "bert", "position_embedding_type": "relative_key"},
            "position_embedding_type 'relative_key'",
        ),
        (
            {"model_type": "granitemoehybrid", "position_embedding_type": "nope"},
            "position_embedding_type 'nope'.*no pos",
        ),
        (
            {"model_type": "vision-encoder-decoder", "decoder": {"model_type": "mamba"}},
            "decoder: This mamba mod",
        ),
        ({"model_type": "my-own"}, "Unknown model type 'my-own'"),
    ],
)
def test_resize_names_the_scheme_of_unsupported_models(
    config: dict[str, Any], message: str
) -> None:
    save_config(Path("source"), config)
    with pytest.raises(UnsupportedModelError, match=message):
        plan_resize("source", 64)


@pytest.mark.all_types
def test_list_families_returns_every_table() -> None:
    every = list_families()
    types = {table.model_type for table in every}
    assert types == set(FAMILIES)
    schemes = {table.scheme for table in every}
    assert schemes == {"learned", "sinusoidal", "rotary", "ALiBi", "relative"}
    falcon = [table.scheme for table in every if table.model_type == "falcon"]
    assert falcon == ["rotary", "ALiBi"]
    parts = [table.part for table in list_families(["bart"])]
    assert parts == ["encoder", "decoder"]


def test_list_families_accepts_a_type_or_a_part_of_its_name() -> None:
    types = {table.model_type for table in list_families(["bert"])}
    assert types == {"bert"}
    types = {table.model_type for table in list_families(["rober", "led"])}
    known = (*FAMILIES, *POSITION_SCHEMES)
    like_roberta = {name for name in known if "rober" in name}
    assert types == like_roberta | {"led"}
    schemes = {table.scheme for table in list_families(["mamba", "bloo"])}
    assert schemes == {"none", "ALiBi"}
    with pytest.raises(UnsupportedModelError, match="Unknown model type 'rberta'"):
        list_families(["rberta"])
    exact = [table.scheme for table in list_families(["t5"])]
    assert exact == ["relative"]


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.all_types
def test_families_fits_all_types_into_the_terminal_width(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = invoke("families").stdout.splitlines()
    for line in lines:
        assert len(line) <= width
    assert len(lines) <= 45 + 7500 // width

    indented = " ".join(line for line in lines if line.startswith("  "))
    words = re.findall(r"[\w.-]+", indented)
    names = [word for word in words if word in FAMILIES]
    assert sorted(names) == sorted(FAMILIES)

    _, _, not_resized = " ".join(lines).partition("Not resized")
    counted = re.findall(r"(\d+)\s+[A-Za-z]", not_resized)
    assert sum(map(int, counted)) == len(POSITION_SCHEMES)
