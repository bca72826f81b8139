"""Resizes that multiply query projections: values, settings, what is said, and refusals."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file

from ctxextend import (
    CtxextendError,
    ResizeError,
    UnsupportedModelError,
    extend_model,
    plan_resize,
    resize,
    run,
)
from ctxextend.comparison.in_memory import open_resizer
from ctxextend.evaluation.eval_model import open_eval_model
from ctxextend.output.output import Output
from ctxextend.plan.plan import with_settings
from ctxextend.recipe import CheckpointRef
from tests.helpers import gguf_files, pico, rotary_models
from tests.helpers.position_tables import TWO_BANDS
from tests.helpers.trainings import invoke, succeed, unwrapped
from tests.helpers.verifications import rewrite
from tests.helpers.word_tokenizer import add_tokenizer

OLD, NEW = 128, 512
WIDTH = 16
AUTO = (1 + 0.1 * math.log(4)) ** 2
YARN = "yarn:attention-factor=1"
QUERIES = "transformer.h.0.attn.c_attn.weight"


def make_gpt2(folder: Path, *, is_smooth: bool = False, dtype: Any = torch.float32) -> Path:
    """Save a GPT-2 whose table has a slow curve and, unless it is smooth, waves."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_positions=OLD, n_embd=WIDTH, n_layer=2, n_head=2, vocab_size=32
    )
    model = transformers.GPT2LMHeadModel(config)
    rows = TWO_BANDS
    if is_smooth:
        rows = np.linspace(0, 1, OLD)[:, None] * np.ones((1, WIDTH))
    with torch.no_grad():
        model.transformer.wpe.weight.copy_(torch.tensor(rows))
        for name, value in model.named_parameters():
            if name.endswith("c_attn.bias"):
                value.normal_()
    model.to(dtype).save_pretrained(folder)
    return folder


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def recorded_scale(folder: Path) -> Any:
    return yaml.safe_load((folder / "ctxextend.yaml").read_text())["resize"]["query_scale"]


# ---- values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_resize_multiplies_queries_in_float64_and_casts_once(dtype: Any, tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base", dtype=dtype)
    resize(source, NEW, "bands", query_scale=1.3, output=tmp_path / "scaled", verify=True)
    resize(source, NEW, "bands", output=tmp_path / "plain")
    plain = tensors(tmp_path / "plain")
    scaled = tensors(tmp_path / "scaled")
    assert plain.keys() == scaled.keys()
    changed = {name for name in plain if not torch.equal(plain[name], scaled[name])}
    assert changed == {name for name in plain if ".c_attn." in name}
    for name in changed:
        before = plain[name].clone()
        before[..., :WIDTH] = (before[..., :WIDTH].double() * 1.3).float().to(dtype)
        assert torch.equal(scaled[name], before)


def test_auto_is_the_temperature_of_yarn(tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base")
    result = resize(source, "4x", query_scale="auto", output=tmp_path / "longer")
    assert result.plan.settings.query_scale == pytest.approx(AUTO, rel=1e-15)
    assert recorded_scale(tmp_path / "longer") == result.plan.settings.query_scale


@pytest.mark.parametrize("method", ["bands", "copy"])
def test_auto_is_1_without_a_high_frequency_part_with_any_method(
    method: str, tmp_path: Path
) -> None:
    source = make_gpt2(tmp_path / "base", is_smooth=True)
    result = resize(source, NEW, method, query_scale="auto", output=tmp_path / "longer")
    notes = " ".join(result.planned.explanation.notes)
    assert "--query-scale auto is 1: bands finds no high-frequency part" in notes
    assert recorded_scale(tmp_path / "longer") == 1
    before, after = tensors(source), tensors(tmp_path / "longer")
    assert torch.equal(before[QUERIES], after[QUERIES])


def test_a_number_applies_without_a_high_frequency_part(tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base", is_smooth=True)
    plan = plan_resize(source, NEW, query_scale="1.5").plan
    assert len(plan.scaled_tensors) == 4


def test_auto_of_rotary_models_counts_from_the_first_trained_length(tmp_path: Path) -> None:
    source = rotary_models.make("llama", str(tmp_path / "base"), max_position_embeddings=64).folder
    first = resize(source, 128, YARN, output=tmp_path / "first")
    again = plan_resize(first.output, 256, YARN, query_scale="auto").plan
    assert again.settings.query_scale == pytest.approx(AUTO, rel=1e-15)


def test_scaled_weights_are_computed_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of them together can be larger than the memory."""
    planned = plan_resize(make_gpt2(tmp_path / "base"), NEW, query_scale=1.3)
    assert isinstance(planned.output, Output)
    read = list[str]()
    weights = type(planned.plan.checkpoint.weights)
    read_floats = weights.read_floats

    def reading(self: Any, name: str) -> Any:
        read.append(name)
        return read_floats(self, name)

    monkeypatch.setattr(weights, "read_floats", reading)
    new = planned.output.compute(tmp_path / "output")
    assert not any("c_attn" in name for name in read)
    new.tensor(QUERIES)
    assert read[-1] == QUERIES


def test_shards_get_their_own_scaled_weights(tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base")
    model = transformers.GPT2LMHeadModel.from_pretrained(source)
    model.save_pretrained(tmp_path / "shards", max_shard_size="8kB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    for name in ("base", "shards"):
        resize(tmp_path / name, NEW, query_scale=1.3, output=tmp_path / f"{name}-new", verify=True)
    expected = tensors(tmp_path / "base-new")
    found = dict[str, torch.Tensor]()
    for file in (tmp_path / "shards-new").glob("*.safetensors"):
        found |= load_file(file)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_cross_attention_and_other_parts_stay(tmp_path: Path) -> None:
    source = pico.make_bart(tmp_path / "bart")
    plan = plan_resize(source, 64, "linear", query_scale=2).plan
    names = [tensor.name for tensor in plan.scaled_tensors]
    assert len(names) == 8
    assert plan.query_scale is not None
    assert plan.query_scale.layers == 4
    assert all(".self_attn.q_proj." in name for name in names)


# ---- in memory


@pytest.mark.parametrize("scale", ["auto", 1.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extend_model_equals_the_file_bit_for_bit(
    dtype: Any, scale: str | float, tmp_path: Path
) -> None:
    source = make_gpt2(tmp_path / "base", dtype=dtype)
    resize(source, NEW, query_scale=scale, output=tmp_path / "longer")
    model = transformers.GPT2LMHeadModel.from_pretrained(source, dtype=dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ResizeError):
        extend_model(model, OLD // 2, query_scale=scale)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    extend_model(model, NEW, query_scale=scale)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "longer", dtype=dtype)
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_plans_in_memory_scale_their_queries_and_no_others(tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base")
    add_tokenizer(source, special_tokens=False, max_len=OLD)
    planned = plan_resize(source, NEW, "bands", query_scale=1.3)
    plain = plan_resize(source, NEW, "linear").plan
    base = open_eval_model(CheckpointRef(str(source)), "fp32")
    own = {name: value.clone() for name, value in base.model.state_dict().items()}
    planned.execute(tmp_path / "scaled")
    expected = tensors(tmp_path / "scaled")
    resizer = open_resizer(base, planned.plan)

    def check(scaled: bool) -> None:
        weights = resizer.model.model.state_dict()
        for name in expected:
            if ".c_attn." in name:
                assert torch.equal(weights[name], (expected if scaled else own)[name])

    check(scaled=True)
    resizer.set_positions(planned.plan)
    check(scaled=True)
    resizer.set_positions(plain)
    check(scaled=False)
    resizer.set_positions(with_settings(planned.plan, planned.plan.settings))
    check(scaled=True)
    resizer.set_reference_rows(plain)
    check(scaled=False)
    assert all(torch.equal(value, own[name]) for name, value in base.model.state_dict().items())


# ---- provenance


def test_run_replays_a_query_scale(tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base")
    resize(source, NEW, query_scale="auto", output=tmp_path / "first")
    run(tmp_path / "first" / "ctxextend.yaml", output=tmp_path / "second")
    files = [tmp_path / name / "model.safetensors" for name in ("first", "second")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_second_scale_multiplies_again_and_a_plain_resize_keeps_it(tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base")
    resize(source, NEW, query_scale=2, output=tmp_path / "first")
    again = resize(
        tmp_path / "first", 2 * NEW, query_scale=4, output=tmp_path / "second", verify=True
    )
    resize(tmp_path / "second", 4 * NEW, output=tmp_path / "third", verify=True)
    before = tensors(source)[QUERIES]
    for name, factor in (("first", 2), ("second", 8), ("third", 8)):
        assert torch.equal(tensors(tmp_path / name)[QUERIES][:, :WIDTH], before[:, :WIDTH] * factor)
    assert any("multiplies them again" in warning for warning in again.warnings)


# ---- what is said


def test_screen_card_and_json_state_the_scale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    make_gpt2(Path("base"))
    command = ("resize", "base", "--to", NEW, "--query-scale", 1.25)
    screen = unwrapped(succeed(*command, "-o", "longer").output)
    stated = (
        "Query projections of 2 layers are multiplied by 1.25, so outputs for short inputs change"
    )
    assert stated in screen
    card = Path("longer/README.md").read_text()
    assert stated in card
    assert "`transformer.h.*.attn.c_attn.weight`" in card
    plan = succeed(*command, "--dry-run").output
    assert "projections of 2 layers multiplied by 1.25" in unwrapped(plan)
    values = json.loads(succeed(*command, "--dry-run", "--json").stdout)["query_scale"]
    assert values["factor"] == 1.25
    assert values["layers"] == 2
    assert QUERIES in values["tensors"]


def test_rotary_weights_that_change_are_said_to_change(tmp_path: Path) -> None:
    source = rotary_models.make("llama", str(tmp_path / "base"), max_position_embeddings=64).folder
    for method in (YARN, "switch"):
        result = resize(
            source, 256, method, query_scale="auto", output=tmp_path / method[:4], verify=True
        )
        assert "so outputs for short inputs change" in result.planned.explanation.effects
        card = (result.output / "README.md").read_text()
        assert "All weights are the same" not in card
        assert "identical outputs" not in card


# ---- refusals


@pytest.mark.parametrize("scale", ["0", "-1", "nan", "inf", "much", "", "1e999"])
def test_an_invalid_scale_is_a_usage_error(scale: str) -> None:
    result = invoke("resize", "tiny-gpt2", "--to", 256, "--query-scale", scale)
    assert result.exit_code == 2
    assert "--query-scale must be auto or a number above 0" in unwrapped(result.output)


@pytest.mark.parametrize("scale", [0, -1.5, math.nan, True, "much", [1]])
def test_an_invalid_scale_is_an_error_in_python(scale: Any) -> None:
    with pytest.raises(ResizeError, match="--query-scale must be auto or a number above 0"):
        plan_resize("tiny-gpt2", 256, query_scale=scale)


@pytest.mark.parametrize("value", ["[1]", "true", "much"])
def test_an_invalid_scale_in_a_recipe_is_an_error(value: str, tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"source: tiny-gpt2\nresize:\n  to: 256\n  query_scale: {value}\n")
    with pytest.raises(CtxextendError, match="query.scale must be auto or a number"):
        run(recipe, output=tmp_path / "longer")


def test_a_recipe_takes_an_integer(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("source: tiny-gpt2\nresize:\n  to: 256\n  query_scale: 2\n")
    run(recipe, output=tmp_path / "longer")
    assert recorded_scale(tmp_path / "longer") == 2


@pytest.mark.parametrize("to", [64, 128])
def test_a_length_that_is_not_longer_is_refused(to: int) -> None:
    with pytest.raises(ResizeError, match="no table gets longer"):
        plan_resize("tiny-gpt2", to, query_scale="auto")


def test_edit_only_is_refused(tmp_path: Path) -> None:
    source = rotary_models.make("llama", str(tmp_path / "base"), max_position_embeddings=64).folder
    with pytest.raises(ResizeError, match="--edit-only writes no weights"):
        resize(source, 256, YARN, query_scale="auto", edit_only=True)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (None, "same as the attention factor of --method yarn"),
        ("yarn", "same as the attention factor of --method yarn"),
        ("yarn:attention-factor=1.1", "same as the attention factor of --method yarn"),
        ("switch:mscale=1.2", "same as the attention factor of --method switch"),
        ("linear", "does not apply to --method linear"),
        ("dynamic", "does not apply to --method dynamic"),
        ("limits", "does not apply to --method limits"),
    ],
)
def test_rotary_methods_that_scale_attention_or_were_not_measured_are_refused(
    method: str | None, message: str, tmp_path: Path
) -> None:
    source = rotary_models.make("llama", str(tmp_path / "base"), max_position_embeddings=64).folder
    with pytest.raises(ResizeError, match=message) as raised:
        plan_resize(source, 256, method, query_scale=1.2)
    if method != "switch:mscale=1.2":
        assert "--method yarn:attention-factor=1" in str(raised.value)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("qwen3", {}, "model type qwen3: its queries are normalised after the projection"),
        ("stablelm", {"qk_layernorm": True}, "with qk_layernorm: the model normalises queries"),
        ("gpt_oss", {}, "not known for model type gpt_oss"),
    ],
)
def test_rotary_model_types_without_a_rule_are_refused_by_name(
    model_type: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = transformers.AutoConfig.for_model(model_type, max_position_embeddings=64, **changes)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0}
    content = {**config.to_dict(), "model_type": model_type}
    source = rotary_models.make("llama", str(tmp_path / "base"), max_position_embeddings=64).folder
    (source / "config.json").write_text(json.dumps(content, default=str))
    with pytest.raises(UnsupportedModelError, match=message) as raised:
        plan_resize(source, 256, YARN, query_scale="auto")
    assert "Resize without --query-scale" in str(raised.value)


def test_alibi_and_computed_sinusoids_are_refused(tmp_path: Path) -> None:
    for model_type, reason in (("bloom", "ALiBi positions"), ("ctrl", "transformers computes")):
        sizes = {"vocab_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 16, "hidden_size": 16}
        config = transformers.AutoConfig.for_model(model_type, dff=16, **sizes)
        model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        model.save_pretrained(tmp_path / model_type)
        with pytest.raises(ResizeError, match=reason):
            plan_resize(tmp_path / model_type, 4096, query_scale=1.2)


def test_a_named_table_is_refused(tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base")
    with pytest.raises(ResizeError, match="--query-scale cannot be used with --tensor"):
        plan_resize(
            source,
            NEW,
            tensor="transformer.wpe.weight",
            config_key="n_positions",
            query_scale=1.2,
        )


def test_a_gguf_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write_gguf(file)
    with pytest.raises(ResizeError, match="--query-scale does not apply to a GGUF file"):
        plan_resize(file, "4x", query_scale=1.2)


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model = transformers.GPT2LMHeadModel.from_pretrained(make_gpt2(tmp_path / "base"))
    lora = LoraConfig(r=1, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["wpe"])
    get_peft_model(model, lora).save_pretrained(str(tmp_path / "adapter"))
    with pytest.raises(ResizeError, match="this is an adapter"):
        plan_resize(tmp_path / "adapter", NEW, model_type="gpt2", query_scale=1.2)


def as_integers(values: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    values[QUERIES] = values[QUERIES].to(torch.int8)


def with_quantised_config(values: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}


def without_queries(values: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    for name in [name for name in values if "c_attn" in name]:
        del values[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (as_integers, "is quantised"),
        (with_quantised_config, "are quantised"),
        (without_queries, "has no query projections"),
    ],
)
def test_quantised_or_missing_projections_are_an_error(
    change: Callable[..., None], message: str, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    source = make_gpt2(tmp_path / "base")
    values = tensors(source)
    config = json.loads((source / "config.json").read_text())
    change(values, config)
    save_file(values, source / "model.safetensors", metadata={"format": "pt"})
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ResizeError, match=message):
        plan_resize(source, NEW, query_scale=1.2)


def test_values_that_overflow_are_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base", dtype=torch.float16)
    with pytest.raises(ResizeError, match="overflows float16 to infinity"):
        resize(source, NEW, query_scale=1e9, output=tmp_path / "longer")
    assert not (tmp_path / "longer").exists()
    model = transformers.GPT2LMHeadModel.from_pretrained(source, dtype=torch.float16)
    with pytest.raises(ResizeError, match="overflows"):
        extend_model(model, NEW, query_scale=1e9)
    assert model.config.n_positions == OLD


@pytest.mark.parametrize("method", ["bands", "copy"])
def test_auto_of_a_table_with_nan_is_a_number(method: str, tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base")
    rewrite(source, "transformer.wpe.weight", with_nan)
    result = resize(source, NEW, method, query_scale="auto", output=tmp_path / "longer")
    assert isinstance(result.plan.settings.query_scale, float)


def with_nan(table: torch.Tensor) -> torch.Tensor:
    table[50] = torch.nan
    return table


def test_pickled_weights_get_scaled_queries(tmp_path: Path) -> None:
    source = make_gpt2(tmp_path / "base")
    resize(source, NEW, query_scale=1.3, output=tmp_path / "expected")
    torch.save(tensors(source), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    resize(source, NEW, query_scale=1.3, output=tmp_path / "found", verify=True)
    expected = tensors(tmp_path / "expected")
    found = tensors(tmp_path / "found")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
