"""Every model type of transformers is either resized correctly or rejected by name.

Independent of the registry: the types come from transformers' `CONFIG_MAPPING`, the parameters that
depend on a config key are found by building models with other values, and buffers of sinusoids by
recording the sines that constructors compute. `make test` builds a few types of each kind, and
`make test-slow` all of them.
"""

import copy
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    EncoderDecoderModel,
    MarianMTModel,
    SpeechT5ForSpeechToText,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend import (
    Check,
    ResizeError,
    SchemeReport,
    Verification,
    extend_model,
    inspect,
    list_families,
    resize,
    verify,
)
from ctxextend.families.registry import ENTRIES, FAMILIES, POSITION_SCHEMES, find_architecture
from ctxextend.json_output import to_json
from ctxextend.positions.rotary import Rotary
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rope_types import SLIDING_LAYERS
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

# Types with a `sliding_window` in their config class that is not that of all layers, without types
# of layers.
OTHER_WINDOWS = {
    "blt_local_encoder": "blt sets it, to its local_attention_window_len",
    "qwen3_omni_moe_talker_text": "its classes do not read it",
    "qwen3_omni_moe_text": "its classes do not read it",
    "qwen3_vl_moe_text": "its classes do not read it",
}

# A second pad id, for which the rule of reserved rows must hold too.
OTHER_PAD = 4


@pytest.mark.parametrize("model_type", model_types.parameters(TYPES))
def test_every_model_type_is_resized_or_rejected_by_name(model_type: str, tmp_path: Path) -> None:
    if model_type in WITH_ROWS:
        classes = tiny.all_classes(model_type)
        built = list(tiny.buildable_classes(model_type, classes))
    else:
        classes = tiny.model_classes(model_type)
        built = list(tiny.buildable_classes(model_type, classes, 1))

    if model_type in NOT_INSTANTIABLE:
        assert not built, f"{model_type} can be built: remove it from NOT_INSTANTIABLE"
    else:
        assert built, f"{model_type} cannot be built: add it to NOT_INSTANTIABLE"
    for one in built[:2]:
        check_dependent_parameters(model_type, one)
    for one in built:
        check_waves(model_type, one)
    assert model_type in ENTRIES or model_type in POSITION_SCHEMES, (
        f"{model_type} is new, and none of its parameters was found to depend on a length. Add a "
        "row to ctxextend/families/model_types.json if it is rotary (its classes state "
        f"{FAMILIES.get(model_type)}), or its name there to `unsupported`, under its position "
        "scheme."
    )

    is_resized = check_family(model_type, built, tmp_path)
    has_table = model_type in WITH_ROWS and bool(built)
    assert is_resized == has_table, f"{model_type}: no class has a table"
    if is_resized:
        check_listed_names(model_type, built)


def known_names(model_type: str, built: tiny.Built) -> set[str]:
    """Return the names that tables of the class can have by the registry."""
    if model_type not in WITH_ROWS & FAMILIES.keys():
        return set()
    architecture = architecture_of(model_type, built.config)
    return {name for location in architecture.locations for name in location.names}


def matches(line: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, line) for pattern in patterns)


def check_dependent_parameters(model_type: str, built: tiny.Built) -> None:
    """Check that each parameter that depends on a length is in the registry or in `OTHER_AXES`."""
    known = known_names(model_type, built)
    for key, name in tiny.dependent_parameters(built):
        line = f"{model_type} {key} {name}"
        assert name in known or matches(line, OTHER_AXES), (
            f"{built.model_class.__name__}: {name} has a row for each unit of {key}. Add a row for "
            f"{model_type!r} to ctxextend/families/model_types.json with this table and key; or, "
            "if its rows are not token positions, a pattern to OTHER_AXES and the type to "
            "`unsupported` there."
        )


def check_waves(model_type: str, built: tiny.Built) -> None:
    """Check that every buffer of sinusoids is in the registry or matches `OTHER_WAVES`."""
    known = known_names(model_type, built)
    for name in built.waves:
        line = f"{model_type} {name}"
        assert name in known or matches(line, OTHER_WAVES), (
            f"{built.model_class.__name__}: {name} contains sinusoids. Add a row for "
            f"{model_type!r} to ctxextend/families/model_types.json with this table and its "
            "layout; or, if its rows are not token positions, a pattern to OTHER_WAVES."
        )


def check_listed_names(model_type: str, built: list[tiny.Built]) -> None:
    """Check that every table name that `ctxextend families` lists is in some class."""
    names = {RENAMED.get(name, name) for one in built for name in one.names}
    config = built[0].config.to_dict()
    config["model_type"] = model_type
    for location in find_architecture(config).locations:
        listed = location.usual_name
        assert RENAMED.get(listed, listed) in names


def check_family(model_type: str, built: list[tiny.Built], folder: Path) -> bool:
    """Resize a small model per set of table names; return whether there are any."""
    conforming = set[frozenset[str]]()
    kinds = set[str]()
    if model_type not in WITH_ROWS:
        return False
    for one in built:
        locations = architecture_of(model_type, one.config).locations
        possible = {name for location in locations for name in location.names}
        tables = frozenset(possible & one.names)
        is_known = tables in conforming
        if all(location.is_computed for location in locations):
            is_known = any(tables <= known for known in conforming)
        if not tables or is_known:
            continue
        conforming.add(tables)

        make_config = partial(tiny.make_config, model_type)
        output = folder / one.model_class.__name__
        is_first = "by formula" not in kinds
        kinds.add(check_class(make_config, one.model_class, output, all_methods=is_first))
    return bool(kinds)


def check_class(
    make_config: Callable[[], Any], model_class: Any, folder: Path, *, all_methods: bool = False
) -> str:
    """Check the reserved rows at two pad ids, and a resize; return how rows are made."""
    if has_pad_id(make_config()):
        check_rows(SmallModel(make_config(), model_class, OTHER_PAD))

    small = SmallModel(make_config(), model_class)
    unused = copy.deepcopy(small.model)  # BigBird changes its state in forward()
    check_rows(small)
    if small.waves:
        return check_waves_resize(small, folder, all_methods=all_methods)
    for location, _ in small.found:
        assert not location.is_computed, "its rows are not sinusoids"
    check_resize(small, unused, folder)
    return "as learned"


def has_pad_id(config: Any) -> bool:
    pad_ids = [getattr(part, "pad_token_id", None) for _, part in tiny.parts(config)]
    return any(isinstance(pad_id, int) for pad_id in pad_ids)


def check_rows(small: "SmallModel") -> None:
    """Check which rows of learned tables and of stored sinusoids an input of full length reads."""
    if small.waves:
        check_waves_read(small)
    else:
        check_reserved_rows(small)


def test_a_sliding_window_is_of_all_layers_where_transformers_applies_it_to_all() -> None:
    of_all = set[str]()
    stated = set[str]()
    for model_type in (ENTRIES.keys() - NO_CONFIG).intersection(TYPES):
        tables = [table for table in FAMILIES[model_type].tables if isinstance(table, Rotary)]
        config_class = CONFIG_MAPPING[model_type]
        if not tables or "sliding_window" not in config_class().to_dict():
            continue
        if any(table.rope.windows_all_layers for table in tables):
            stated.add(model_type)
        values = config_class.from_dict({"sliding_window": 16}).to_dict()
        layers = values.get("layer_types") or [SLIDING_LAYERS]
        if values["sliding_window"] == 16 and set(layers) == {SLIDING_LAYERS}:
            of_all.add(model_type)
    assert of_all == stated | OTHER_WINDOWS.keys()


@pytest.mark.parametrize(
    "model_type",
    model_types.parameters((RULES | {"deberta", "deberta-v2", "esm"}) - NO_CONFIG),
)
def test_every_rule_is_planned_as_transformers_applies_it(model_type: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    base = rules.load_config(rules.save(rules.make_config(model_type), source))
    model = None
    for method in methods_of(model_type, source):
        output = resize(source, to=rules.NEW, method=method, output=tmp_path / str(method)).output
        loaded = rules.load_config(rules.read_content(output))
        if model is None:
            model = rules.build(model_type, loaded)
            check_run(model)
        max_len = rules.OLD if method == "dynamic" else rules.NEW
        for scheme in inspect(output).schemes:
            *path, key = scheme.config_key.split(".")
            part = reduce(getattr, path, loaded)
            stated = getattr(reduce(getattr, path, base), key)
            assert scheme.positions == rules.NEW
            assert getattr(part, key) == stated + max_len - rules.OLD
            check_rope(model, part, scheme)


def check_run(model: Any) -> None:
    """Check that a model runs at the new length, if it has weights and reads only text."""
    if model and rules.is_real(model):
        output = rules.run(model, rules.NEW)
        assert output is None or output.isfinite().all()


def methods_of(model_type: str, folder: Path) -> tuple[str | None, ...]:
    """Return the methods to try: those of the type itself, else the one that is chosen."""
    scheme, *others = inspect(folder).schemes
    if others or "." in scheme.config_key or not scheme.layers:
        return (None,)
    kind = scheme.layers[0].parameters["rope_type"]
    if kind != "default":
        return (kind,)
    tables = [table for table in list_families([model_type]) if table.scheme == "rotary"]
    return tables[0].methods or (None,)


def check_rope(model: Any, part: Any, scheme: SchemeReport) -> None:
    """Check the settings that transformers loads, and the frequencies that the model computes."""
    modules = {}
    if model:
        modules = dict(rules.rotary_modules(model, part.model_type))
        assert modules or not scheme.layers, "no module computes angles"
    for layers in scheme.layers:
        if layers.is_local:  # they stay, and some classes compute no angles for them
            continue
        name = layers.layers
        settings = layers.parameters
        loaded = part.rope_parameters
        if name:
            loaded = loaded[name]
        found = {key: loaded.get(key) for key in settings}
        assert found == dict(settings)

        kind = settings["rope_type"]
        wavelengths = layers.wavelengths
        # Models are built with the frequencies of short inputs.
        if kind in ("dynamic", "longrope"):
            wavelengths = layers.unscaled_wavelengths
        expected = torch.from_numpy(2 * math.pi / wavelengths)
        if kind != "default":
            compute = ROPE_INIT_FUNCTIONS[kind]
            initial, _ = compute(part, layer_type=name or None)
            check_angles(initial, expected)
        for module in modules.values():
            buffer = f"{name}_inv_freq".lstrip("_")
            check_angles(type(module)(part).get_buffer(buffer), expected)
            if rules.is_real(model) and module.config is part:
                check_angles(module.get_buffer(buffer), expected)


def check_angles(angles: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare the angles per position of the pairs that rotate."""
    rotated = angles[angles != 0].double()
    torch.testing.assert_close(rotated, expected, rtol=1e-5, atol=0)


def encoder_decoder_parts(encoder: str, decoder: str) -> dict[str, Any]:
    """Return the configs of both parts of a composite."""
    encoder_config = tiny.make_config(encoder).to_dict()
    decoder_config = tiny.make_config(decoder).to_dict()
    decoder_config |= {"is_decoder": True, "add_cross_attention": True}
    return {"encoder": encoder_config, "decoder": decoder_config}


@pytest.mark.parametrize(
    ("composite", "encoder", "decoder"),
    [
        ("encoder-decoder", "roberta", "roberta"),
        ("encoder-decoder", "bert", "gpt2"),
        ("speech-encoder-decoder", "hubert", "mbart"),
        ("vision-encoder-decoder", "vit", "gpt2"),
        ("encoder-decoder", "roformer", "pegasus"),
        ("vision-encoder-decoder", "vit", "ctrl"),
    ],
)
def test_composites_of_any_model_types_are_resized(
    composite: str, encoder: str, decoder: str, tmp_path: Path
) -> None:
    parts = encoder_decoder_parts(encoder, decoder)

    def make_config() -> Any:
        return CONFIG_MAPPING[composite](**copy.deepcopy(parts))

    model_class = tiny.model_classes(composite)[0]
    check_class(make_config, model_class, tmp_path)


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

    base, *others = tiny.model_classes(model_type)
    for model_class in (base, *others[:1]):
        folder = tmp_path / model_class.__name__
        is_base = model_class is base
        how = check_class(make_config, model_class, folder, all_methods=is_base)
        assert how == "by formula"


def test_marian_is_resized_by_formula_if_the_file_contains_its_tables(tmp_path: Path) -> None:
    source = tmp_path / "source"
    output = tmp_path / "output"
    small = SmallModel(tiny.make_config("marian"), MarianMTModel)
    small.model.save_pretrained(source)
    for saved in pico.tensor_bytes(source):
        assert "embed_positions" not in saved
    state = small.model.state_dict()
    tables = {name: state[name].contiguous() for _, name in small.waves}
    pico.add_tensors(source, tables)

    result = resize(source, to=small.new, output=output)
    assert result.plan.method == "formula"
    loaded = pico.Pico(output, small.model_class).load()
    fresh = small.build(small.new)
    for name in tables:
        assert same_table(loaded, fresh, name)


@pytest.mark.parametrize(
    ("encoder", "decoder", "method"), [("bert", "pegasus", "copy"), ("roformer", "bert", "formula")]
)
def test_learned_rows_and_sinusoids_of_one_model_are_resized_by_their_own_methods(
    encoder: str, decoder: str, method: str, tmp_path: Path
) -> None:
    parts = encoder_decoder_parts(encoder, decoder)
    config = CONFIG_MAPPING["encoder-decoder"](**parts)
    small = SmallModel(config, EncoderDecoderModel)
    source = tmp_path / "source"
    output = tmp_path / "output"
    small.model.save_pretrained(source)

    result = resize(source, to=small.new, output=output)
    assert result.plan.method == method  # of the first table
    names = {change.method for change in result.plan.extended}
    assert names == {"copy", "formula"}
    check_verified(output, source)

    loaded = pico.Pico(output, EncoderDecoderModel).load()
    fresh = small.build(small.new)
    ((_, waves),) = small.waves
    assert same_table(loaded, fresh, waves)
    extend_model(small.model, to=small.new)
    check_same_state(small.model, loaded)


@pytest.mark.parametrize(
    ("model_type", "model_class"),
    [
        ("ctrl", None),
        ("fsmt", None),
        ("speecht5", SpeechT5ForSpeechToText),
    ],
)
def test_verify_deep_loads_and_runs_models_with_sinusoids(
    model_type: str, model_class: Any, tmp_path: Path
) -> None:
    config = tiny.make_config(model_type)
    if model_class is None:
        model_class = tiny.model_classes(model_type)[0]
    small = SmallModel(config, model_class)
    source = tmp_path / "source"
    output = tmp_path / "output"
    small.model.save_pretrained(source)
    resize(source, to=small.new, output=output)

    result = verify(output, source, deep=True)
    assert result.passed, failed_checks(result)
    names = {check.name for check in result.checks}
    assert {"loads", "runs"} <= names


def failed_checks(result: Verification) -> list[Check]:
    return [check for check in result.checks if not check.passed]


def check_reserved_rows(small: SmallModel) -> None:
    """Check that an input of full length reads exactly the rows after the reserved ones."""
    read = set()
    for location, name, _, rows in small.readers:
        embedding = small.model.get_submodule(module_of(name))
        padding = getattr(embedding, "padding_idx", None)
        reserved = location.reserved_rows
        first = reserved
        if padding == reserved:
            first += 1  # the row of padding_idx has no gradient
        assert rows[0] == first, (name, rows, reserved)

        last = len(small.model.get_parameter(name)) - 1
        last_read = last - location.extra_rows
        assert last_read <= rows[-1] <= last, (name, rows, last)
        read.add(name)
    expected = {name for _, name in small.found if not name.endswith(NOT_READ)}
    assert not expected - read, "no input reads these"


def module_of(name: str) -> str:
    """Return the name of the module that has a parameter."""
    return name.rpartition(".")[0]


def check_resize(small: SmallModel, extended: Any, folder: Path) -> None:
    """Resize a model's checkpoint with `copy`, and check all guarantees for the result."""
    source = folder / "source"
    output = folder / "output"
    small.model.save_pretrained(source)
    result = resize(source, to=small.new, method="copy", output=output)
    check_verified(output, source)
    found_tables = inspect(output).tables
    for table in found_tables:
        assert table.new_rows
    planned = {table["part"]: table["max_len_after"] for table in to_json(result)["tables"]}
    assert {table.part: table.positions for table in found_tables} == planned

    loaded = pico.Pico(output, small.model_class).load()
    extend_model(extended, to=small.new, method="copy")
    for model in (loaded, extended, small.model):
        pico.realign(model)
    plans = {plan.part: plan for plan in reversed(result.plan.changes)}
    for location, name, reader, _ in small.readers:
        plan = plans[location.part]
        before = plan.max_len_before
        after = plan.max_len_after
        kept = min(plan.rows_before, plan.rows_after)
        kept_rows = loaded.get_parameter(name)[:kept]
        learned_rows = small.model.get_parameter(name)[:kept]
        assert torch.equal(kept_rows, learned_rows)

        # The long input first: a short one switches BigBird to full attention for all later inputs.
        new = reader.run(loaded, after)
        new_extended = reader.run(extended, after)
        assert torch.equal(new_extended, new), f"{name}: resize and extend_model differ"
        short = reader.run(small.model, before)
        short_loaded = reader.run(loaded, before)
        expected, found = overlap(short, short_loaded)
        assert torch.equal(expected, found), f"{name}: outputs at the old length changed"
        check_beyond_the_old_length(small, location, reader, after, new)
    check_same_state(extended, loaded)


def check_verified(output: Path, source: Path) -> None:
    """Check that a result passes `verify`, and that all length limits agree."""
    result = verify(output, source)
    assert result.passed, failed_checks(result)
    disagreeing = [limit for limit in inspect(output).limits if not limit.agrees]
    assert disagreeing == []


def check_beyond_the_old_length(
    small: SmallModel, location: Any, reader: zoo.Reader, length: int, new: torch.Tensor
) -> None:
    """Check that the base fails on longer inputs, or differs if transformers clamps positions."""
    if location.longer_inputs == "share the last position":
        clamped = reader.run(small.model, length)
        expected, found = overlap(clamped, new)
        assert not torch.equal(expected, found)
        return
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        reader.run(small.model, length)
    if location.extra_rows < 2:  # with unused rows, one token more does not fail
        name = next(name for found, name in small.found if found.part == location.part)
        rows = len(small.model.get_parameter(name))
        positions = rows - location.other_rows
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            reader.run(small.model, positions + 1)


def same_table(one: Any, other: Any, name: str) -> bool:
    """Return whether a table is equal in two models, or computed in each forward pass."""
    first = tiny.find_tensor(one, name)
    second = tiny.find_tensor(other, name)
    if first is None or second is None:
        return True
    return torch.equal(first, second)


def check_waves_read(small: SmallModel) -> None:
    """Check that an input of full length reads all rows of sinusoids after the reserved ones."""
    for location, name in small.waves:
        if name not in small.model.state_dict():
            continue
        table = small.model.state_dict()[name]
        reader = small.waves_reader(name)
        first = location.reserved_rows
        last = first + small.old - 1
        reserved = range(first)
        unused = range(last + 1, len(table))
        with zoo.poisoned(table, [*reserved, *unused]):
            assert not reader.run(small.model, small.old).isnan().any(), name
        for row in (first, last):
            with zoo.poisoned(table, [row]):
                assert reader.run(small.model, small.old).isnan().any(), (name, row)


def check_waves_resize(small: SmallModel, folder: Path, *, all_methods: bool) -> str:
    """Resize a model of sinusoids to a longer and a shorter length, and check all guarantees."""
    source = folder / "source"
    small.model.save_pretrained(source)
    saved = pico.tensor_bytes(source)
    stored = [name for _, name in small.waves if name in saved]
    for method, positions in (("formula", small.new), ("truncate", small.old - 3)):
        output = folder / f"output-{positions}"
        result = resize(source, to=positions, output=output)
        assert result.plan.method == method
        planned = {plan.name for plan in result.plan.changes if plan.dtype}
        assert planned == set(stored)
        check_verified(output, source)

        loaded = pico.Pico(output, small.model_class).load()
        pico.realign(loaded)
        extended = pico.realign(copy.deepcopy(small.model))
        extend_model(extended, to=positions)
        check_same_state(extended, loaded)
        check_waves_outputs(small, loaded, extended, positions)
    if stored and all_methods:
        check_fine_tuned(small, stored, folder)
    if stored:
        return "by formula"
    return "by edits only"


def check_waves_outputs(small: SmallModel, loaded: Any, extended: Any, positions: int) -> None:
    """Compare the outputs of a resized checkpoint and model with the base at each table."""
    fresh = small.build(positions)
    kept = min(small.old, positions)
    for location, name in small.waves:
        assert same_table(loaded, fresh, name), f"{name}: other rows than transformers computes"

        reader = small.waves_reader(name)
        short = reader.run(small.model, kept)
        short_loaded = reader.run(loaded, kept)
        expected, found = overlap(short, short_loaded)
        assert torch.equal(expected, found), f"{name}: outputs at old lengths changed"

        long_loaded = reader.run(loaded, positions)
        long_extended = reader.run(extended, positions)
        assert torch.equal(long_loaded, long_extended)

        check_beyond(copy.deepcopy(small.model), location, name, reader, small.old)
        check_beyond(copy.deepcopy(loaded), location, name, reader, positions)


def check_beyond(model: Any, location: Any, name: str, reader: zoo.Reader, length: int) -> None:
    """Check that a model of sinusoids reads inputs of its length, and grows or fails beyond."""
    table = tiny.find_tensor(model, name)
    assert reader.run(model, length).isfinite().all()
    same = tiny.find_tensor(model, name)
    assert same is table, f"{name}: an input of {length} tokens does not fit"
    if location.longer_inputs == "get computed rows":
        assert reader.run(model, length + 1).isfinite().all()
    elif re.search(ONE_CALL, f"{model.config.model_type} {name}"):
        embed = model.get_submodule(module_of(name))
        token = torch.full((1, 1), 10)
        with pytest.raises(IndexError):
            embed(token, length + 2)  # the second argument is the length of the cache
    else:
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            reader.run(model, length + 1)


def check_fine_tuned(small: SmallModel, names: list[str], folder: Path) -> None:
    """Check that tables that deviate from their formula are learned tables for all methods."""
    model = copy.deepcopy(small.model)
    for name in names:
        table = tiny.find_tensor(model, name)
        assert table is not None
        generator = torch.Generator().manual_seed(1)
        table.data += 0.1 * torch.randn(table.shape, generator=generator)

    for method in METHODS:
        extended = copy.deepcopy(model)
        if method == "formula":
            with pytest.raises(ResizeError, match="the table does not equal"):
                extend_model(extended, to=small.new, method=method)
            continue
        settings = pico.resize_settings(method)
        extend_model(extended, to=small.new, **settings)
        for name in names:
            table = tiny.find_tensor(extended, name)
            assert table is not None, method
            assert table.isfinite().all(), method

    source = folder / "tuned"
    output = folder / "tuned-output"
    model.save_pretrained(source)
    result = resize(source, to=small.new, output=output)
    assert result.plan.method == "copy"
    check_verified(output, source)
    loaded = pico.Pico(output, small.model_class).load()
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
    for name, value in expected.items():
        assert torch.equal(found[name], value)

    buffers = dict(extended.named_buffers())
    for name, value in loaded.named_buffers():
        assert torch.equal(buffers[name], value), name
        assert buffers[name].dtype == value.dtype, name


def overlap(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Crop two outputs to a common shape: some have the size of the table, not of the input."""
    sizes = zip(one.shape, other.shape, strict=True)
    common = tuple(slice(min(pair)) for pair in sizes)
    return one[common], other[common]
