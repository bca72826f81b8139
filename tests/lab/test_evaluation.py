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

import ctxextend
from ctxextend.errors import CheckpointError, DataError, UnsupportedModelError
from ctxextend.lab.eval_model import CAUSAL, open_eval_model
from ctxextend.lab.scorer import open_scorer
from ctxextend.lab.scores import SEPARATE, SLIDING, select
from ctxextend.settings import CheckpointRef
from tests.helpers import pico
from tests.helpers.pico import Pico
from tests.helpers.scores import score_of
from tests.helpers.trainings import succeed
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


def test_evaluate_reads_the_base_of_the_recipe(extended: Path, texts: Path) -> None:
    found = ctxextend.evaluate(extended, data=texts, tokens=2048, measure=LOSSES)

    (model,) = found.models
    assert model.kind == CAUSAL
    assert model.max_len == 512
    assert found.base is not None
    assert found.base.source == "tiny-gpt2"
    assert found.base.max_len == 128
    assert found.warnings == ()
    assert found.tokens == 4 * 512
    # `copy` keeps the learned rows, so losses within the base's context length are equal.
    own = score_of(found, measure="position", part=(96, 128))
    other = score_of(found, part=(96, 128), reading=SEPARATE)
    assert own.mean == pytest.approx(other.mean, abs=1e-5)
    # Its perplexity is 17 on text of this kind that it was not trained on.
    perplexity = score_of(found, reading=SEPARATE).perplexity
    assert perplexity is not None
    assert perplexity < 40
    assert [reference.reading for reference in found.main_references] == [SLIDING]

    contexts = [*select(found.scores, model=model.name, measure="context")]
    assert [score.length for score in contexts] == [512, 256, 128, 64]
    for score in contexts[2:]:
        other = score_of(found, model="tiny-gpt2", measure="context", length=score.length)
        assert score.mean == pytest.approx(other.mean, abs=1e-5)


def test_evaluate_loss_equals_transformers_loss_in_each_precision(texts: Path) -> None:
    settings: dict[str, Any] = {"data": texts, "tokens": 128 * 4, "measure": "position"}
    model = open_eval_model(CheckpointRef("tiny-gpt2"))
    first = sorted(texts.iterdir())[0].read_text("utf-8")
    tokens = model.tokenizer.tokenizer(first)["input_ids"]
    ids = torch.tensor(tokens[: 128 * 4]).view(4, 128)
    with torch.no_grad():
        expected = model.model(input_ids=ids, labels=ids).loss.item()

    full = ctxextend.evaluate("tiny-gpt2", precision="auto", **settings)
    half = ctxextend.evaluate("tiny-gpt2", precision="bf16", **settings)

    assert full.precision == "float32"
    assert half.precision == "bfloat16"
    assert score_of(full, measure="position").mean == pytest.approx(expected, abs=1e-5)
    assert score_of(half, measure="position").mean == pytest.approx(expected, rel=0.01)


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
    texts = write_texts(5, 40)
    found = ctxextend.evaluate(causal, data=texts, tokens=64, measure=LOSSES)
    assert found.models[0].kind == CAUSAL
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

    missing = ctxextend.evaluate(longer, data=text, measure=LOSSES)
    assert missing.base is None
    assert any("--base" in warning for warning in missing.warnings)

    without = ctxextend.evaluate(longer, data=text, base="none", measure=LOSSES)
    assert not any("--base" in warning for warning in without.warnings)

    stated = ctxextend.evaluate(longer, data=text, base=elsewhere, measure=LOSSES)
    assert stated.base is not None
    assert stated.base.source == str(elsewhere)


def test_a_base_of_the_same_name_has_another_one(base: Path, tmp_path: Path) -> None:
    longer = ctxextend.resize(base, to=32, output=tmp_path / "longer" / base.name).output
    text = write_texts()
    single = ctxextend.evaluate(longer, data=text, measure=LOSSES)
    both = ctxextend.evaluate([longer, base], data=text, measure=LOSSES)
    for found in (single, both):
        assert found.base is not None
        assert found.base.source == str(base)
        assert found.base.name not in found.names
        assert sorted(found.order) == sorted(found.names)
    assert len(single.references) == 2
    assert both.references == []  # the base is ranked itself


def test_evaluate_rejects_base_of_another_kind(base: Path, masked: Path) -> None:
    message = r"a masked language model, but .* is a causal"
    with pytest.raises(CheckpointError, match=message):
        ctxextend.evaluate(base, data=write_texts(200, 1), base=masked)


def test_evaluate_rejects_base_with_another_tokenizer(base: Path, make_pico: Make) -> None:
    other = add_tokenizer(make_pico("gpt2", "other").folder, special_tokens=True)
    text = write_texts(200, 1)
    message = "cut the text into different tokens"
    with pytest.raises(CheckpointError, match=message):
        ctxextend.evaluate(base, data=text, base="tiny-gpt2")
    with pytest.raises(CheckpointError, match=message):
        ctxextend.evaluate(other, data=text, base=base)


def test_evaluate_rejects_empty_text_before_loading_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ctxextend.lab.eval_model.load_eval_model", None)
    Path("empty.txt").write_text("")
    with pytest.raises(DataError, match=r"empty\.txt is empty"):
        ctxextend.evaluate("tiny-gpt2", data="empty.txt")


@pytest.mark.slow
def test_evaluate_prints_identical_json_except_seconds(extended: Path, texts: Path) -> None:
    arguments = ("evaluate", extended, "--data", texts, "--tokens", 1024, "--json")
    first = succeed(*arguments)
    second = succeed(*arguments)

    values = json.loads(first.stdout)
    again = json.loads(second.stdout)
    again["seconds"] = values["seconds"]
    assert again == values
    for score in values["scores"]:  # one flat object each
        assert not any(isinstance(value, dict) for value in score.values())
    loss = values["scores"][0]
    assert loss["perplexity"] == pytest.approx(math.exp(loss["mean"]))
    warnings = [line for line in first.stderr.splitlines() if "Warn" in line]
    assert warnings == [f"Warning: {warning}" for warning in values["warnings"]]
