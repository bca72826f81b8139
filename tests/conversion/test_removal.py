"""Rotary models whose positions are removed: what they compute, and what every command says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxextend import convert, extend_model, inspect, resize, train, verify
from ctxextend.errors import MethodError, ResizeError, UnsupportedModelError
from tests.helpers import pico
from tests.helpers.json_schemas import check
from tests.helpers.pico import logits
from tests.helpers.rotary_models import OLD, make
from tests.helpers.trainings import invoke, write_book

NEW = 64
KEYS: dict[str, Any] = {
    "max_position_embeddings": OLD,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
}
GEMMA: dict[str, Any] = KEYS | {
    "head_dim": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
# Its classes apply `proportional`, and not `linear`.
LFM3: dict[str, Any] = GEMMA | {"pad_token_id": 0}
NEOX: dict[str, Any] = {"max_position_embeddings": OLD, "num_hidden_layers": 2}
THETA = {"rope_theta": 10_000.0}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": OLD // 2,
    "attention_factor": 1.3,
}
TURNS_NOTHING = {"rope_type": "linear", "factor": 1e12, **THETA}


def without_rotation(model: Any) -> Any:
    """Make all modules that compute angles return those of position 0."""

    def at_start(module: Any, arguments: Any, output: Any) -> Any:
        cosines, sines = output
        return torch.ones_like(cosines), torch.zeros_like(sines)

    for name, module in model.named_modules():
        if name.endswith("rotary_emb"):
            module.register_forward_hook(at_start)
    return model


def scrambled(model: Any, length: int) -> torch.Tensor:
    """Return a model's output for the input of `logits`, with positions in another order."""
    tokens = 5 + torch.arange(length).unsqueeze(0) % 20
    positions = torch.arange(length).flip(0).unsqueeze(0) * 7
    with torch.no_grad():
        output: torch.Tensor = model(input_ids=tokens, position_ids=positions).logits
    return output


@pytest.mark.parametrize(
    ("model_type", "changes", "rope_type"),
    [
        ("llama", KEYS, "linear"),
        ("llama", KEYS | {"rope_parameters": YARN | THETA}, "linear"),
        ("gemma3_text", GEMMA, "linear"),
        ("lfm3", LFM3, "proportional"),
        ("gpt_neox", NEOX, "linear"),
    ],
)
def test_convert_gives_what_the_base_computes_without_rotation(
    model_type: str, changes: dict[str, Any], rope_type: str
) -> None:
    source = make(model_type, **changes)
    output = convert(source.folder, "none").output
    converted = source.load(output)
    base = source.load()
    assert not torch.equal(scrambled(base, OLD), logits(base, OLD))
    assert torch.equal(logits(converted, OLD), logits(without_rotation(base), OLD))
    assert torch.equal(scrambled(converted, OLD), logits(converted, OLD))
    assert pico.tensor_bytes(output) == pico.tensor_bytes(source.folder)
    settings = converted.config.rope_parameters
    stated = settings.get("full_attention", settings)
    assert stated["rope_type"] == rope_type
    assert not {"attention_factor", "long_factor"} & stated.keys()


def test_convert_of_an_old_config_removes_positions_of_local_layers_too() -> None:
    source = make("gemma3_text", **GEMMA)
    path = source.folder / "config.json"
    pico.edit_json(path, rope_parameters=None, rope_theta=1e6, rope_local_base_freq=1e4)
    done = invoke("convert", "gemma3_text", "--scheme", "none")
    assert done.exit_code == 0
    assert "Rotary settings are stated only as rope_parameters" in done.stderr
    settings = pico.config_of("gemma3_text-none-16")["rope_parameters"]
    for layers in ("full_attention", "sliding_attention"):
        assert settings[layers]["factor"] == 1e12
    assert verify("gemma3_text-none-16", deep=True)


def test_convert_keeps_the_length_or_raises_its_limits() -> None:
    make(**KEYS)
    kept = convert("llama", "none").output
    assert kept.name == "llama-none-16"
    assert pico.config_of(kept)["max_position_embeddings"] == OLD
    assert pico.recipe_of(kept)["convert"] == {"scheme": "none", "to": OLD}
    longer = convert("llama", "none", "4x").output
    config = pico.config_of(longer)
    assert config["max_position_embeddings"] == NEW
    assert config["original_max_position_embeddings"] == OLD
    tokenizer = pico.read_json(longer / "tokenizer_config.json")
    assert tokenizer["model_max_length"] == NEW
    with pytest.raises(ResizeError, match="cannot make that 8"):
        convert("llama", "none", 8)


def test_inspect_and_resize_know_a_model_without_positions() -> None:
    source = make(**KEYS)
    output = convert("llama", "none").output
    report = inspect(output).schemes[0]
    assert report.scheme == "none"
    assert report.first_trained == report.positions == OLD
    done = invoke("inspect", output)
    assert "16 positions (none), all files agree." in done.stdout

    resized = resize(output, NEW).output
    edits = {key for key, value in pico.config_of(resized).items() if value == NEW}
    assert edits == {"max_position_embeddings"}
    assert inspect(resized).schemes[0].first_trained == OLD
    expected = logits(without_rotation(source.load()), NEW)
    assert torch.equal(logits(source.load(resized), NEW), expected)
    result = verify(resized, deep=True)
    assert result.conclusion.endswith("only in its length limits.")
    loaded = source.load(output)
    extend_model(loaded, NEW)
    assert torch.equal(logits(loaded, NEW), expected)
    with pytest.raises(MethodError, match="does not apply to a model without positions"):
        resize(output, NEW, "yarn")
    with pytest.raises(ResizeError, match="it has no positions, so 8 need no change"):
        resize(output, 8)


def test_verify_compares_a_model_without_positions() -> None:
    make(**KEYS)
    output = convert("llama", "none", verify=True).output
    result = verify(output, deep=True)
    assert result.conclusion.endswith("only in its rotary settings and length limits.")
    checks = {check.name: check for check in result.checks}
    assert checks["table"].evidence == ("rope_parameters: settings of none",)
    config = pico.config_of(output)
    assert config["rope_scaling"]["type"] == config["rope_parameters"]["rope_type"] == "linear"
    frequencies = "model.rotary_emb.inv_freq equals the frequencies of the rotary settings"
    assert frequencies in checks["loads"].evidence
    assert invoke("inspect", output, "--check").exit_code == 0


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"factor": 4.0}, "factor is 4.0, expected 1000000000000.0"),
    ],
)
def test_verify_finds_positions_that_came_back(changes: dict[str, Any], difference: str) -> None:
    make(**KEYS)
    convert("llama", "none", output="out")
    settings = TURNS_NOTHING | changes
    scaling = settings | {"type": settings["rope_type"]}
    path = Path("out/config.json")
    pico.edit_json(path, rope_parameters=settings, rope_scaling=scaling)
    done = invoke("verify", "out")
    assert done.exit_code == 3
    assert f"FAILED  table    rope_parameters: {difference}\n" in done.stdout


def test_train_recalibrates_a_model_without_positions_at_its_own_length() -> None:
    make(**KEYS)
    write_book()
    convert("llama", "none", output="out")
    settings: dict[str, Any] = {"batch_size": 2, "window": OLD, "save": "last"}
    train("out", "book.txt", 2, output="trained", **settings)
    report = inspect("trained").schemes[0]
    assert (report.scheme, report.first_trained) == ("none", OLD)
    checks = {check.name: check for check in verify("trained").checks}
    assert [name for name, check in checks.items() if not check.passed] == ["tensors"]


def test_convert_json_has_the_values_of_all_conversions() -> None:
    make(**KEYS)
    done = invoke("convert", "llama", "--scheme", "none", "--json")
    values = json.loads(done.stdout)
    check(values, "convert")
    assert values["convert"] == {"scheme": "none", "to": 16}
    assert values["model_type"] == "llama"
    assert values["tensors"] == {"copied": 21}
    outcomes = {item["name"]: item["outcome"] for item in values["runtimes"]}
    assert outcomes["vLLM"] == outcomes["SGLang"] == "refuses"
    assert outcomes["llama.cpp"] == "serves"
    card = Path("llama-none-16/README.md").read_text()
    assert "## Converted to no positions, 16 tokens" in card
    assert "Not yet trained at 16." in card


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("gptj", {"rotary_dim": 4}, "gptj models apply no rotary settings in transformers"),
        ("phi3", KEYS | {"pad_token_id": 0}, "phi3 models apply only theta"),
    ],
)
def test_convert_refuses_classes_that_cannot_stop_the_rotation(
    model_type: str, changes: dict[str, Any], message: str
) -> None:
    make(model_type, **changes)
    with pytest.raises(MethodError, match=message):
        convert(model_type, "none")


def test_convert_refuses_positions_that_are_not_rotary(
    make_pico: Callable[..., pico.Pico],
) -> None:
    learned = make_pico("gpt2").folder
    with pytest.raises(UnsupportedModelError, match="its positions are learned"):
        convert(learned, "none")
    make("falcon", alibi=True, num_hidden_layers=1, max_position_embeddings=OLD)
    with pytest.raises(UnsupportedModelError, match="its positions are ALiBi"):
        convert("falcon", "none")
    make(**KEYS)
    output = convert("llama", "none").output
    with pytest.raises(UnsupportedModelError, match="has no positions already"):
        convert(output, "none")


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        (
            "gemma3_text",
            GEMMA | {"use_bidirectional_attention": True},
            "with use_bidirectional_attention true has no causal mask",
        ),
        ("llama", KEYS | {"is_causal": False}, "a model with is_causal false has no causal mask"),
    ],
)
def test_convert_refuses_configs_that_remove_the_causal_mask(
    model_type: str, changes: dict[str, Any], reason: str
) -> None:
    make(model_type, **changes)
    with pytest.raises(UnsupportedModelError, match=reason):
        convert(model_type, "none")
