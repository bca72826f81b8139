"""What is particular about single families, on small models that transformers builds; the rest is in conformance."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ctxextend import CheckpointError, ResizeError, UnsupportedModelError, plan_resize, resize
from ctxextend.json_output import to_json
from ctxextend.plan.edits import TablePlan
from tests import pico, tiny

Save = Callable[..., pico.Pico]
NEW = 40


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Save a small model of a class, its config changed by paths of keys."""

    def build(model_class: str, changes: dict[str, Any], model_type: str | None = None) -> pico.Pico:
        found: Any = getattr(transformers, model_class)
        config = tiny.shrink(tiny.make_config(model_type or found.config_class.model_type))
        for path, value in changes.items():
            tiny.set_value(config, tuple(path.split(".")), value)
        torch.manual_seed(0)
        model = found(config)
        model.save_pretrained(tmp_path / "source")
        return pico.Pico(tmp_path / "source", found)

    return build


def tables(source: pico.Pico, **settings: Any) -> dict[str, TablePlan]:
    return {table.part: table for table in plan_resize(source.folder, to=NEW, **settings).tables}


def output(source: pico.Pico, tmp_path: Path, **settings: Any) -> dict[str, torch.Tensor]:
    resize(source.folder, to=NEW, output=tmp_path / "out", **settings)
    source.load(tmp_path / "out")
    return load_file(tmp_path / "out" / "model.safetensors")


def edits(source: pico.Pico, **settings: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = to_json(plan_resize(source.folder, to=NEW, **settings))["config"]
    return found


@pytest.mark.parametrize("model_class", ["DebertaModel", "DebertaV2Model"])
def test_resize_deberta_pins_the_relative_table_to_the_old_length(model_class: str, save: Save, tmp_path: Path) -> None:
    relative = {"relative_attention": True, "max_relative_positions": -1, "pos_att_type": ["c2p", "p2c"]}
    source = save(model_class, {"max_position_embeddings": 16, **relative})
    assert edits(source) == {"max_position_embeddings": [16, NEW], "max_relative_positions": [-1, 16]}
    weights = output(source, tmp_path)
    assert len(weights["encoder.rel_embeddings.weight"]) == 32
    old, new = source.load(), source.load(tmp_path / "out")
    assert torch.equal(pico.logits(old, 16), pico.logits(new, 16))
    assert pico.logits(new, NEW).isfinite().all()


def test_resize_deberta_pins_nothing_that_the_length_does_not_size(save: Save) -> None:
    source = save("DebertaModel", {"max_position_embeddings": 16, "relative_attention": False})
    assert edits(source) == {"max_position_embeddings": [16, NEW]}
    stated = save(
        "DebertaModel", {"max_position_embeddings": 16, "relative_attention": True, "max_relative_positions": 8}
    )
    assert edits(stated) == {"max_position_embeddings": [16, NEW]}


def test_resize_luke_gives_both_tables_what_the_one_key_says(save: Save, tmp_path: Path) -> None:
    source = save("LukeModel", {"max_position_embeddings": 18})
    found = tables(source)
    assert (found["text"].rows_after, found["text"].max_len_after, found["text"].reserved_rows) == (42, NEW, 2)
    assert (found["entity"].rows_after, found["entity"].max_len_after, found["entity"].reserved_rows) == (42, 42, 0)
    values = to_json(plan_resize(source.folder, to=NEW))
    assert (values["max_len_before"], values["max_len_after"]) == (None, None)
    assert edits(source) == {"max_position_embeddings": [18, 42]}
    assert "beyond 16 (text) and 18 (entity)" in plan_resize(source.folder, to=NEW).consequences
    output(source, tmp_path)


def test_resize_clip_changes_the_copy_that_transformers_obeys(save: Save, tmp_path: Path) -> None:
    source = save("CLIPModel", {"text_config.max_position_embeddings": 16})
    text = source.load().config.text_config.to_dict()
    pico.edit_json(source.folder / "config.json", text_config={"max_position_embeddings": 999}, text_config_dict=text)
    assert edits(source) == {
        "text_config.max_position_embeddings": [999, NEW],
        "text_config_dict.max_position_embeddings": [16, NEW],
    }
    output(source, tmp_path)


def test_resize_clip_makes_the_object_that_the_config_has_not(save: Save) -> None:
    source = save("CLIPModel", {})
    pico.edit_json(source.folder / "config.json", text_config=None)
    plan = plan_resize(source.folder, to=100)
    assert [(edit.path, edit.after) for edit in plan.edits] == [(("text_config",), {"max_position_embeddings": 100})]


def test_resize_grounding_dino_raises_its_limit_on_texts(save: Save, tmp_path: Path) -> None:
    source = save("GroundingDinoModel", {"text_config.max_position_embeddings": 16, "max_text_len": 12})
    assert edits(source) == {"text_config.max_position_embeddings": [16, NEW], "max_text_len": [12, NEW]}
    shorter = to_json(plan_resize(source.folder, to=14))["config"]
    assert shorter == {"text_config.max_position_embeddings": [16, 14]}
    assert to_json(plan_resize(source.folder, to=8))["config"]["max_text_len"] == [12, 8]
    output(source, tmp_path)


def test_resize_led_wants_whole_windows_of_its_encoder_alone(save: Save, tmp_path: Path) -> None:
    lengths = {"max_encoder_position_embeddings": 16, "max_decoder_position_embeddings": 16}
    source = save("LEDModel", lengths)
    with pytest.raises(ResizeError, match=r"multiples of 8 \(attention_window\).*Use --to 40 or 48") as caught:
        plan_resize(source.folder, to=42)
    assert "42" in caught.value.message
    decoder = plan_resize(source.folder, to=42, part="decoder")
    assert to_json(decoder)["config"] == {"max_decoder_position_embeddings": [16, 42]}
    output(source, tmp_path, part="encoder")


def test_resize_part_takes_one_table_where_keys_allow_it(save: Save, tmp_path: Path) -> None:
    source = save("LEDModel", {"max_encoder_position_embeddings": 16, "max_decoder_position_embeddings": 24})
    (source.folder / "tokenizer_config.json").write_text('{"model_max_length": 16}')
    assert tables(source, part="decoder").keys() == {"decoder"}
    limits = [edit for edit in plan_resize(source.folder, to=NEW, part="decoder").edits if edit.is_limit]
    assert limits == [], "the tokenizer cuts what the encoder reads"
    assert [edit.after for edit in plan_resize(source.folder, to=NEW, part="encoder").edits if edit.is_limit] == [NEW]
    with pytest.raises(
        ResizeError, match="more than the 16 of encoder.*fewer than the 24.*--part encoder or --part dec"
    ):
        plan_resize(source.folder, to=22)
    assert "beyond 16 (encoder) and 24 (decoder)" in plan_resize(source.folder, to=NEW).consequences


def test_resize_part_is_refused_where_one_key_serves_both(save: Save) -> None:
    source = save("BartModel", {"max_position_embeddings": 16})
    with pytest.raises(
        ResizeError, match="decoder.embed_positions.weight has its length by the same key, max_position"
    ):
        plan_resize(source.folder, to=NEW, part="encoder")
    with pytest.raises(ResizeError, match="no such part.*Its parts are encoder or decoder"):
        plan_resize(source.folder, to=NEW, part="text")
    bert = plan_resize("tiny-gpt2", to=NEW)
    assert bert.tables[0].part == ""
    with pytest.raises(ResizeError, match="It has one table: leave --part out"):
        plan_resize("tiny-gpt2", to=NEW, part="text")


@pytest.mark.parametrize(
    ("model_class", "changes", "buffers"),
    [
        ("BrosModel", {"max_position_embeddings": 16}, {"embeddings.position_ids": list(range(NEW))}),
        ("MraModel", {"max_position_embeddings": 16}, {"embeddings.position_ids": list(range(2, NEW + 2))}),
        (
            "ClapModel",
            {"text_config.max_position_embeddings": 18},
            {
                "text_model.embeddings.position_ids": list(range(NEW + 2)),
                "text_model.embeddings.token_type_ids": [0] * (NEW + 2),
            },
        ),
    ],
)
def test_resize_makes_buffers_anew_that_transformers_reads(
    model_class: str, changes: dict[str, Any], buffers: dict[str, list[int]], save: Save, tmp_path: Path
) -> None:
    source = save(model_class, changes)
    plan = plan_resize(source.folder, to=NEW)
    assert {buffer.name for buffer in plan.remade} == set(buffers)
    assert plan.dropped == ()
    weights = output(source, tmp_path)
    for name, expected in buffers.items():
        assert weights[name].tolist() == [expected]
        assert weights[name].dtype == torch.int64


def test_resize_bark_makes_its_masks_anew(save: Save, tmp_path: Path) -> None:
    sizes = {f"{part}_config.block_size": 16 for part in ("semantic", "coarse_acoustics", "fine_acoustics")}
    source = save("BarkModel", sizes)
    weights = output(source, tmp_path)
    mask = weights["semantic.layers.0.attn.bias"]
    assert torch.equal(mask, torch.ones(NEW, NEW, dtype=torch.bool).tril()[None, None])
    one = plan_resize(source.folder, to=NEW, part="coarse")
    assert [table.name for table in one.tables] == ["coarse_acoustics.position_embeds_layer.weight"]
    assert all(buffer.name.startswith("coarse_acoustics.") for buffer in one.remade)
    assert one.remade


@pytest.mark.parametrize(
    ("model_class", "name"),
    [
        ("GPT2LMHeadModel", "transformer.h.1.attn.masked_bias"),
        ("GPTNeoForCausalLM", "transformer.h.0.attn.attention.bias"),
        ("BertModel", "embeddings.position_ids"),
        ("CLIPModel", "text_model.embeddings.position_ids"),
    ],
)
def test_resize_drops_the_buffers_of_old_files(model_class: str, name: str, save: Save, tmp_path: Path) -> None:
    source = save(model_class, {})
    path = source.folder / "model.safetensors"
    before = load_file(path)
    save_file({**before, name: torch.ones(1, 16, dtype=torch.uint8)}, path, metadata={"format": "pt"})
    plan = plan_resize(source.folder, to=4000)
    assert plan.dropped == (name,)
    resize(source.folder, to=4000, output=tmp_path / "out")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert after.keys() == before.keys()
    table = plan.tables[0].name
    assert all(torch.equal(tensor, before[key]) for key, tensor in after.items() if key != table)


def test_resize_mra_attends_to_as_many_blocks_as_before(save: Save) -> None:
    source = save("MraModel", {"max_position_embeddings": 64})
    assert to_json(plan_resize(source.folder, to=128))["config"]["block_per_row"] == [4, 1]
    odd = plan_resize(source.folder, to=96)
    assert "block_per_row" not in to_json(odd)["config"]
    assert any("short texts attend to other blocks" in note for note in odd.notes)


def test_resize_refuses_a_composite_whose_file_holds_only_parts_without_tables(save: Save, tmp_path: Path) -> None:
    t5 = tiny.shrink(tiny.make_config("t5"))
    config = tiny.shrink(transformers.Blip2Config(text_config=t5.to_dict()))
    transformers.Blip2ForConditionalGeneration(config).save_pretrained(tmp_path / "source")
    with pytest.raises(UnsupportedModelError, match="its text: this t5 model has no learned position table"):
        plan_resize(tmp_path / "source", to=NEW)


def test_resize_of_a_composite_takes_the_parts_that_have_tables(tmp_path: Path) -> None:
    parts = {"encoder": tiny.make_config("vit").to_dict(), "decoder": tiny.make_config("gpt2").to_dict()}
    parts["decoder"] |= {"add_cross_attention": True, "is_decoder": True, "max_position_embeddings": 1024}
    config = tiny.shrink(transformers.VisionEncoderDecoderConfig(**copy.deepcopy(parts)))
    transformers.VisionEncoderDecoderModel(config).save_pretrained(tmp_path / "source")
    pico.edit_json(
        tmp_path / "source" / "config.json", decoder=config.decoder.to_dict() | {"max_position_embeddings": 1024}
    )
    plan = plan_resize(tmp_path / "source", to=2000)
    assert to_json(plan)["config"] == {
        "decoder.n_positions": [1024, 2000],
        "decoder.max_position_embeddings": [1024, 2000],
    }
    resize(tmp_path / "source", to=2000, output=tmp_path / "out")
    pico.Pico(tmp_path / "out", transformers.VisionEncoderDecoderModel).load()


def test_resize_of_a_refused_type_with_a_family_inside_says_how_to_name_its_table(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "gpt2")
    config = {"model_type": "llava", "text_config": {"model_type": "gpt2", "n_positions": 16}}
    (source.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="a part of this one is of a known type: gpt2") as caught:
        plan_resize(source.folder, to=NEW)
    assert "--table transformer.wpe.weight --config-key text_config.n_positions" in (caught.value.hint or "")
    named = plan_resize(source.folder, to=NEW, table="transformer.wpe.weight", config_key="text_config.n_positions")
    assert to_json(named)["config"] == {"text_config.n_positions": [16, NEW]}


def test_resize_prophetnet_gives_both_of_its_models_the_whole_length(save: Save, tmp_path: Path) -> None:
    source = save("ProphetNetModel", {"max_position_embeddings": 17})
    found = tables(source)
    assert (found["encoder"].max_len_after, found["decoder"].max_len_after) == (NEW + 1, NEW)
    assert edits(source) == {"max_position_embeddings": [17, NEW + 2]}
    output(source, tmp_path)
    model = source.load(tmp_path / "out")
    ids = torch.ones(1, NEW, dtype=torch.long)
    assert model(input_ids=ids, decoder_input_ids=ids).last_hidden_state.shape[1] == NEW


def test_resize_big_bird_wants_whole_blocks(save: Save) -> None:
    source = save("BigBirdModel", {"max_position_embeddings": 64, "block_size": 64})
    with pytest.raises(ResizeError, match=r"multiples of 64 \(block_size\).*Use --to 1984 or 2048"):
        plan_resize(source.folder, to=2000)
    pico.edit_json(source.folder / "config.json", block_size=None)
    with pytest.raises(ResizeError, match="multiples of 64"):
        plan_resize(source.folder, to=2000)
    pico.edit_json(source.folder / "config.json", attention_type="original_full")
    assert plan_resize(source.folder, to=2000).tables[0].rows_after == 2000


def test_resize_gpt2_goes_by_the_alias_where_both_are_stated(save: Save, tmp_path: Path) -> None:
    source = save("GPT2Model", {"n_positions": 16})
    pico.edit_json(source.folder / "config.json", n_positions=8, max_position_embeddings=16)
    assert edits(source) == {"n_positions": [8, NEW], "max_position_embeddings": [16, NEW]}
    output(source, tmp_path)


def test_resize_leaves_the_tokenizer_of_a_part_without_a_table(tmp_path: Path) -> None:
    parts = {"encoder": tiny.make_config("t5").to_dict(), "decoder": tiny.make_config("bert").to_dict()}
    parts["decoder"] |= {"add_cross_attention": True, "is_decoder": True}
    config = tiny.shrink(transformers.EncoderDecoderConfig(**copy.deepcopy(parts)))
    transformers.EncoderDecoderModel(config).save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "tokenizer_config.json").write_text('{"model_max_length": 300}')
    plan = plan_resize(tmp_path / "source", to=600)
    assert to_json(plan)["config"] == {"decoder.max_position_embeddings": [512, 600]}
    assert not any(edit.is_limit for edit in plan.edits)


def test_resize_raises_the_limits_of_each_tokenizer(tmp_path: Path) -> None:
    parts = {"question_encoder": tiny.make_config("dpr").to_dict(), "generator": tiny.make_config("bart").to_dict()}
    config = tiny.shrink(transformers.RagConfig(**copy.deepcopy(parts)))
    transformers.RagModel(config).save_pretrained(tmp_path / "source")
    for name, limit in (("question_encoder", 512), ("generator", 1024)):
        (tmp_path / "source" / f"{name}_tokenizer").mkdir()
        text = json.dumps({"model_max_length": limit})
        (tmp_path / "source" / f"{name}_tokenizer" / "tokenizer_config.json").write_text(text)
    limits = {edit.file: edit.after for edit in plan_resize(tmp_path / "source", to=2000).edits if edit.is_limit}
    assert limits == {f"{name}_tokenizer/tokenizer_config.json": 2000 for name in ("question_encoder", "generator")}
    one = plan_resize(tmp_path / "source", to=2000, part="generator")
    assert [edit.file for edit in one.edits if edit.is_limit] == ["generator_tokenizer/tokenizer_config.json"]
    with pytest.raises(ResizeError, match="--part question_encoder or --part generator"):
        plan_resize(tmp_path / "source", to=768)
    with pytest.raises(ResizeError, match="neither can change alone"):
        plan_resize(tmp_path / "source", to=2000, part="generator.encoder")


@pytest.mark.parametrize("value", [[1], "text"])
def test_resize_refuses_a_config_whose_parts_are_no_objects(value: object, save: Save) -> None:
    source = save("CLIPModel", {})
    pico.edit_json(source.folder / "config.json", text_config=value)
    with pytest.raises(CheckpointError, match="config.json: text_config is .*, not an object"):
        plan_resize(source.folder, to=100)


@pytest.mark.parametrize("model_type", [["gpt2"], 5])
def test_resize_refuses_a_model_type_that_is_no_name(model_type: object, tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "gpt2")
    pico.edit_json(source.folder / "config.json", model_type=model_type)
    with pytest.raises(CheckpointError, match="names no model_type"):
        plan_resize(source.folder, to=NEW)


@pytest.mark.parametrize("untied", [False, True])
def test_resize_of_pickles_keeps_what_is_shared_across_models(untied: bool, tmp_path: Path) -> None:
    parts = {"encoder": tiny.make_config("bert").to_dict(), "decoder": tiny.make_config("bart").to_dict()}
    parts["decoder"] |= {"add_cross_attention": True, "is_decoder": True, "tie_word_embeddings": not untied}
    config = tiny.shrink(transformers.EncoderDecoderConfig(**copy.deepcopy(parts)))
    model: Any = transformers.EncoderDecoderModel(config)
    model.save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "model.safetensors").unlink()
    state = dict(model.state_dict())
    shared = state["encoder.embeddings.word_embeddings.weight"]
    state |= dict.fromkeys(("decoder.model.decoder.embed_tokens.weight", "decoder.lm_head.weight"), shared)
    torch.save(state, tmp_path / "source" / "pytorch_model.bin")
    resize(tmp_path / "source", to=2000, output=tmp_path / "out")
    loaded = pico.Pico(tmp_path / "out", transformers.EncoderDecoderModel).load()
    assert torch.equal(loaded.decoder.model.decoder.embed_tokens.weight, shared)
    assert torch.equal(loaded.decoder.lm_head.weight, shared)
