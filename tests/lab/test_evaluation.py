"""End-to-end tests of `evaluate`, on the bundled checkpoint and on pico models."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
import transformers
from ctxextend.lab.evaluation_result import MODEL, SLIDING, TRUNCATED
from typer.testing import CliRunner, Result

import ctxextend
from ctxextend.cli.app import build_app
from ctxextend.errors import CheckpointError, DataError, ResizeError, UnsupportedModelError
from ctxextend.json_output import to_json
from ctxextend.lab.eval_model import CAUSAL, open_eval_model
from ctxextend.lab.scorer import open_scorer
from ctxextend.settings import CheckpointRef
from tests.helpers import pico
from tests.helpers.pico import Pico
from tests.helpers.word_tokenizer import add_tokenizer, write_texts

Make = Callable[..., Pico]
LOSSES = ("position", "context")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of texts like those tiny-gpt2 was trained on, each longer than 512 tokens."""
    folder = tmp_path_factory.mktemp("texts")
    longest_first = sorted(topics, key=lambda name: -len(topics[name]))
    for name in longest_first[:6]:
        (folder / f"{name}.txt").write_text(topics[name], "utf-8")
    return folder


@pytest.fixture(scope="session")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny-gpt2 resized to 512 tokens with its learned rows unchanged."""
    output = tmp_path_factory.mktemp("models") / "tiny-gpt2-512"
    return ctxextend.resize("tiny-gpt2", to=512, method="copy", output=output).output


def evaluate_json(*arguments: Any, **flags: Any) -> dict[str, Any]:
    """Return the JSON of an evaluation."""
    found: dict[str, Any] = to_json(ctxextend.evaluate(*arguments, **flags))
    return found


def test_evaluate_compares_with_base_from_recipe(extended: Path, texts: Path) -> None:
    found = evaluate_json(extended, texts, tokens=2048, measure=LOSSES)

    assert found["kind"] == CAUSAL
    assert found["max_len"] == 512
    assert found["base"] == "tiny-gpt2"
    assert found["base_max_len"] == 128
    assert found["across_documents"] is False
    assert found["tokens"] == 4 * 512
    positions = found["positions"]
    assert list(positions["losses"]) == [MODEL, TRUNCATED, SLIDING]
    # `copy` keeps the learned rows, so losses within the base's context length are equal.
    for bucket in positions["buckets"][:4]:
        losses = bucket["losses"]
        assert losses[MODEL]["mean"] == pytest.approx(losses[TRUNCATED]["mean"], abs=1e-5)
    # Its perplexity is 17 on text of this kind that it was not trained on.
    assert positions["losses"][TRUNCATED]["perplexity"] < 40

    contexts = found["contexts"]
    assert [point["context"] for point in contexts["points"]] == [64, 128, 256, 512]
    assert contexts["reference"] == 128
    for point in contexts["points"][:2]:
        assert point["loss"]["mean"] == pytest.approx(point["base"]["mean"], abs=1e-5)


def test_evaluate_always_measures_base_at_its_context_length(extended: Path, texts: Path) -> None:
    settings: dict[str, Any] = {"tokens": 1024, "measure": ["context"]}
    selected = evaluate_json(extended, texts, length=(16, 512), **settings)["contexts"]["points"]
    default = evaluate_json(extended, texts, length=(), **settings)["contexts"]["points"]
    assert [point["context"] for point in selected] == [16, 512]
    change = selected[-1]["against_base"]
    expected = default[-1]["against_base"]
    assert change["mean"] == pytest.approx(expected["mean"], abs=1e-5)


def test_evaluate_loss_equals_transformers_loss_in_each_precision(texts: Path) -> None:
    settings: dict[str, Any] = {"tokens": 128 * 4, "measure": ["position"]}
    model = open_eval_model(CheckpointRef("tiny-gpt2"))
    first = sorted(texts.iterdir())[0].read_text("utf-8")
    tokens = model.tokenizer.tokenizer(first)["input_ids"]
    ids = torch.tensor(tokens[: 128 * 4]).view(4, 128)
    with torch.no_grad():
        expected = model.model(input_ids=ids, labels=ids).loss.item()

    full = evaluate_json("tiny-gpt2", texts, precision="auto", **settings)
    half = evaluate_json("tiny-gpt2", texts, precision="bf16", **settings)

    assert full["precision"] == "float32"
    assert half["precision"] == "bfloat16"
    full_loss = full["positions"]["losses"][MODEL]
    half_loss = half["positions"]["losses"][MODEL]
    assert full_loss["mean"] == pytest.approx(expected, abs=1e-5)
    assert half_loss["mean"] == pytest.approx(expected, rel=0.01)


def test_open_scorer_rejects_causal_class_with_bidirectional_attention(tmp_path: Path) -> None:
    config = transformers.MegatronBertConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=32,
        max_position_embeddings=16,
    )
    transformers.MegatronBertForCausalLM(config).save_pretrained(tmp_path)
    add_tokenizer(tmp_path, special_tokens=True)
    bidirectional = open_eval_model(CheckpointRef(str(tmp_path)))
    message = "is not causal: its predictions depend on later tokens"
    with pytest.raises(UnsupportedModelError, match=message):
        open_scorer(bidirectional)

    pico.edit_json(tmp_path / "config.json", is_decoder=True)
    causal = open_eval_model(CheckpointRef(str(tmp_path)))
    assert open_scorer(causal).has_separate_head


def test_evaluate_joins_short_documents_and_warns_if_losses_are_measured(make_pico: Make) -> None:
    # The LM head is tied to the word embeddings, so no tensor is missing.
    causal = add_tokenizer(make_pico("gpt2", "causal", base=True).folder, special_tokens=False)
    found = ctxextend.evaluate(causal, write_texts(5, 40), tokens=64, measure=LOSSES)
    assert found.kind == CAUSAL
    assert found.across_documents
    (warning,) = found.warnings
    assert "windows span several documents" in warning


@pytest.fixture
def masked(make_pico: Make) -> Path:
    """A masked language model with a tokenizer."""
    return add_tokenizer(make_pico("bert").folder, special_tokens=True)


@pytest.fixture
def base(make_pico: Make) -> Path:
    """A causal language model with a tokenizer."""
    return add_tokenizer(make_pico("gpt2").folder, special_tokens=False)


@pytest.fixture
def longer(base: Path, tmp_path: Path) -> Path:
    """The base, resized to 32 positions."""
    return ctxextend.resize(base, to=32, output=tmp_path / "longer").output


def test_evaluate_warns_if_base_is_missing(base: Path, longer: Path, tmp_path: Path) -> None:
    text = write_texts(200, 1)
    elsewhere = base.rename(tmp_path / "elsewhere")

    missing = ctxextend.evaluate(longer, text, measure=LOSSES)
    assert missing.base is None
    assert any("--base" in warning for warning in missing.warnings)

    without = ctxextend.evaluate(longer, text, no_base=True)
    assert not any("--base" in warning for warning in without.warnings)

    stated = ctxextend.evaluate(longer, text, base=elsewhere, measure=LOSSES)
    assert stated.base == str(elsewhere)


def test_evaluate_rejects_base_of_another_kind(base: Path, masked: Path) -> None:
    message = r"a masked language model, but .* is a causal"
    with pytest.raises(CheckpointError, match=message):
        ctxextend.evaluate(base, write_texts(200, 1), base=masked)


def test_evaluate_rejects_base_with_another_tokenizer(base: Path, make_pico: Make) -> None:
    other = add_tokenizer(make_pico("gpt2", "other").folder, special_tokens=True)
    text = write_texts(200, 1)
    message = "cut the text into different tokens"
    with pytest.raises(CheckpointError, match=message):
        ctxextend.evaluate(base, text, base="tiny-gpt2")
    with pytest.raises(CheckpointError, match=message):
        ctxextend.evaluate(other, text, base=base)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"length": [256]},
            "context length of 128, too short for windows of 256 .*resize tiny-gpt2 --to 256",
        ),
        ({"length": [4]}, "--length must be at least 8, got 4"),
        ({"tokens": True}, "--tokens must be .* got True"),
        ({"no_base": True, "base": "tiny-gpt2"}, "--no-base cannot be used with --base"),
        (
            {"no_base": True, "measure": ["retrieval"]},
            "--no-base cannot be used with --measure retrieval, which requires the base",
        ),
        ({"measure": ["speed"]}, "--measure must be one of position, context, .* got speed"),
        ({"measure": ["retrieval"]}, "--measure retrieval does not apply to tiny-gpt2, a causal"),
    ],
)
def test_evaluate_rejects_invalid_values(flags: dict[str, Any], message: str, texts: Path) -> None:
    with pytest.raises(ResizeError, match=message):
        ctxextend.evaluate("tiny-gpt2", texts, **flags)


def test_evaluate_rejects_empty_text_before_loading_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ctxextend.lab.eval_model.load_eval_model", None)
    Path("empty.txt").write_text("")
    with pytest.raises(DataError, match=r"empty\.txt is empty"):
        ctxextend.evaluate("tiny-gpt2", "empty.txt")


def invoke_evaluate(model: Path, texts: Path, *flags: str) -> Result:
    arguments = ["evaluate", str(model), "--data", str(texts), *flags, "--json"]
    return CliRunner().invoke(build_app(), arguments)


@pytest.mark.slow
def test_evaluate_prints_identical_json_except_seconds(extended: Path, texts: Path) -> None:
    first = invoke_evaluate(extended, texts, "--tokens", "1024")
    second = invoke_evaluate(extended, texts, "--tokens", "1024")
    assert first.exit_code == 0, first.stderr
    assert second.exit_code == 0, second.stderr

    values = json.loads(first.stdout)
    again = json.loads(second.stdout)
    again["seconds"] = values["seconds"]
    assert again == values
    for task in ("needle", "key"):
        lengths = values["effective"]["tasks"][task]["lengths"]
        assert [one["length"] for one in lengths] == [128, 256, 512]
    loss = values["positions"]["losses"]["model"]
    assert loss["perplexity"] == pytest.approx(math.exp(loss["mean"]))
    warnings = [line for line in first.stderr.splitlines() if "Warn" in line]
    assert warnings == [f"Warning: {warning}" for warning in values["warnings"]]
