"""The default method `auto`: its choice depends on the checkpoint, and is the same for files and
loaded models.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from ctxextend import extend_model, plan_resize, resize
from tests.helpers import pico

ROWS, NEW = 48, 100
Make = Callable[[Path], Path]


def model(model_type: str, **settings: Any) -> Make:
    length = "n_positions" if model_type == "gpt2" else "max_position_embeddings"
    return lambda folder: pico.make(folder, model_type, **{length: ROWS, **settings}).folder


def encoder(folder: Path) -> Path:
    return pico.nest_in_module(model("bert")(folder), folder.with_name("sentence"))


def without_class(make: Make) -> Make:
    def edited(folder: Path) -> Path:
        pico.edit_json(make(folder) / "config.json", architectures=None)
        return folder

    return edited


def sinusoids(folder: Path) -> Path:
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "dim": 8,
        "hidden_dim": 16,
        "n_layers": 1,
        "n_heads": 2,
    }
    config = transformers.DistilBertConfig(
        max_position_embeddings=ROWS, sinusoidal_pos_embds=True, **sizes
    )
    transformers.DistilBertForMaskedLM(config).save_pretrained(folder)
    return folder


def two_tables(folder: Path) -> Path:
    config = json.loads((pico.make_led(folder, ROWS, 16) / "config.json").read_text())
    transformers.LEDForConditionalGeneration(transformers.LEDConfig(**config)).save_pretrained(
        folder
    )
    return folder


FEW = "auto chose copy, which keeps the learned rows: 16 rows are too few to judge"
CASES: dict[str, tuple[Make, list[str], str]] = {
    "causal": (model("gpt2"), ["bands"], "auto chose bands with"),
    "masked, reserved rows": (model("roberta"), ["bands"], "auto chose bands with"),
    "few rows": (model("gpt2", n_positions=16), ["copy"], FEW),
    "no head": (model("bert", base=True), ["copy"], "the learned rows: BertModel has no LM head"),
    "no class": (without_class(model("bert")), ["bands"], "auto chose bands with"),
    "no class, no head": (
        without_class(model("bert", base=True)),
        ["copy"],
        "config.json states no model class",
    ),
    "sentence encoder": (
        encoder,
        ["copy"],
        "it is a sentence encoder, and copies retrieve best on long texts",
    ),
    "sinusoids": (sinusoids, ["formula"], "its sinusoids continue (layout interleaved)"),
    "two tables": (two_tables, ["bands", "copy"], FEW),
}


@pytest.mark.parametrize("case", CASES)
def test_resize_chooses_a_method_for_the_checkpoint(case: str, tmp_path: Path) -> None:
    make, methods, reason = CASES[case]
    torch.manual_seed(0)
    source = make(tmp_path / "source")
    result = resize(source, NEW, output=tmp_path / "out")
    plan = result.plan
    explanation = result.planned.explanation
    assert [text.partition(":")[0] for text in plan.methods.values()] == methods
    assert reason in result.choices[-1]
    assert plan_resize(source, NEW, "auto").plan.methods == plan.methods
    keeps = methods != ["bands"] and len(methods) == 1
    assert ("identical outputs" in explanation.effects) == plan.keeps_learned_rows == keeps
    assert bool(explanation.keep_hint) != keeps
    stated = plan.checkpoint.model_class
    if stated and case != "sentence encoder":
        loaded = getattr(transformers, stated).from_pretrained(source)
        extend_model(loaded, NEW)
        rows = load_file(tmp_path / "out" / "model.safetensors")
        assert all(torch.equal(loaded.state_dict()[name], rows[name]) for name in plan.methods)


def test_resize_says_how_to_keep_outputs_for_short_inputs(tmp_path: Path) -> None:
    source = model("gpt2")(tmp_path / "source")
    hint = f"To keep outputs for short inputs, use --keep-first {ROWS}, or --method copy, which is "
    hint += "mostly worse for long ones."
    assert (
        plan_resize(source, NEW).explanation.keep_hint
        == plan_resize(source, NEW, keep_first=1).explanation.keep_hint
        == hint
    )
    for settings in ({"keep_first": ROWS}, {"method": "linear"}, {"method": "copy"}):
        assert not plan_resize(source, NEW, **settings).explanation.keep_hint
    led = plan_resize(two_tables(tmp_path / "led"), NEW)
    assert (
        led.explanation.keep_hint
        == "To keep outputs for short inputs, use --method copy, which is mostly worse for long "
        "ones."
    )
