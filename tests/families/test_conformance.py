"""Every model type of transformers is either resized correctly or rejected by name.

Independent of the registry: the types come from transformers' `CONFIG_MAPPING`, the parameters that
depend on a config key are found by building models with other values, and buffers of sinusoids by
recording the sines that constructors compute. `make test` builds a few types of each kind, and
`make test-slow` all of them; `tests/conftest.py` prints the counts.
"""

import copy
import re
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    EncoderDecoderModel,
    MarianMTModel,
    SpeechT5ForSpeechToText,
    SpeechT5ForTextToSpeech,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend import (
    ResizeError,
    UnsupportedModelError,
    extend_model,
    inspect,
    plan_resize,
    resize,
    verify,
)
from ctxextend.families.lookup import TableLocation, find_architecture
from ctxextend.families.registry import FAMILIES
from ctxextend.families.rope import read_rope, rotary_dim
from ctxextend.families.unsupported import POSITION_SCHEMES
from ctxextend.plan.table_plan import TablePlan
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rotary import frequencies
from tests.helpers import model_types, pico, rules, tiny, zoo
from tests.helpers.model_types import NO_CONFIG, NOT_INSTANTIABLE, RULES, TYPES, WITH_ROWS
from tests.helpers.parameters import slow
from tests.helpers.small_model import SmallModel, architecture_of

# Axes that are not token positions, by a pattern of "type key parameter", and what they are.
OTHER_AXES: Mapping[str, str] = {
    r"(num|n)_\w*(register|cls|detection|query|global|mask)_tokens ": (
        "learned tokens without order"
    ),
    r"max_source_positions .*embed_positions": "frames of audio",
    r"max_2d_position_embeddings |\S*max_grid_(row|col)_": "coordinates on a page or in an image",
    r"(row|column)_embedder|florence2 vision_config\.": "rows and columns of an image",
    r"num_position_embeddings |pos_emb_(height|width) ": "patches of an image",
    r"position_embedding_size |num_pos_feats ": "patches of an image",
    r"(left|right)_max_position_embeddings |rel_(2d_)?pos_bins ": "distances between positions",
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

# Sinusoids in buffers or attributes that are not token positions, by a pattern of "type tensor",
# and what they are.
OTHER_WAVES: Mapping[str, str] = {
    r"^(codegen|gptj|llama4\S*|granite_docling\S*) ": "rotary angles",
    r"^(fun_asr_nano|qwen2_5_omni|qwen3_asr|qwen3_omni_moe)\S* .*positional_embedding$": (
        "frames of audio"
    ),
    r"^speech_to_text .*encoder\.": "frames of audio",
    r"^speecht5 .*(sinusoidal_embed|decoder\.prenet\.encode_positions)": "frames of audio",
    r"^seamless_m4t\S* (.*t2u_model\.|model\.|)(model\.|)decoder\.": "units of speech",
    r"^(florence2|kimi_k25|videomae)\S* ": "frames of video",
    r"^patchtst ": "patches of a time series",
    r"^(nemo_speechlm|nemotron3_5_transcribe_audio) ": "speakers",
}

# Tables that text inputs do not use, with the same key as the text's table.
NOT_READ = (
    "visual_embeddings.position_embeddings.weight",
    "embeddings.visual_position_embeddings.weight",
)

# Tables that grow for one long input, but not in generation with a cache, by a pattern of "type
# tensor".
ONE_CALL = r"^(speech_to_text|speecht5) .*embed_positions\.weights$"

# Tables that have another name in files than in the loaded model.
RENAMED = {"transf_decoder._embedding.position_embedding.pos_enc": "decoder.pos_emb.weight"}

# A second pad id, for which the rule of reserved rows must hold too.
OTHER_PAD = 4


def test_config_mapping_has_all_model_types() -> None:
    assert len(TYPES) >= 700, f"only {len(TYPES)} model types were found"
    assert len(set(TYPES)) == len(TYPES)


@pytest.mark.parametrize("model_type", model_types.parameters(TYPES))
def test_every_model_type_is_resized_or_rejected_by_name(
    model_type: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if model_type in WITH_ROWS:
        built = list(tiny.buildable_classes(model_type, tiny.all_classes(model_type)))
    else:
        built = list(tiny.buildable_classes(model_type, tiny.model_classes(model_type), 1))
    if model_type in NOT_INSTANTIABLE:
        assert not built, f"{model_type} can be built: remove it from NOT_INSTANTIABLE"
    else:
        assert built, f"{model_type} cannot be built: add it to NOT_INSTANTIABLE"
    for one in built[:2]:
        check_dependent_parameters(model_type, one)
    for one in built:
        check_waves(model_type, one)
    assert model_type in {*FAMILIES, *POSITION_SCHEMES}, (
        f"{model_type} is new, and none of its parameters was found to depend on a length. Add it "
        "to ctxextend/families/unsupported.py under its position scheme, or add a Family to "
        "ctxextend/families/registry.py."
    )
    kinds = check_family(model_type, built, tmp_path)
    conforming = list(kinds)
    assert bool(conforming) == (model_type in WITH_ROWS and bool(built)), (
        f"{model_type}: no class has a table"
    )
    if conforming:
        check_listed_names(model_type, built)
    record_property(
        "model types", ("with a rule" if model_type in RULES else outcome(built, conforming), 1)
    )
    base = outcome(built[:1], [cls for cls in conforming if cls is built[0].model_class])
    record_property(
        "base classes", ("without its table" if conforming and base == "rejected" else base, 1)
    )
    record_property("classes resized", ("in all", len(conforming)))
    if (any(one.waves for one in built) and not kinds) or {"by formula", "by edits only"} & {
        *kinds.values()
    }:
        how = max(kinds.values(), default="refused: their rows are not token positions")
        record_property("model types with sinusoids", (how, 1))
        record_property(
            "model types with fine-tuned sinusoids", ("as learned tables", how == "by formula")
        )


def outcome(built: list[tiny.Built], conforming: list[Any]) -> str:
    if conforming:
        return "resized"
    return "rejected" if built else "not instantiable"


def check_dependent_parameters(model_type: str, built: tiny.Built) -> None:
    """Check that each parameter that depends on a length is in the registry or in `OTHER_AXES`."""
    known: set[str] = set()
    if model_type in WITH_ROWS & FAMILIES.keys():
        known = {
            name
            for one in architecture_of(model_type, built.config).locations
            for name in one.names
        }
    for key, name in tiny.dependent_parameters(built):
        line = f"{model_type} {key} {name}"
        assert name in known or any(re.search(pattern, line) for pattern in OTHER_AXES), (
            f"{built.model_class.__name__}: {name} has a row for each unit of {key}. Add a Family "
            f"for {model_type!r} to ctxextend/families/registry.py with this table and key; or, if "
            "its rows are not token positions, a pattern to OTHER_AXES and the type to "
            "ctxextend/families/unsupported.py."
        )


def check_waves(model_type: str, built: tiny.Built) -> None:
    """Check that every buffer of sinusoids is in the registry or matches `OTHER_WAVES`."""
    known = set[str]()
    if model_type in WITH_ROWS & FAMILIES.keys():
        known = {
            name
            for one in architecture_of(model_type, built.config).locations
            for name in one.names
        }
    for name in built.waves:
        assert name in known or any(
            re.search(pattern, f"{model_type} {name}") for pattern in OTHER_WAVES
        ), (
            f"{built.model_class.__name__}: {name} contains sinusoids. Add a Family for "
            f"{model_type!r} to ctxextend/families/registry.py with this table and its layout; or, "
            "if its rows are not token positions, a pattern to OTHER_WAVES."
        )


def check_listed_names(model_type: str, built: list[tiny.Built]) -> None:
    """Check that every table name that `ctxextend families` lists is in some class."""
    names = {RENAMED.get(name, name) for one in built for name in one.names}
    config = built[0].config.to_dict() | {"model_type": model_type}
    assert {
        RENAMED.get(one.usual_name, one.usual_name) for one in find_architecture(config).locations
    } <= names


def check_family(model_type: str, built: list[tiny.Built], folder: Path) -> dict[Any, str]:
    """Resize a small model per set of table names; return their classes, with how it was done."""
    conforming = set[frozenset[str]]()
    kinds = dict[Any, str]()
    for one in built if model_type in WITH_ROWS else []:
        locations = architecture_of(model_type, one.config).locations
        tables = frozenset(
            name for location in locations for name in location.names if name in one.names
        )
        is_known = tables in conforming or (
            all(location.table.is_computed for location in locations)
            and any(tables <= known for known in conforming)
        )
        if not tables or is_known:
            continue
        conforming.add(tables)
        is_first = "by formula" not in kinds.values()
        output = folder / one.model_class.__name__
        kinds[one.model_class] = check_class(
            lambda: tiny.make_config(model_type), one.model_class, output, all_methods=is_first
        )
    return kinds


def check_class(
    make_config: Callable[[], Any], model_class: Any, folder: Path, *, all_methods: bool = False
) -> str:
    """Check the reserved rows at two pad ids, and a resize; return how rows are made."""
    if any(
        isinstance(getattr(part, "pad_token_id", None), int)
        for _, part in tiny.parts(make_config())
    ):
        check_rows(SmallModel(make_config(), model_class, OTHER_PAD))
    small = SmallModel(make_config(), model_class)
    unused = copy.deepcopy(small.model)  # BigBird changes its state in forward()
    check_rows(small)
    if small.waves:
        return check_waves_resize(small, folder, all_methods=all_methods)
    assert not any(location.table.is_computed for location, _ in small.found), (
        "its rows are not sinusoids"
    )
    check_resize(small, unused, folder)
    return "as learned"


def check_rows(small: "SmallModel") -> None:
    """Check which rows of learned tables and of stored sinusoids an input of full length reads."""
    if small.waves:
        check_waves_read(small)
    else:
        check_reserved_rows(small)


@pytest.mark.parametrize(
    "model_type",
    model_types.parameters((RULES | {"deberta", "deberta-v2", "esm"}) - NO_CONFIG),
)
def test_every_rule_is_planned_as_transformers_applies_it(
    model_type: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    config = rules.make_config(model_type)
    content = rules.save(config, tmp_path)
    model = None
    outcome = "without a class"
    for method in methods_of(model_type, content):
        plan = plan_resize(tmp_path, to=rules.NEW, method=method)
        loaded = rules.load_config(rules.edited(content, plan.plan.edits))
        if model is None and (model := rules.build(model_type, loaded)):
            output = rules.run(model, rules.NEW) if rules.is_real(model) else None
            assert output is None or output.isfinite().all()
            outcome = "built" if output is None else "run"
        for table in plan.plan.tables:
            part = reduce(getattr, table.location.path, loaded)
            changed = any(rope.keeps_max_len for rope in table.rope)
            length = table.location.key_value(rules.OLD if changed else rules.NEW)
            assert getattr(part, table.location.effective_key) == length
            check_rope(model, part, table)
    record_property("model types with a rule", (outcome, 1))


def methods_of(model_type: str, config: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return the methods to try: those of the type itself, else the one that is chosen."""
    location, *others = find_architecture(config).locations
    if others or location.path or location.table.rope is None or not location.table.rope.methods:
        return (None,)
    kind = next(layers for layers in read_rope(location) if not layers.is_local).parameters[
        "rope_type"
    ]
    return location.table.rope.methods if kind == "default" else (kind,)


def check_rope(model: Any, part: Any, table: TablePlan) -> None:
    """Check the settings that transformers loads, and the frequencies that the model computes."""
    modules = dict(rules.rotary_modules(model, part.model_type)) if model else {}
    assert modules or not (model and table.rope), "no module computes angles"
    for rope in table.rope:
        name = rope.before.layer_type
        settings = rope.after
        loaded = part.rope_parameters[name] if name else part.rope_parameters
        assert {key: loaded.get(key) for key in settings} == dict(settings)
        kind = settings["rope_type"]
        dim = rotary_dim(table.location, settings)
        expected = torch.from_numpy(
            frequencies(settings, dim, part.max_position_embeddings).inverse
        )
        if kind != "default":
            torch.testing.assert_close(
                ROPE_INIT_FUNCTIONS[kind](part, layer_type=name or None)[0].double(),
                expected,
                rtol=1e-5,
                atol=0,
            )
        for module in modules.values():
            for found in (
                type(module)(part),
                *([module] if rules.is_real(model) and module.config is part else []),
            ):
                angles = found.get_buffer(f"{name}_inv_freq".lstrip("_"))
                torch.testing.assert_close(angles.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("composite", "encoder", "decoder"),
    [
        ("encoder-decoder", "roberta", "roberta"),
        ("encoder-decoder", "bert", "gpt2"),
        slow("encoder-decoder", "mpnet", "bert"),
        ("speech-encoder-decoder", "hubert", "mbart"),
        ("vision-encoder-decoder", "vit", "gpt2"),
        slow("vision-encoder-decoder", "deit", "mbart"),
        slow("vision-encoder-decoder", "swin", "trocr"),
        ("encoder-decoder", "roformer", "pegasus"),
        slow("vision-encoder-decoder", "vit", "xglm"),
        ("vision-encoder-decoder", "vit", "ctrl"),
    ],
)
def test_composites_of_any_model_types_are_resized(
    composite: str, encoder: str, decoder: str, tmp_path: Path
) -> None:
    parts = {
        "encoder": tiny.make_config(encoder).to_dict(),
        "decoder": tiny.make_config(decoder).to_dict(),
    }
    parts["decoder"] |= {"is_decoder": True, "add_cross_attention": True}
    check_class(
        lambda: CONFIG_MAPPING[composite](**copy.deepcopy(parts)),
        tiny.model_classes(composite)[0],
        tmp_path,
    )


@pytest.mark.parametrize(
    ("model_type", "flag"),
    [
        ("xlm", "sinusoidal_embeddings"),
        slow("flaubert", "sinusoidal_embeddings"),
        ("distilbert", "sinusoidal_pos_embds"),
    ],
)
def test_models_with_a_flag_for_sinusoids_are_resized_by_formula(
    model_type: str, flag: str, tmp_path: Path
) -> None:
    def make_config() -> Any:
        config = tiny.make_config(model_type)
        setattr(config, flag, True)
        return config

    for model_class in tiny.model_classes(model_type)[:2]:
        is_base = model_class is tiny.model_classes(model_type)[0]
        how = check_class(
            make_config, model_class, tmp_path / model_class.__name__, all_methods=is_base
        )
        assert how == "by formula"


def test_marian_is_resized_by_formula_if_the_file_contains_its_tables(tmp_path: Path) -> None:
    small = SmallModel(tiny.make_config("marian"), MarianMTModel)
    small.model.save_pretrained(tmp_path / "source")
    assert not [
        name for name in pico.tensor_bytes(tmp_path / "source") if "embed_positions" in name
    ]
    state = small.model.state_dict()
    pico.add_tensors(
        tmp_path / "source", {name: state[name].contiguous() for _, name in small.waves}
    )
    assert (
        resize(tmp_path / "source", to=small.new, output=tmp_path / "output").plan.method
        == "formula"
    )
    loaded = pico.Pico(tmp_path / "output", small.model_class).load()
    assert all(same_table(loaded, small.build(small.new), name) for _, name in small.waves)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model_type", ["fsmt", "pegasus", "videoprism_text_model"])
def test_sinusoids_in_half_precision_are_resized_by_formula(
    model_type: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    small = SmallModel(tiny.make_config(model_type), tiny.model_classes(model_type)[0])
    names = [name for _, name in small.waves]
    small.model.to(dtype).save_pretrained(tmp_path / "source")
    assert (
        resize(tmp_path / "source", to=small.new, output=tmp_path / "output").plan.method
        == "formula"
    )
    loaded = pico.Pico(tmp_path / "output", small.model_class).load(dtype=dtype)
    fresh = small.build(small.new).to(dtype)
    assert names
    assert all(same_table(loaded, fresh, name) for name in names)


@pytest.mark.parametrize(
    ("encoder", "decoder", "method"), [("bert", "pegasus", "copy"), ("roformer", "bert", "formula")]
)
def test_learned_rows_and_sinusoids_of_one_model_are_resized_by_their_own_methods(
    encoder: str, decoder: str, method: str, tmp_path: Path
) -> None:
    parts = {
        "encoder": tiny.make_config(encoder).to_dict(),
        "decoder": tiny.make_config(decoder).to_dict(),
    }
    parts["decoder"] |= {"is_decoder": True, "add_cross_attention": True}
    small = SmallModel(CONFIG_MAPPING["encoder-decoder"](**parts), EncoderDecoderModel)
    small.model.save_pretrained(tmp_path / "source")
    result = resize(tmp_path / "source", to=small.new, output=tmp_path / "output")
    assert result.plan.method == method  # of the first table
    names = {choice.name for choice in result.plan.choices.values()}
    assert names == {"copy", "formula"}
    check_verified(tmp_path / "output", tmp_path / "source")
    (tmp_path / "output" / "ctxextend.yaml").unlink()
    check_verified(tmp_path / "output", tmp_path / "source")
    loaded = pico.Pico(tmp_path / "output", EncoderDecoderModel).load()
    fresh = small.build(small.new)
    assert [same_table(loaded, fresh, name) for _, name in small.waves] == [True]
    extend_model(small.model, to=small.new)
    check_same_state(small.model, loaded)


@pytest.mark.parametrize(
    ("model_type", "model_class"),
    [
        *(
            (name, None)
            for name in (
                "cohere_asr",
                "ctrl",
                "fsmt",
                "seamless_m4t",
                "tipsv2_text_model",
                "videoprism",
            )
        ),
        ("speecht5", SpeechT5ForSpeechToText),
        ("speecht5", SpeechT5ForTextToSpeech),
    ],
)
def test_verify_deep_loads_and_runs_models_with_sinusoids(
    model_type: str, model_class: Any, tmp_path: Path
) -> None:
    small = SmallModel(
        tiny.make_config(model_type), model_class or tiny.model_classes(model_type)[0]
    )
    small.model.save_pretrained(tmp_path / "source")
    resize(tmp_path / "source", to=small.new, output=tmp_path / "output")
    result = verify(tmp_path / "output", tmp_path / "source", deep=True)
    assert result.passed, [check for check in result.checks if not check.passed]
    assert {"loads", "runs"} <= {check.name for check in result.checks}


def test_trocr_with_computed_sinusoids_is_rejected() -> None:
    with pytest.raises(UnsupportedModelError, match="use_learned_position_embeddings False"):
        find_architecture({"model_type": "trocr", "use_learned_position_embeddings": False})


@pytest.mark.parametrize(
    "model_type", ["canary_decoder", "ctrl", "pegasus", "roformer", "tipsv2_text_model", "xglm"]
)
def test_sinusoids_that_are_not_in_the_registry_are_found(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = next(tiny.buildable_classes(model_type, tiny.model_classes(model_type), 1))
    monkeypatch.delitem(FAMILIES, model_type)
    with pytest.raises(AssertionError, match="Add a Family"):
        check_dependent_parameters(model_type, built)
        check_waves(model_type, built)


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
    result = resize(folder / "source", to=small.new, method="copy", output=folder / "output")
    check_verified(folder / "output", folder / "source")
    assert all(table.new_rows for table in inspect(folder / "output").tables)
    loaded = pico.realign(pico.Pico(folder / "output", small.model_class).load())
    extend_model(extended, to=small.new, method="copy")
    for model in (extended, small.model):
        pico.realign(model)
    for location, name, reader, _ in small.readers:
        plan = next(plan for plan in result.plan.tables if plan.part == location.part)
        before = plan.max_len_before
        after = plan.max_len_after
        kept = min(plan.rows_before, plan.rows_after)
        assert torch.equal(
            loaded.get_parameter(name)[:kept], small.model.get_parameter(name)[:kept]
        )
        # The long input first: a short one switches BigBird to full attention for all later inputs.
        new = reader.run(loaded, after)
        assert torch.equal(reader.run(extended, after), new), (
            f"{name}: resize and extend_model differ"
        )
        expected, found = overlap(reader.run(small.model, before), reader.run(loaded, before))
        assert torch.equal(expected, found), f"{name}: outputs at the old length changed"
        check_beyond_the_old_length(small, location, reader, after, new)
    check_same_state(extended, loaded)


def check_verified(output: Path, source: Path) -> None:
    """Check that a result passes `verify`, and that all length limits agree."""
    result = verify(output, source)
    assert result.passed, [check for check in result.checks if not check.passed]
    assert [limit for limit in inspect(output).limits if not limit.agrees] == []


def check_beyond_the_old_length(
    small: SmallModel, location: TableLocation, reader: zoo.Reader, length: int, new: torch.Tensor
) -> None:
    """Check that the base fails on longer inputs, or differs if transformers clamps positions."""
    if location.table.longer_inputs == "share the last position":
        assert not torch.equal(*overlap(reader.run(small.model, length), new))
        return
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        reader.run(small.model, length)
    if location.table.extra_rows < 2:  # with unused rows, one token more does not fail
        name = next(name for found, name in small.found if found.part == location.part)
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            reader.run(small.model, location.positions(len(small.model.get_parameter(name))) + 1)


def same_table(one: Any, other: Any, name: str) -> bool:
    """Return whether a table is equal in two models, or computed in each forward pass."""
    first = tiny.find_tensor(one, name)
    second = tiny.find_tensor(other, name)
    return first is None or second is None or torch.equal(first, second)


def check_waves_read(small: SmallModel) -> None:
    """Check that an input of full length reads all rows of sinusoids after the reserved ones."""
    for location, name in small.waves:
        if name not in small.model.state_dict():
            continue
        table = small.model.state_dict()[name]
        reader = small.waves_reader(name)
        first = location.reserved_rows
        last = location.reserved_rows + small.old - 1
        for rows, is_read in (
            ([*range(first), *range(last + 1, len(table))], False),
            ([first], True),
            ([last], True),
        ):
            with zoo.poisoned(table, rows):
                assert bool(reader.run(small.model, small.old).isnan().any()) == is_read, (
                    name,
                    rows,
                )


def check_waves_resize(small: SmallModel, folder: Path, *, all_methods: bool) -> str:
    """Resize a model of sinusoids to a longer and a shorter length, and check all guarantees."""
    small.model.save_pretrained(folder / "source")
    stored = [name for _, name in small.waves if name in pico.tensor_bytes(folder / "source")]
    for positions in (small.new, small.old - 3):
        output = folder / f"output-{positions}"
        result = resize(folder / "source", to=positions, output=output)
        assert result.plan.method == ("formula" if positions > small.old else "truncate")
        assert {plan.name for plan in result.plan.tables if plan.is_stored} == set(stored)
        check_verified(output, folder / "source")
        loaded = pico.realign(pico.Pico(output, small.model_class).load())
        extended = pico.realign(copy.deepcopy(small.model))
        fresh = small.build(positions)
        extend_model(extended, to=positions)
        check_same_state(extended, loaded)
        for location, name in small.waves:
            reader = small.waves_reader(name)
            kept = min(small.old, positions)
            assert same_table(loaded, fresh, name), f"{name}: other rows than transformers computes"
            expected, found = overlap(reader.run(small.model, kept), reader.run(loaded, kept))
            assert torch.equal(expected, found), f"{name}: outputs at old lengths changed"
            assert torch.equal(reader.run(loaded, positions), reader.run(extended, positions))
            for model, length in ((small.model, small.old), (loaded, positions)):
                check_beyond(copy.deepcopy(model), location, name, reader, length)
    if stored and all_methods:
        check_fine_tuned(small, stored, folder)
    return "by formula" if stored else "by edits only"


def check_beyond(
    model: Any, location: TableLocation, name: str, reader: zoo.Reader, length: int
) -> None:
    """Check that a model of sinusoids reads inputs of its length, and grows or fails beyond."""
    table = tiny.find_tensor(model, name)
    assert reader.run(model, length).isfinite().all()
    assert tiny.find_tensor(model, name) is table, (
        f"{name}: an input of {length} tokens does not fit"
    )
    if location.table.longer_inputs == "get computed rows":
        assert reader.run(model, length + 1).isfinite().all()
    elif re.search(ONE_CALL, f"{model.config.model_type} {name}"):
        embed = model.get_submodule(name.rpartition(".")[0])
        with pytest.raises(IndexError):
            embed(torch.full((1, 1), 10), past_key_values_length=length + 2)
    else:
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            reader.run(model, length + 1)


def check_fine_tuned(small: SmallModel, names: list[str], folder: Path) -> None:
    """Check that tables that deviate from their formula are learned tables for all methods."""
    model = copy.deepcopy(small.model)
    for name in names:
        table = tiny.find_tensor(model, name)
        assert table is not None
        table.data += 0.1 * torch.randn(table.shape, generator=torch.Generator().manual_seed(1))
    for method in METHODS:
        extended = copy.deepcopy(model)
        if method == "formula":
            with pytest.raises(ResizeError, match="the table does not equal"):
                extend_model(extended, to=small.new, method=method)
            continue
        extend_model(extended, to=small.new, **pico.resize_settings(method))
        tables = [tiny.find_tensor(extended, name) for name in names]
        assert all(table is not None and table.isfinite().all() for table in tables), method
    model.save_pretrained(folder / "tuned")
    result = resize(folder / "tuned", to=small.new, output=folder / "tuned-output")
    assert result.plan.method == "copy"
    check_verified(folder / "tuned-output", folder / "tuned")
    loaded = pico.Pico(folder / "tuned-output", small.model_class).load()
    for name in names:
        before = tiny.find_tensor(model, name)
        after = tiny.find_tensor(loaded, name)
        assert before is not None
        assert after is not None
        assert torch.equal(after[: len(before)], before)


def check_same_state(extended: Any, loaded: Any) -> None:
    expected = loaded.state_dict()
    found = extended.state_dict()
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
