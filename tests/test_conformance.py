"""Every model type that transformers has, resized right or refused by name.

Nothing here trusts a list of families: the types are transformers' own `CONFIG_MAPPING`, and which parameter follows
which key of a config is found by building the model with other values. `tests/conftest.py` prints the counts.
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

# Types of which no model can be built here, and why. All are in the registry or refused by name all the same.
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
        "transformers has no model of this config alone": """
            edgetam_mask_decoder edgetam_prompt_encoder edgetam_video_mask_decoder edgetam_video_prompt_encoder
            gemma4_unified_audio gemma4_unified_vision idefics_perciever idefics_vision layoutxlm nougat
            pp_chart2table_vision sam2_mask_decoder sam2_prompt_encoder sam2_video_mask_decoder
            sam2_video_prompt_encoder sam3_geometry_encoder sam3_lite_text_geometry_encoder sam3_tracker_mask_decoder
            sam3_tracker_prompt_encoder sam3_tracker_video_mask_decoder sam3_tracker_video_prompt_encoder
            sam_hq_mask_decoder sam_hq_prompt_encoder sam_mask_decoder sam_prompt_encoder sapiens2_head
            t5_gemma_module vibevoice_diffusion
        """,
        "its own default config is not enough to build it": """
            cohere_compass cohere_compass_text dbrx deepseek_ocr2 deepseek_ocr2_text diffusion_gemma
            diffusion_gemma_text dots1 emu3 gemma4_assistant gemma4_unified_assistant granite4_vision hunyuan_vl
            lfm2_moe moonshine_streaming pp_ocrv5_server_det pp_ocrv6_medium_det qwen3_omni_moe
            qwen3_omni_moe_talker_text t5gemma2_decoder t5gemma2_encoder t5gemma2_text vitmatte
        """,
    }.items()
    for model_type in model_types.split()
}

# Axes that are no positions of tokens, by a pattern of "type key parameter", and what they are.
OTHER_AXES: Mapping[str, str] = {
    r"(num|n)_\w*(register|cls|detection|query|global|mask)_tokens ": "a number of learned tokens, in no order",
    r"max_source_positions .*embed_positions": "frames of audio",
    r"max_2d_position_embeddings |\S*max_grid_(row|col)_": "places on a page or in an image",
    r"(row|column)_embedder|florence2 vision_config\.": "rows and columns of an image",
    r"num_position_embeddings |pos_emb_(height|width) |position_embedding_size |num_pos_feats ": "patches of an image",
    r"(left|right)_max_position_embeddings |rel_(2d_)?pos_bins ": "distances between positions",
    r"^(fsmt|marian|pegasus|roformer) .*embed_positions|^cohere_asr .*pos_emb": "sinusoids",
    r"^(autoformer|informer|time_series_transformer) .*embed_positions": "sinusoids over time",
    r"^esmfold2 max_atoms_per_token ": "kinds of atoms",
    r"^sam3_lite_text\S* ": "a table that the model stretches by itself",
    r"^decision_transformer ": "time steps",
    r"^pp_doclayout_v2 ": "parts of a page",
    r"^patchtst ": "patches of a time series",
    r"^mgp-str ": "letters to be read from an image",
    r"^aria .*projector": "patches of an image",
    r"^oneformer task_seq_len ": "the input of a layer that is no table",
}

# Tables over other things than the text, by the same key as the text's.
NOT_READ = ("visual_embeddings.position_embeddings.weight", "embeddings.visual_position_embeddings.weight")

# The rule for the offset must hold for it too.
OTHER_PAD = 4


def test_transformers_has_the_types_that_are_walked() -> None:
    assert len(TYPES) >= 700, f"only {len(TYPES)} model types were found"
    assert len(set(TYPES)) == len(TYPES)


@pytest.mark.parametrize("model_type", TYPES)
def test_every_model_type_is_resized_or_refused_by_name(
    model_type: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if model_type in FAMILIES:
        built = list(tiny.buildable(model_type, tiny.all_classes(model_type)))
    else:
        built = list(tiny.buildable(model_type, tiny.model_classes(model_type), 1))
    assert bool(built) != (model_type in NOT_INSTANTIABLE), (
        f"{model_type}: {'can be built: take it out of' if built else 'cannot be built: say why in'} NOT_INSTANTIABLE"
    )
    for one in built[:2]:
        check_followers(model_type, one)
    assert model_type in {*FAMILIES, *POSITION_SCHEMES}, (
        f"{model_type} is new: no parameter of it was found to follow a length. Add it to "
        "ctxextend/families/unsupported.py under what it uses for positions, or a Family to "
        "ctxextend/families/registry.py."
    )
    if model_type not in FAMILIES:
        with pytest.raises(UnsupportedModelError, match=f"^This {re.escape(model_type)} model "):
            find_architecture({"model_type": model_type})
    conforming = check_family(model_type, built, tmp_path)
    assert bool(conforming) == (model_type in FAMILIES and bool(built)), f"{model_type}: no class of it holds a table"
    if conforming:
        check_listed_names(model_type, built)
    record_property("model types", (outcome(built, conforming), 1))
    base = outcome(built[:1], [cls for cls in conforming if cls is built[0].model_class])
    record_property("base classes", ("without its table" if conforming and base == "refused" else base, 1))
    record_property("classes resized", ("in all", len(conforming)))


def outcome(built: list[tiny.Built], conforming: list[Any]) -> str:
    return "resized" if conforming else "refused" if built else "not instantiable"


def check_followers(model_type: str, built: tiny.Built) -> None:
    """Demand that every parameter which follows a length is a table of the registry, or known to be something else."""
    known: set[str] = set()
    if model_type in FAMILIES:
        known = {name for place in architecture_of(model_type, built.config).locations for name in place.names}
    for key, name in tiny.followers(built):
        line = f"{model_type} {key} {name}"
        assert name in known or any(re.search(pattern, line) for pattern in OTHER_AXES), (
            f"{built.model_class.__name__}: {name} has a row for each unit of {key}. Add a Family for {model_type!r} "
            "to ctxextend/families/registry.py with this table and key; or, if its rows are no positions of tokens, a "
            "pattern to OTHER_AXES and the type to ctxextend/families/unsupported.py."
        )


def architecture_of(model_type: str, config: Any) -> Architecture:
    return find_architecture({**config.to_dict(), "model_type": model_type})


def check_listed_names(model_type: str, built: list[tiny.Built]) -> None:
    """Demand that every name under which the registry is shown is one that some class has."""
    held = {name for one in built for name in one.shapes}
    config = built[0].config.to_dict() | {"model_type": model_type}
    assert {place.usual_prefix + place.table.name for place in find_architecture(config).locations} <= held


def check_family(model_type: str, built: list[tiny.Built], folder: Path) -> list[Any]:
    """Resize a small model of each class that has its tables under other names than those before; return them."""
    conforming: dict[frozenset[str], Any] = {}
    for one in built if model_type in FAMILIES else []:
        places = architecture_of(model_type, one.config).locations
        tables = frozenset(name for place in places for name in place.names if name in one.shapes)
        if tables and tables not in conforming:
            conforming[tables] = one.model_class
            check_class(lambda: tiny.make_config(model_type), one.model_class, folder / one.model_class.__name__)
    return list(conforming.values())


def check_class(make_config: Callable[[], Any], model_class: Any, folder: Path) -> None:
    """Check the offset at the default pad id and at another, and a resize."""
    if any(isinstance(getattr(part, "pad_token_id", None), int) for _, part in tiny.parts(make_config())):
        check_offsets(Small(make_config(), model_class, OTHER_PAD))
    small = Small(make_config(), model_class)
    unused = copy.deepcopy(small.model)  # BigBird changes with what it reads
    check_offsets(small)
    check_resize(small, unused, folder)


class Small:
    """A small model of a class, every table of which has the same number of positions."""

    def __init__(self, config: Any, model_class: Any, pad: int | None = None) -> None:
        self.model_class, model_type = model_class, config.model_type
        self.old, self.new = zoo.LENGTHS.get(model_type, (zoo.OLD, zoo.NEW))
        config = tiny.shrink(config)
        for _, part in tiny.parts(config):
            if pad is not None and isinstance(getattr(part, "pad_token_id", None), int):
                part.pad_token_id = pad
        leads: dict[str, TableLocation] = {}
        for place in architecture_of(model_type, config).locations:
            leads.setdefault(place.config_key, place)
        for key, place in leads.items():
            tiny.set_value(config, tuple(key.split(".")), place.key_value(self.old))
        torch.manual_seed(0)
        self.model = model_class(config).train(False)
        self.architecture = architecture_of(model_type, self.model.config)
        names = {name for name, _ in self.model.named_parameters()}
        self.found = find_tables(self.architecture, names, model_type)

    @cached_property
    def readers(self) -> list[tuple[TableLocation, str, zoo.Reader, list[int]]]:
        """Each table that a text alone reaches, with what reads it and the rows that were read."""
        reached = []
        for place, name in self.found:
            length = place.positions(len(self.model.get_parameter(name)))
            if reader := zoo.find_reader(self.model, name, length):
                reached.append((place, name, *reader))
        return reached


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
def test_composites_of_any_families_are_resized(composite: str, encoder: str, decoder: str, tmp_path: Path) -> None:
    parts = {"encoder": tiny.make_config(encoder).to_dict(), "decoder": tiny.make_config(decoder).to_dict()}
    parts["decoder"] |= {"is_decoder": True, "add_cross_attention": True}
    check_class(lambda: CONFIG_MAPPING[composite](**copy.deepcopy(parts)), tiny.model_classes(composite)[0], tmp_path)


def check_offsets(small: Small) -> None:
    """Demand that a text of all positions reads the rows behind the registry's offset, and no others."""
    reached = set()
    for place, name, _, rows in small.readers:
        last = len(small.model.get_parameter(name)) - 1
        padding = getattr(small.model.get_submodule(name.rpartition(".")[0]), "padding_idx", None)
        # A row that torch takes for padding has no gradient.
        assert rows[0] == place.reserved_rows + (padding == place.reserved_rows), (name, rows, place.reserved_rows)
        assert last - place.table.ahead <= rows[-1] <= last, (name, rows, last)
        reached.add(name)
    unread = {name for _, name in small.found if not name.endswith(NOT_READ)} - reached
    assert not unread, "no text reaches these"


def check_resize(small: Small, extended: Any, folder: Path) -> None:
    """Resize a model's checkpoint by `copy`, and demand all that is promised of the result."""
    small.model.save_pretrained(folder / "source")
    result = resize(folder / "source", to=small.new, output=folder / "output")
    check_proof(folder)
    loaded = pico.settled(pico.Pico(folder / "output", small.model_class).load())
    extend_model(extended, to=small.new)
    for model in (extended, small.model):
        pico.settled(model)
    for place, name, reader, _ in small.readers:
        plan = next(plan for plan in result.plan.tables if plan.part == place.part)
        before, after = plan.max_len_before, plan.max_len_after
        kept = min(plan.rows_before, plan.rows_after)
        assert torch.equal(loaded.get_parameter(name)[:kept], small.model.get_parameter(name)[:kept])
        # The long text first: BigBird attends to all of a short one, and from then on to all of every text.
        new = reader.run(loaded, after)
        assert torch.equal(reader.run(extended, after), new), f"{name}: the two routes differ"
        expected, found = overlap(reader.run(small.model, before), reader.run(loaded, before))
        assert torch.equal(expected, found), f"{name}: outputs at the old length changed"
        check_past_the_old_end(small, place, reader, after, new)
    check_same_state(extended, loaded)


def check_proof(folder: Path) -> None:
    """Demand that the result is proved to be one, and that every place that states a length agrees with it."""
    proof = verify(folder / "output", folder / "source")
    assert proof.passed, [check for check in proof.checks if not check.passed]
    inspection = inspect(folder / "output")
    assert [limit for limit in inspection.limits if not limit.agrees] == []
    assert all(table.new_rows for table in inspection.tables)


def check_past_the_old_end(
    small: Small, place: TableLocation, reader: zoo.Reader, length: int, new: torch.Tensor
) -> None:
    """Demand that the original fails there, or, where transformers clamps positions, gives something else."""
    if place.table.clamps:
        assert not torch.equal(*overlap(reader.run(small.model, length), new))
        return
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        reader.run(small.model, length)
    if place.table.ahead < 2:  # what leaves rows free does not fail at the first token too many
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            reader.run(small.model, place.positions(len(small.model.get_parameter(place_name(small, place)))) + 1)


def place_name(small: Small, place: TableLocation) -> str:
    return next(name for found, name in small.found if found.part == place.part)


def check_same_state(extended: Any, loaded: Any) -> None:
    expected, found = loaded.state_dict(), extended.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    buffers = dict(extended.named_buffers())
    for name, value in loaded.named_buffers():
        assert torch.equal(buffers[name], value), name
        assert buffers[name].dtype == value.dtype, name


def overlap(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what two outputs have in common: some have a place for every position, whatever the text's length."""
    part = tuple(slice(min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    return one[part], other[part]
