"""What is special in single model types, on small models; see also test_conformance."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from ctxextend import CheckpointError, ResizeError, plan_resize, resize
from ctxextend.json_output import to_json
from tests.helpers import pico, tiny
from tests.helpers.notes import text_of

Save = Callable[..., pico.Pico]
NEW = 40


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Save a small model of a class, with config changes by dotted key."""

    def build(model_class: str, changes: dict[str, Any]) -> pico.Pico:
        found: Any = getattr(transformers, model_class)
        default = tiny.make_config(found.config_class.model_type)
        config = tiny.shrink(default)
        for path, value in changes.items():
            keys = tuple(path.split("."))
            tiny.set_value(config, keys, value)
        torch.manual_seed(0)
        found(config).save_pretrained(tmp_path / "source")
        return pico.Pico(tmp_path / "source", found)

    return build


def output(source: pico.Pico, tmp_path: Path, **settings: Any) -> dict[str, torch.Tensor]:
    resize(source.folder, to=NEW, output=tmp_path / "out", **settings)
    source.load(tmp_path / "out")
    return load_file(tmp_path / "out" / "model.safetensors")


KEY = "max_position_embeddings"
TEXT = f"text_config.{KEY}"
LED = {"max_encoder_position_embeddings": 16, "max_decoder_position_embeddings": 24}
DINO = {TEXT: 16, "max_text_len": 12}
RELATIVE = {KEY: 16, "relative_attention": True}
BIRD = {KEY: 64, "block_size": 64}


@pytest.mark.parametrize(
    ("model_class", "sizes", "to", "edits"),
    [
        # DeBERTa's relative embeddings use the same key only if max_relative_positions is unset.
        ("ProphetNetModel", {KEY: 17}, 40, {KEY: [17, 42]}),
        ("GroundingDinoModel", DINO, 40, {TEXT: [16, 40], "max_text_len": [12, 40]}),
        ("MraModel", {KEY: 64}, 128, {KEY: [64, 128], "block_per_row": [4, 1]}),
    ],
)
def test_plan_resize_edits_all_keys_of_the_length(
    model_class: str, sizes: dict[str, Any], to: int, edits: dict[str, list[int]], save: Save
) -> None:
    source = save(model_class, sizes)
    plan = plan_resize(source.folder, to=to)
    values = to_json(plan)
    assert values["config"] == edits
    notes = text_of(plan, "source")
    has_note = "short inputs attend to different blocks" in notes
    assert has_note == (model_class == "MraModel")


@pytest.mark.parametrize(
    ("model_class", "sizes", "options", "message"),
    [
        (
            "LEDModel",
            LED,
            {"to": 42},
            r"a multiple of 8 \(attention_window.* 42. Use --to 40 or 48",
        ),
        (
            "LEDModel",
            LED,
            {"to": 22},
            r"extend encoder.* \(from 16\) and shrink decoder.* \(from 24\).*"
            "--part encoder or --part dec",
        ),
        (
            "BartModel",
            {KEY: 16},
            {"to": 40, "part": "encoder"},
            f"decoder.* shares the config key {KEY}.*Remove --part.$",
        ),
        (
            "BartModel",
            {KEY: 16},
            {"to": 40, "part": "text"},
            "no such part.*Use --part encoder or --part decoder",
        ),
    ],
)
def test_plan_resize_rejects_unsupported_lengths_and_parts(
    model_class: str, sizes: dict[str, Any], options: dict[str, Any], message: str, save: Save
) -> None:
    source = save(model_class, sizes)
    with pytest.raises(ResizeError, match=message):
        plan_resize(source.folder, **options)


def test_plan_resize_adds_a_missing_text_config_and_rejects_other_values(save: Save) -> None:
    source = save("CLIPModel", {})
    pico.edit_json(source.folder / "config.json", text_config=None)
    values = to_json(plan_resize(source.folder, to=100))
    assert values["config"] == {"text_config": [None, {KEY: 100}]}
    for value in ([1], "text"):
        pico.edit_json(source.folder / "config.json", text_config=value)
        with pytest.raises(CheckpointError, match="config.json: text_config is .*, not an object"):
            plan_resize(source.folder, to=100)


@pytest.mark.parametrize("model_class", ["DebertaModel", "DebertaV2Model"])
def test_resize_deberta_keeps_the_size_of_its_relative_embeddings(
    model_class: str, save: Save, tmp_path: Path
) -> None:
    other = {"max_relative_positions": -1, "pos_att_type": ["c2p", "p2c"]}
    source = save(model_class, RELATIVE | other)
    values = to_json(plan_resize(source.folder, to=NEW))
    edits = values["config"]
    assert edits == {"max_position_embeddings": [16, NEW], "max_relative_positions": [-1, 16]}
    weights = output(source, tmp_path)
    assert len(weights["encoder.rel_embeddings.weight"]) == 32
    old = source.load()
    new = source.load(tmp_path / "out")
    short = pico.logits(old, 16)
    short_resized = pico.logits(new, 16)
    assert torch.equal(short, short_resized)
    assert pico.logits(new, NEW).isfinite().all()


def test_resize_luke_resizes_both_tables_of_the_shared_key(save: Save, tmp_path: Path) -> None:
    source = save("LukeModel", {KEY: 18})
    plan = plan_resize(source.folder, to=NEW)
    text, entity = plan.plan.changes
    assert text.part == "text"
    assert text.rows_after == 42
    assert text.max_len_after == NEW
    assert text.reserved_rows == 2
    assert entity.part == "entity"
    assert entity.rows_after == 42
    assert entity.max_len_after == 42
    assert entity.reserved_rows == 0
    values = to_json(plan)
    assert values["max_len_before"] is None
    assert values["max_len_after"] is None
    assert "Inputs up to 16 (text) and 18 (entity) tokens give identical outputs" in text_of(
        plan, "short-inputs"
    )
    output(source, tmp_path)


def test_resize_part_resizes_one_table_if_keys_are_separate(save: Save, tmp_path: Path) -> None:
    source = save("LEDModel", LED)
    (source.folder / "tokenizer_config.json").write_text('{"model_max_length": 16}')
    encoder = plan_resize(source.folder, to=NEW, part="encoder")
    # 42 is not a multiple of the attention window, 8.
    decoder = plan_resize(source.folder, to=42, part="decoder")
    (encoder_table,) = encoder.plan.changes
    (decoder_table,) = decoder.plan.changes
    assert encoder_table.part == "encoder"
    assert decoder_table.part == "decoder"
    values = to_json(decoder)
    assert values["config"] == {"max_decoder_position_embeddings": [24, 42]}
    # The tokenizer truncates the encoder's input.
    limits = [edit.after for edit in encoder.plan.edits if edit.is_limit]
    assert limits == [NEW]
    for edit in decoder.plan.edits:
        assert not edit.is_limit
    output(source, tmp_path, part="encoder")


@pytest.mark.parametrize(
    ("model_class", "changes", "buffers"),
    [
        ("MraModel", {KEY: 16}, {"embeddings.position_ids": list(range(2, NEW + 2))}),
        (
            "ClapModel",
            {TEXT: 18},
            {
                "text_model.embeddings.position_ids": list(range(NEW + 2)),
                "text_model.embeddings.token_type_ids": [0] * (NEW + 2),
            },
        ),
    ],
)
def test_resize_rebuilds_persistent_buffers(
    model_class: str,
    changes: dict[str, Any],
    buffers: dict[str, list[int]],
    save: Save,
    tmp_path: Path,
) -> None:
    source = save(model_class, changes)
    plan = plan_resize(source.folder, to=NEW)
    rebuilt = set(plan.rebuilt_buffers)
    assert rebuilt == set(buffers)
    assert plan.plan.dropped == ()
    weights = output(source, tmp_path)
    for name, expected in buffers.items():
        assert weights[name].tolist() == [expected]
        assert weights[name].dtype == torch.int64


def test_resize_bark_rebuilds_its_causal_masks(save: Save, tmp_path: Path) -> None:
    sizes = {
        f"{part}_config.block_size": 16
        for part in ("semantic", "coarse_acoustics", "fine_acoustics")
    }
    source = save("BarkModel", sizes)
    mask = output(source, tmp_path)["semantic.layers.0.attn.bias"]
    ones = torch.ones(NEW, NEW, dtype=torch.bool)
    assert torch.equal(mask, ones.tril()[None, None])
    one = plan_resize(source.folder, to=NEW, part="coarse")
    names = [table.name for table in one.plan.changes]
    assert names == ["coarse_acoustics.position_embeds_layer.weight"]
    parts = {name.split(".")[0] for name in one.rebuilt_buffers}
    assert parts == {"coarse_acoustics"}


@pytest.mark.parametrize(
    ("model_class", "name"),
    [
        ("GPT2LMHeadModel", "transformer.h.1.attn.masked_bias"),
        ("CLIPModel", "text_model.embeddings.position_ids"),
    ],
)
def test_resize_drops_buffers_of_old_files(model_class: str, name: str, save: Save) -> None:
    source = save(model_class, {})
    buffer = torch.ones(1, 16, dtype=torch.uint8)
    pico.add_tensors(source.folder, {name: buffer})
    plan = plan_resize(source.folder, to=4000)
    assert plan.plan.dropped == (name,)


def test_resize_raises_the_limits_of_each_tokenizer(tmp_path: Path) -> None:
    encoder = tiny.make_config("dpr").to_dict()
    generator = tiny.make_config("bart").to_dict()
    parts = {"question_encoder": encoder, "generator": generator}
    config = transformers.RagConfig(**parts)
    model = transformers.RagModel(tiny.shrink(config))
    model.save_pretrained(tmp_path / "source")
    for name, limit in (("question_encoder", 512), ("generator", 1024)):
        (tmp_path / "source" / f"{name}_tokenizer").mkdir()
        text = json.dumps({"model_max_length": limit})
        tokenizer = tmp_path / "source" / f"{name}_tokenizer"
        (tokenizer / "tokenizer_config.json").write_text(text)
    plan = plan_resize(tmp_path / "source", to=2000)
    limits = {edit.file: edit.after for edit in plan.plan.edits if edit.is_limit}
    expected = {
        f"{name}_tokenizer/tokenizer_config.json": 2000
        for name in ("question_encoder", "generator")
    }
    assert limits == expected
    one = plan_resize(tmp_path / "source", to=2000, part="generator")
    limited = [edit.file for edit in one.plan.edits if edit.is_limit]
    assert limited == ["generator_tokenizer/tokenizer_config.json"]
