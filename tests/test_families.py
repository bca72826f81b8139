import copy
import re
from typing import Any

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend import list_families
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.families.lookup import FAMILIES_HINT, TableLocation, find_architecture
from ctxextend.families.registry import FAMILIES
from ctxextend.families.schema import PositionScheme
from ctxextend.families.unsupported import POSITION_SCHEMES


def place(model_type: str, **config: Any) -> TableLocation:
    return find_architecture({"model_type": model_type, **config}).locations[0]


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_families_defaults_are_transformers_own(model_type: str) -> None:
    for key, value in FAMILIES[model_type].defaults.items():
        holder: Any = CONFIG_MAPPING[model_type]()
        for name in key.split("."):
            holder = getattr(holder, name)
        assert holder == value, key


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_families_parts_are_those_that_transformers_takes_by_default(model_type: str) -> None:
    if model_type in ("rag", "nougat", "encoder-decoder", "speech-encoder-decoder", "vision-encoder-decoder"):
        return  # these have no defaults: their parts must be given
    for part in FAMILIES[model_type].parts:
        assert getattr(CONFIG_MAPPING[model_type](), part.config_key).model_type == part.model_type


def test_every_type_of_transformers_is_in_the_registry_or_unsupported() -> None:
    assert {*FAMILIES, *POSITION_SCHEMES} == set(CONFIG_MAPPING.keys())


@pytest.mark.parametrize("scheme", dict.fromkeys(POSITION_SCHEMES.values()), ids=lambda scheme: scheme.uses[:20])
def test_unsupported_types_say_what_is_used_and_what_to_do(scheme: PositionScheme) -> None:
    for model_type in {name for name in POSITION_SCHEMES if POSITION_SCHEMES[name] == scheme} - {*FAMILIES}:
        with pytest.raises(UnsupportedModelError) as caught:
            find_architecture({"model_type": model_type})
        assert re.fullmatch(rf"This {re.escape(model_type)} model has no learned [a-z].*[^.:]\.", caught.value.message)
        assert caught.value.hint == f"{scheme.advice} {FAMILIES_HINT}"
    assert re.fullmatch(r"[A-Z].*\w\.", scheme.advice)
    assert not re.search(r"\b(drop|delete|remove)\b", scheme.advice)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama"}, "This llama model has no learned position table; it uses rotary"),
        ({"model_type": "vit"}, "no learned table over token positions: it uses at most positions of patches"),
        ({"model_type": "marian"}, "it uses fixed sinusoids"),
        ({"model_type": "xlm", "sinusoidal_embeddings": True}, "sinusoidal_embeddings True.*fixed sinusoids"),
        ({"model_type": "trocr", "use_learned_position_embeddings": False}, "fixed sinusoids"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"model_type": "esm", "position_embedding_type": "rotary"}, "position_embedding_type 'rotary'"),
        ({"model_type": "deberta", "position_biased_input": False}, "position_biased_input False.*relative"),
        (
            {"model_type": "vision-encoder-decoder", "decoder": {"model_type": "llama"}},
            "its decoder: this llama mod",
        ),
        ({"model_type": "my-own"}, "'my-own' is not in ctxextend's registry"),
    ],
)
def test_find_architecture_names_what_a_model_uses_instead(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        find_architecture(config)
    assert caught.value.hint


def test_find_architecture_wants_a_model_type() -> None:
    with pytest.raises(CheckpointError, match=r"names no model_type.*--family gpt2"):
        find_architecture({})
    assert find_architecture({}, model_type="gpt2").locations[0].config_key == "n_positions"


@pytest.mark.parametrize(
    ("name", "is_buffer"),
    [
        ("h.0.attn.bias", True),
        ("transformer.h.3.attn.bias", True),
        ("transformer.h.3.attn.c_attn.bias", False),
        ("h.x.attn.bias", False),
        ("h.².attn.bias", False),
        ("model.h.0.attn.bias", False),
        ("h.0.attn.bias.more", False),
        ("hA0.attn.bias", False),
    ],
)
def test_place_buffer_matches_whole_names(name: str, is_buffer: bool) -> None:
    assert (place("gpt2").buffer(name) is not None) == is_buffer


@pytest.mark.parametrize(
    ("model_type", "pad", "offset"),
    [
        ("roberta", {}, 2),
        ("roberta", {"pad_token_id": 1}, 2),
        ("roberta", {"pad_token_id": 4}, 5),
        ("lilt", {}, 1),
        ("prophetnet", {"pad_token_id": 3}, 4),
        ("mpnet", {"pad_token_id": 4}, 2),
        ("bart", {"pad_token_id": 4}, 2),
        ("bert", {"pad_token_id": 4}, 0),
    ],
)
def test_place_offset_follows_the_family_s_rule(model_type: str, pad: dict[str, int], offset: int) -> None:
    assert place(model_type, **pad).reserved_rows == offset


@pytest.mark.parametrize("value", ["512", 1.5, True, -1, [512]])
def test_place_value_refuses_what_is_no_number(value: Any) -> None:
    with pytest.raises(CheckpointError, match="needs a whole number"):
        place("bert", max_position_embeddings=value).value("max_position_embeddings")


def test_place_value_prefers_the_copy_that_transformers_obeys() -> None:
    config: dict[str, Any] = {
        "text_config": {"max_position_embeddings": 77},
        "text_config_dict": {"max_position_embeddings": 248},
    }
    text = place("clip", **config)
    assert text.value("max_position_embeddings") == 248
    theirs: Any = transformers.CLIPConfig(**config).text_config
    assert theirs.max_position_embeddings == 248
    assert {path[0] for path in text.length_paths} == {"text_config", "text_config_dict"}
    assert place("clip", text_config_dict=None).value("max_position_embeddings") == 77


def test_find_architecture_puts_parts_together() -> None:
    architecture = find_architecture(
        {"model_type": "encoder-decoder", "encoder": {"model_type": "roberta"}, "decoder": {"model_type": "gpt2"}}
    )
    encoder, decoder = architecture.locations
    assert (encoder.part, encoder.config_key, encoder.reserved_rows) == (
        "encoder",
        "encoder.max_position_embeddings",
        2,
    )
    assert (decoder.part, decoder.config_key, decoder.reserved_rows) == ("decoder", "decoder.n_positions", 0)
    assert "decoder.transformer.wpe.weight" in decoder.names
    rag = find_architecture({"model_type": "rag"})
    assert [found.part for found in rag.locations] == ["question_encoder", "generator.encoder", "generator.decoder"]
    video = place("sam3_video")
    assert video.config_key == "detector_config.text_config.max_position_embeddings"


def test_list_families_shows_every_table() -> None:
    listed = list_families()
    assert {table.model_type for table in listed} == set(FAMILIES)
    rules = {(table.model_type, table.part): table.reserved_rows for table in listed}
    assert rules["roberta", ""] == "pad_token_id + 1 inside the key"
    assert rules["bart", "decoder"] == "2 on top of the key"
    assert rules["luke", "entity"] == "0"
    notes = {table.model_type: table.notes for table in listed}
    assert notes["deberta"] == ("with position_biased_input true alone", "max_relative_positions held")
    assert notes["led"] == ()
    assert next(table.notes for table in listed if table.part == "encoder" and table.model_type == "led") == (
        "a multiple of attention_window",
    )
    assert notes["bros"] == ("embeddings.position_ids made anew",)


OVERRIDDEN = [model_type for model_type, family in FAMILIES.items() if any(part.overrides for part in family.parts)]


@pytest.mark.parametrize("model_type", ["bridgetower", "blip", "siglip", *OVERRIDDEN])
def test_place_value_is_what_transformers_makes_of_a_second_copy(model_type: str) -> None:
    config: dict[str, Any] = {
        "model_type": model_type,
        "text_config": {"max_position_embeddings": 60},
        "text_config_dict": {"max_position_embeddings": 90},
    }
    theirs: Any = CONFIG_MAPPING[model_type].from_dict(copy.deepcopy(config))
    assert place(**config).value("max_position_embeddings") == theirs.text_config.max_position_embeddings
    left_out = config | {"text_config_dict": {}}
    theirs = CONFIG_MAPPING[model_type].from_dict(copy.deepcopy(left_out))
    assert place(**left_out).value("max_position_embeddings") == theirs.text_config.max_position_embeddings


def test_find_architecture_looks_no_deeper_than_models_go() -> None:
    config: dict[str, Any] = {"model_type": "bart"}
    for _ in range(40):
        config = {"model_type": "rag", "generator": config}
    assert len(find_architecture(config).locations) < 20


def test_find_architecture_takes_a_fixed_part_for_what_it_is() -> None:
    assert place("clip", text_config={"model_type": "t5"}).family.model_type == "clip_text_model"


def test_list_families_of_one_type_says_why_it_has_none() -> None:
    assert [table.part for table in list_families(["bart"])] == ["encoder", "decoder"]
    with pytest.raises(UnsupportedModelError, match="This llama model"):
        list_families(["llama"])
