"""The default method `auto` chooses by the checkpoint, alike for files and loaded models."""

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
from tests.helpers.notes import text_of

ROWS = 48
NEW = 100
Make = Callable[[Path], Path]


def model(model_type: str, **settings: Any) -> Make:
    """Return a function that makes a model of this type with a table of `ROWS` rows."""
    length = "max_position_embeddings"
    if model_type == "gpt2":
        length = "n_positions"

    def make(folder: Path) -> Path:
        return pico.make(folder, model_type, **{length: ROWS, **settings}).folder

    return make


def encoder(folder: Path) -> Path:
    transformer = model("bert")(folder)
    return pico.nest_in_module(transformer, folder.with_name("sentence"))


def sinusoids(folder: Path) -> Path:
    config = transformers.DistilBertConfig(
        max_position_embeddings=ROWS,
        sinusoidal_pos_embds=True,
        vocab_size=32,
        dim=8,
        hidden_dim=16,
        n_layers=1,
        n_heads=2,
    )
    transformers.DistilBertForMaskedLM(config).save_pretrained(folder)
    return folder


def two_tables(folder: Path) -> Path:
    source = pico.make_led(folder, ROWS, 16)
    settings = json.loads((source / "config.json").read_text())
    config = transformers.LEDConfig(**settings)
    transformers.LEDForConditionalGeneration(config).save_pretrained(folder)
    return folder


def make_case(case: str, folder: Path) -> Path:
    make, _, _ = CASES[case]
    torch.manual_seed(0)
    return make(folder)


FEW = "auto chose copy, which keeps the learned rows: 16 rows are too few to judge"
CASES: dict[str, tuple[Make, list[str], str]] = {
    "causal": (model("gpt2"), ["bands"], "auto chose bands with"),
    "masked, reserved rows": (model("roberta"), ["bands"], "auto chose bands with"),
    "few rows": (model("gpt2", n_positions=16), ["copy"], FEW),
    "no head": (model("bert", base=True), ["copy"], "the learned rows: BertModel has no LM head"),
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
    _, methods, reason = CASES[case]
    source = make_case(case, tmp_path / "source")

    result = resize(source, NEW, output=tmp_path / "out")

    plan = result.plan
    chosen = [text.partition(":")[0] for text in plan.methods.values()]
    assert chosen == methods
    assert reason in text_of(result, "method")
    assert plan_resize(source, NEW, "auto").plan.methods == plan.methods


# Cases that transformers loads by the class that config.json states.
LOADABLE = ["causal", "masked, reserved rows", "few rows", "no head", "sinusoids", "two tables"]


@pytest.mark.parametrize("case", LOADABLE)
def test_extend_model_chooses_the_same_rows_as_resize(case: str, tmp_path: Path) -> None:
    source = make_case(case, tmp_path / "source")
    plan = resize(source, NEW, output=tmp_path / "out").plan
    stated = plan.checkpoint.model_class
    assert stated is not None

    loaded = getattr(transformers, stated).from_pretrained(source)
    extend_model(loaded, NEW)

    in_memory = loaded.state_dict()
    in_file = load_file(tmp_path / "out" / "model.safetensors")
    for name in plan.methods:
        assert torch.equal(in_memory[name], in_file[name])
