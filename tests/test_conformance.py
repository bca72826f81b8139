"""Every model type of transformers is either resized correctly or rejected by name.

Independent of the registry: the types come from transformers' `CONFIG_MAPPING`, and the parameters that depend on a
config key are found by building models with other values. `tests/conftest.py` prints the counts.
"""

import copy
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend import UnsupportedModelError, extend_model, inspect, resize, verify
from ctxextend.families.lookup import Architecture, TableLocation, find_architecture
from ctxextend.families.registry import FAMILIES
from ctxextend.families.unsupported import POSITION_SCHEMES
from ctxextend.plan.find_tables import find_tables
from tests import pico, tiny, zoo

TYPES = sorted(CONFIG_MAPPING.keys())

# Types of which no model can be built here, and why. They must still be in the registry or rejected by name.
NOT_INSTANTIABLE: Mapping[str, str] = {
    model_type: reason
    for reason, model_types in {
        "needs timm": """
            edgetam edgetam_vision_model fast_vlm gemma3n gemma3n_vision pe_audio_video pe_audio_video_encoder
            pe_video pe_video_encoder perception_lm timm_backbone timm_wrapper
        """,
        "needs natten": "dinat",
        "needs torchaudio": "higgs_audio_v2_tokenizer",
        "needs detectron2": "layoutlmv2",
        "transformers has no model class for this config": """
            edgetam_mask_decoder edgetam_prompt_encoder edgetam_video_mask_decoder edgetam_video_prompt_encoder
            gemma4_unified_audio gemma4_unified_vision idefics_perciever idefics_vision layoutxlm nougat
            pp_chart2table_vision sam2_mask_decoder sam2_prompt_encoder sam2_video_mask_decoder
            sam2_video_prompt_encoder sam3_geometry_encoder sam3_lite_text_geometry_encoder sam3_tracker_mask_decoder
            sam3_tracker_prompt_encoder sam3_tracker_video_mask_decoder sam3_tracker_video_prompt_encoder
            sam_hq_mask_decoder sam_hq_prompt_encoder sam_mask_decoder sam_prompt_encoder sapiens2_head
            t5_gemma_module vibevoice_diffusion
        """,
        "its default config cannot be built": """
            cohere_compass cohere_compass_text dbrx deepseek_ocr2 deepseek_ocr2_text diffusion_gemma
            diffusion_gemma_text dots1 emu3 gemma4_assistant gemma4_unified_assistant granite4_vision hunyuan_vl
            lfm2_moe moonshine_streaming pp_ocrv5_server_det pp_ocrv6_medium_det qwen3_omni_moe
            qwen3_omni_moe_talker_text t5gemma2_decoder t5gemma2_encoder t5gemma2_text vitmatte
        """,
    }.items()
    for model_type in model_types.split()
}

# Axes that are not token positions, by a pattern of "type key parameter", and what they are.
OTHER_AXES: Mapping[str, str] = {
    r"(num|n)_\w*(register|cls|detection|query|global|mask)_tokens ": "learned tokens without order",
    r"max_source_positions .*embed_positions": "frames of audio",
    r"max_2d_position_embeddings |\S*max_grid_(row|col)_": "coordinates on a page or in an image",
    r"(row|column)_embedder|florence2 vision_config\.": "rows and columns of an image",
    r"num_position_embeddings |pos_emb_(height|width) |position_embedding_size |num_pos_feats ": "patches of an image",
    r"(left|right)_max_position_embeddings |rel_(2d_)?pos_bins ": "distances between positions",
    r"^(fsmt|marian|pegasus|roformer) .*embed_positions|^cohere_asr .*pos_emb": "sinusoids",
    r"^(autoformer|informer|time_series_transformer) .*embed_positions": "sinusoids over time",
    r"^esmfold2 max_atoms_per_token ": "kinds of atoms",
    r"^sam3_lite_text\S* ": "a table that the model interpolates",
    r"^decision_transformer ": "time steps",
    r"^pp_doclayout_v2 ": "parts of a page",
    r"^patchtst ": "patches of a time series",
    r"^mgp-str ": "characters to be read from an image",
    r"^aria .*projector": "patches of an image",
    r"^oneformer task_seq_len ": "the input of a layer, not a table",
}

# Tables that text inputs do not use, with the same key as the text's table.
NOT_READ = ("visual_embeddings.position_embeddings.weight", "embeddings.visual_position_embeddings.weight")

# A second pad id, for which the rule of reserved rows must hold too.
OTHER_PAD = 4


def test_config_mapping_has_all_model_types() -> None:
    assert len(TYPES) >= 700, f"only {len(TYPES)} model types were found"
    assert len(set(TYPES)) == len(TYPES)


@pytest.mark.parametrize("model_type", TYPES)
def test_every_model_type_is_resized_or_rejected_by_name(
    model_type: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if model_type in FAMILIES:
        built = list(tiny.buildable_classes(model_type, tiny.all_classes(model_type)))
    else:
        built = list(tiny.buildable_classes(model_type, tiny.model_classes(model_type), 1))
    assert bool(built) != (model_type in NOT_INSTANTIABLE), (
        f"{model_type}: {'can be built: remove it from' if built else 'cannot be built: add it to'} NOT_INSTANTIABLE"
    )
    for one in built[:2]:
        check_dependent_parameters(model_type, one)
    assert model_type in {*FAMILIES, *POSITION_SCHEMES}, (
        f"{model_type} is new, and none of its parameters was found to depend on a length. Add it to "
        "ctxextend/families/unsupported.py under its position scheme, or add a Family to "
        "ctxextend/families/registry.py."
    )
    if model_type not in FAMILIES:
        with pytest.raises(UnsupportedModelError, match=f"^This {re.escape(model_type)} model "):
            find_architecture({"model_type": model_type})
    conforming = check_family(model_type, built, tmp_path)
    assert bool(conforming) == (model_type in FAMILIES and bool(built)), f"{model_type}: no class has a table"
    if conforming:
        check_listed_names(model_type, built)
    record_property("model types", (outcome(built, conforming), 1))
    base = outcome(built[:1], [cls for cls in conforming if cls is built[0].model_class])
    record_property("base classes", ("without its table" if conforming and base == "rejected" else base, 1))
    record_property("classes resized", ("in all", len(conforming)))


def outcome(built: list[tiny.Built], conforming: list[Any]) -> str:
    return "resized" if conforming else "rejected" if built else "not instantiable"


def check_dependent_parameters(model_type: str, built: tiny.Built) -> None:
    """Check that every parameter that depends on a length is in the registry or matches `OTHER_AXES`."""
    known: set[str] = set()
    if model_type in FAMILIES:
        known = {name for one in architecture_of(model_type, built.config).locations for name in one.names}
    for key, name in tiny.dependent_parameters(built):
        line = f"{model_type} {key} {name}"
        assert name in known or any(re.search(pattern, line) for pattern in OTHER_AXES), (
            f"{built.model_class.__name__}: {name} has a row for each unit of {key}. Add a Family for {model_type!r} "
            "to ctxextend/families/registry.py with this table and key; or, if its rows are not token positions, a "
            "pattern to OTHER_AXES and the type to ctxextend/families/unsupported.py."
        )


def architecture_of(model_type: str, config: Any) -> Architecture:
    return find_architecture({**config.to_dict(), "model_type": model_type})


def check_listed_names(model_type: str, built: list[tiny.Built]) -> None:
    """Check that every table name that `ctxextend families` lists is a parameter of some class."""
    names = {name for one in built for name in one.shapes}
    config = built[0].config.to_dict() | {"model_type": model_type}
    assert {one.usual_prefix + one.table.name for one in find_architecture(config).locations} <= names


def check_family(model_type: str, built: list[tiny.Built], folder: Path) -> list[Any]:
    """Resize a small model per set of table names, and return their classes."""
    conforming: dict[frozenset[str], Any] = {}
    for one in built if model_type in FAMILIES else []:
        locations = architecture_of(model_type, one.config).locations
        tables = frozenset(name for location in locations for name in location.names if name in one.shapes)
        if tables and tables not in conforming:
            conforming[tables] = one.model_class
            check_class(lambda: tiny.make_config(model_type), one.model_class, folder / one.model_class.__name__)
    return list(conforming.values())


def check_class(make_config: Callable[[], Any], model_class: Any, folder: Path) -> None:
    """Check the reserved rows at the default pad id and at another, and a resize."""
    if any(isinstance(getattr(part, "pad_token_id", None), int) for _, part in tiny.parts(make_config())):
        check_reserved_rows(SmallModel(make_config(), model_class, OTHER_PAD))
    small = SmallModel(make_config(), model_class)
    unused = copy.deepcopy(small.model)  # BigBird changes its state in forward()
    check_reserved_rows(small)
    check_resize(small, unused, folder)


class SmallModel:
    """A small model of a class whose tables all have the same number of positions."""

    def __init__(self, config: Any, model_class: Any, pad: int | None = None) -> None:
        self.model_class, model_type = model_class, config.model_type
        self.old, self.new = zoo.LENGTHS.get(model_type, (zoo.OLD, zoo.NEW))
        config = tiny.shrink(config)
        for _, part in tiny.parts(config):
            if pad is not None and isinstance(getattr(part, "pad_token_id", None), int):
                part.pad_token_id = pad
        first: dict[str, TableLocation] = {}
        for location in architecture_of(model_type, config).locations:
            first.setdefault(location.config_key, location)
        for key, location in first.items():
            tiny.set_value(config, tuple(key.split(".")), location.key_value(self.old))
        torch.manual_seed(0)
        self.model = model_class(config).train(False)
        self.architecture = architecture_of(model_type, self.model.config)
        names = {name for name, _ in self.model.named_parameters()}
        self.found = find_tables(self.architecture, names, model_type)

    @cached_property
    def readers(self) -> list[tuple[TableLocation, str, zoo.Reader, list[int]]]:
        """The tables that text inputs use, each with the module that reads it and the rows it read."""
        readers = []
        for location, name in self.found:
            length = location.positions(len(self.model.get_parameter(name)))
            if reader := zoo.find_reader(self.model, name, length):
                readers.append((location, name, *reader))
        return readers


@pytest.mark.parametrize(
    ("composite", "encoder", "decoder"),
    [
        ("encoder-decoder", "roberta", "roberta"),
        ("encoder-decoder", "bert", "gpt2"),
        ("encoder-decoder", "mpnet", "bert"),
        ("speech-encoder-decoder", "hubert", "mbart"),
        ("vision-encoder-decoder", "vit", "gpt2"),
        ("vision-encoder-decoder", "deit", "mbart"),
        ("vision-encoder-decoder", "swin", "trocr"),
    ],
)
def test_composites_of_any_model_types_are_resized(composite: str, encoder: str, decoder: str, tmp_path: Path) -> None:
    parts = {"encoder": tiny.make_config(encoder).to_dict(), "decoder": tiny.make_config(decoder).to_dict()}
    parts["decoder"] |= {"is_decoder": True, "add_cross_attention": True}
    check_class(lambda: CONFIG_MAPPING[composite](**copy.deepcopy(parts)), tiny.model_classes(composite)[0], tmp_path)


def check_reserved_rows(small: SmallModel) -> None:
    """Check that an input of full length reads exactly the rows after the reserved ones."""
    read = set()
    for location, name, _, rows in small.readers:
        last = len(small.model.get_parameter(name)) - 1
        padding = getattr(small.model.get_submodule(name.rpartition(".")[0]), "padding_idx", None)
        # The row of padding_idx has no gradient.
        reserved = location.reserved_rows
        assert rows[0] == reserved + (padding == reserved), (name, rows, reserved)
        assert last - location.table.extra_rows <= rows[-1] <= last, (name, rows, last)
        read.add(name)
    unread = {name for _, name in small.found if not name.endswith(NOT_READ)} - read
    assert not unread, "no input reads these"


def check_resize(small: SmallModel, extended: Any, folder: Path) -> None:
    """Resize a model's checkpoint with `copy`, and check all guarantees for the result."""
    small.model.save_pretrained(folder / "source")
    result = resize(folder / "source", to=small.new, output=folder / "output")
    check_verified(folder)
    loaded = pico.realign(pico.Pico(folder / "output", small.model_class).load())
    extend_model(extended, to=small.new)
    for model in (extended, small.model):
        pico.realign(model)
    for location, name, reader, _ in small.readers:
        plan = next(plan for plan in result.plan.tables if plan.part == location.part)
        before, after = plan.max_len_before, plan.max_len_after
        kept = min(plan.rows_before, plan.rows_after)
        assert torch.equal(loaded.get_parameter(name)[:kept], small.model.get_parameter(name)[:kept])
        # The long input first: a short one switches BigBird to full attention for all later inputs.
        new = reader.run(loaded, after)
        assert torch.equal(reader.run(extended, after), new), f"{name}: resize and extend_model differ"
        expected, found = overlap(reader.run(small.model, before), reader.run(loaded, before))
        assert torch.equal(expected, found), f"{name}: outputs at the old length changed"
        check_beyond_the_old_length(small, location, reader, after, new)
    check_same_state(extended, loaded)


def check_verified(folder: Path) -> None:
    """Check that the result passes `verify`, and that all length limits agree."""
    result = verify(folder / "output", folder / "source")
    assert result.passed, [check for check in result.checks if not check.passed]
    inspection = inspect(folder / "output")
    assert [limit for limit in inspection.limits if not limit.agrees] == []
    assert all(table.new_rows for table in inspection.tables)


def check_beyond_the_old_length(
    small: SmallModel, location: TableLocation, reader: zoo.Reader, length: int, new: torch.Tensor
) -> None:
    """Check that the base model fails on longer inputs, or, if transformers clamps positions, differs."""
    if location.table.clamps:
        assert not torch.equal(*overlap(reader.run(small.model, length), new))
        return
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        reader.run(small.model, length)
    if location.table.extra_rows < 2:  # with unused rows, one token more does not fail
        name = next(name for found, name in small.found if found.part == location.part)
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            reader.run(small.model, location.positions(len(small.model.get_parameter(name))) + 1)


def check_same_state(extended: Any, loaded: Any) -> None:
    expected, found = loaded.state_dict(), extended.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    buffers = dict(extended.named_buffers())
    for name, value in loaded.named_buffers():
        assert torch.equal(buffers[name], value), name
        assert buffers[name].dtype == value.dtype, name


def overlap(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Crop two outputs to a common shape: some have the size of the table, not of the input."""
    part = tuple(slice(min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    return one[part], other[part]
