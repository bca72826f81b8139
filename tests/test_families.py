from typing import Any

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.families.entries import FAMILIES
from ctxextend.families.lookup import find_family
from ctxextend.families.refusals import INSTEAD


@pytest.mark.parametrize("model_type", FAMILIES)
def test_families_defaults_are_transformers_own(model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    for key, value in FAMILIES[model_type].defaults.items():
        assert getattr(config, key) == value


def test_families_and_refusals_name_types_that_transformers_has_and_never_both() -> None:
    known = set(CONFIG_MAPPING.keys())
    assert set(FAMILIES) <= known
    assert set(INSTEAD) <= known
    assert not set(FAMILIES) & set(INSTEAD)


@pytest.mark.parametrize(
    ("name", "is_buffer"),
    [
        ("h.0.attn.bias", True),
        ("h.11.attn.masked_bias", True),
        ("transformer.h.3.attn.bias", True),
        ("transformer.h.3.attn.c_attn.bias", False),
        ("h.0.attn.c_proj.bias", False),
        ("h.x.attn.bias", False),
        ("model.h.0.attn.bias", False),
        ("h.0.attn.bias.more", False),
        ("hA0.attn.bias", False),
        ("h.0.crossattention.c_attn.bias", False),
    ],
)
def test_family_buffer_matches_whole_names(name: str, is_buffer: bool) -> None:
    assert (FAMILIES["gpt2"].buffer(name) is not None) == is_buffer


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_family_buffer_finds_position_ids_with_and_without_prefix(prefix: str) -> None:
    buffer = FAMILIES["bert"].buffer(f"{prefix}embeddings.position_ids")
    assert buffer is not None
    assert buffer.content == "arange"
    assert FAMILIES["bert"].buffer(f"{prefix}embeddings.position_embeddings.weight") is None


@pytest.mark.parametrize(("pad", "offset"), [({}, 2), ({"pad_token_id": 1}, 2), ({"pad_token_id": 4}, 5)])
def test_family_offset_rows_follows_the_pad_id(pad: dict[str, int], offset: int) -> None:
    family = FAMILIES["roberta"]
    assert family.offset_rows(family.tables[0], pad) == offset


@pytest.mark.parametrize("value", ["512", 1.5, True, -1, [512]])
def test_family_config_value_refuses_what_is_no_number(value: Any) -> None:
    with pytest.raises(CheckpointError, match="needs a whole number"):
        FAMILIES["bert"].config_value("max_position_embeddings", {"max_position_embeddings": value})


def test_find_family_names_what_a_model_uses_instead() -> None:
    with pytest.raises(UnsupportedModelError, match="A llama model has no learned position table; it uses rotary"):
        find_family({"model_type": "llama"})
    with pytest.raises(UnsupportedModelError, match="'my-own' is not in ctxextend's registry"):
        find_family({"model_type": "my-own"})
    with pytest.raises(UnsupportedModelError, match="position_embedding_type 'alibi'"):
        find_family({"model_type": "bert", "position_embedding_type": "alibi"})
    with pytest.raises(CheckpointError, match="names no model_type"):
        find_family({})
