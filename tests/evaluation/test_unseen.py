"""`evaluate` and `compare` skip text that the model was trained on, or warn."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import ctxextend
from ctxextend.evaluation.eval_model import TextTokenizer
from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.held_out import HeldOut, held_out_windows, shared_texts
from tests.helpers.trainings import invoke, make_resized, train, write_book
from tests.helpers.word_tokenizer import text_of

LOSSES = ("position",)


@pytest.fixture(autouse=True)
def book(_empty_folder: None) -> None:
    write_book()
    Path("other.txt").write_text(text_of([number * 7 % 27 for number in range(1200)]))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_resized(tmp_path / "source", "gpt2")


def run_evaluate(model: str | Path, *data: str, **settings: Any) -> Evaluation:
    return ctxextend.evaluate(model, data, no_base=True, measure=LOSSES, **settings)


def loss(found: Evaluation) -> float:
    assert found.positions is not None
    return found.positions.losses["model"].mean


def test_evaluate_uses_held_out_windows_of_a_renamed_file(source: Path) -> None:
    train(source, "trained")
    shutil.copy("book.txt", "renamed.txt")
    found = run_evaluate("trained", "renamed.txt")
    assert found.warnings == (
        "trained was trained on renamed.txt: only the 128 held-out tokens are used.",
    )
    tokenizer = TextTokenizer.open(source)
    rule = yaml.safe_load(Path("trained/ctxextend.yaml").read_text())["provenance"]["trained"][
        "held_out"
    ]
    windows = held_out_windows(tokenizer.encode(Path("book.txt").read_text()), HeldOut(**rule))
    Path("held-out.jsonl").write_text(
        "\n".join(json.dumps({"text": tokenizer.tokenizer.decode(window)}) for window in windows)
    )
    assert (found.tokens, found.documents) == (4 * 32, 4)
    assert loss(found) == loss(run_evaluate("trained", "held-out.jsonl"))
    assert run_evaluate("trained", "other.txt").warnings == ()


def test_evaluate_reads_other_files_in_full(source: Path) -> None:
    train(source, "trained")
    found = run_evaluate("trained", "other.txt", "book.txt", tokens=10_000)
    assert found.tokens == (1200 + 128) // 32 * 32
    assert any("was trained on book.txt: " in warning for warning in found.warnings)


def test_evaluate_warns_of_training_text_without_held_out_windows(source: Path) -> None:
    train(source, "trained", "--eval-data", "other.txt")
    done = invoke("evaluate", "trained", "--data", "book.txt", "--measure", "position", "--json")
    (warning,) = (one for one in json.loads(done.stdout)["warnings"] if "trained on" in one)
    assert warning.startswith(
        "trained was trained on book.txt, and no known held-out part of it is long enough:"
    )
    assert f"Warning: {warning}" in done.stderr
    assert not any(
        "trained on" in warning for warning in run_evaluate("trained", "other.txt").warnings
    )


def test_evaluate_with_another_tokenizer_warns_of_training_text(source: Path) -> None:
    train(source, "trained")
    shutil.copytree(source, "other")
    (warning,) = run_evaluate("trained", "book.txt", tokenizer="other").warnings
    assert warning.startswith(
        "trained was trained on book.txt, and no known held-out part of it is long enough:"
    )
    train(source, "named", "--tokenizer", "other")
    for known in ("./other", str(Path("other").absolute()), None):
        (warning,) = run_evaluate("named", "book.txt", tokenizer=known).warnings
        assert warning == "named was trained on book.txt: only the 128 held-out tokens are used."
    warnings = run_evaluate("trained", "book.txt", tokenizer="trained").warnings
    assert any("128 held-out tokens" in warning for warning in warnings)


def test_evaluate_finds_trainings_before_a_resize_or_another_training(source: Path) -> None:
    train(source, "first")
    train("first", "second")
    ctxextend.resize("second", to=64, output="longer")
    assert any(
        "128 held-out tokens" in warning for warning in run_evaluate("second", "book.txt").warnings
    )
    assert any(
        "128 held-out tokens" in warning for warning in run_evaluate("longer", "book.txt").warnings
    )
    ctxextend.resize("second", to=256, output="longest")
    (warning,) = (
        one for one in run_evaluate("longest", "book.txt").warnings if "trained on" in one
    )
    assert "results look better than on new text" in warning
    train(source, "shorter", "--seq-len", 16)
    train("shorter", "differently")
    (warning,) = (
        one for one in run_evaluate("differently", "book.txt").warnings if "trained on" in one
    )
    assert "results look better than on new text" in warning


@pytest.mark.parametrize(
    "changes",
    [
        {"held_out": {"window": 0, "every": 1, "tokens": 5}},
        {"held_out": {"window": 1, "every": 1, "tokens": 10**30}},
        {"held_out": {"window": "x", "every": None}},
        {"held_out": {"window": 10**30, "every": 1, "tokens": 5}},
        {"held_out": {"window": 1.5, "every": 1, "tokens": 5}},
        {"held_out": {"window": 1, "every": 1, "tokens": -5}},
        {"held_out": [1]},
        {"first_token": "x"},
        {"first_token": 10**30},
        {"first_token": -(10**15)},
        {"data": 3},
        {"data": [{}]},
        {"data": [{"name": []}]},
    ],
)
def test_evaluate_ignores_malformed_training_provenance(
    changes: dict[str, Any], source: Path
) -> None:
    train(source, "trained")
    recipe = yaml.safe_load(Path("trained/ctxextend.yaml").read_text())
    trained = recipe["provenance"]["trained"]
    (trained["data"][0] if "first_token" in changes else trained).update(changes)
    Path("trained/ctxextend.yaml").write_text(yaml.safe_dump(recipe))
    assert run_evaluate("trained", "book.txt", tokens=64).tokens == 64


def held_out_of(model: str) -> dict[str, int]:
    rule = yaml.safe_load(Path(model, "ctxextend.yaml").read_text())["provenance"]["trained"][
        "held_out"
    ]
    return {name: rule[name] for name in ("window", "every")}


def test_train_holds_out_windows_of_earlier_trainings(source: Path) -> None:
    train(source, "first")
    for name, *flags in (("shorter", "--seq-len", 16), ("more", "--data", "other.txt")):
        done = train("first", name, *flags, "--json")
        assert "was trained on" not in done.stderr
        assert held_out_of(name) == held_out_of("first")
        assert any(
            "128 held-out tokens" in warning for warning in run_evaluate(name, "book.txt").warnings
        )


def test_train_warns_if_eval_data_was_trained_on_before(source: Path) -> None:
    train(source, "first", "--seq-len", 16)
    Path("new.txt").write_text(text_of([number * 5 % 27 for number in range(1200)]))
    new_data = ("--data", "new.txt", "--eval-data", "book.txt", "--lr", 0.001)
    second = invoke("train", "first", *new_data, "--steps", 1, "--json")
    for done in (train("first", "longer", "--json"), second):
        (warning,) = json.loads(done.stdout)["warnings"]
        assert warning.startswith(
            "first was trained on book.txt, and no known held-out part of it is long enough:"
        )
        assert done.stderr.count(f"Warning: {warning}\n") == 1
        assert done.stderr.index(warning) < done.stderr.index(" trainable parameters")


def test_compare_uses_held_out_windows(source: Path) -> None:
    train(source, "trained")
    settings: dict[str, Any] = {"methods": ["copy"], "measure": LOSSES}
    found = ctxextend.compare("trained", 64, "book.txt", **settings)
    assert any("128 held-out tokens" in warning for warning in found.warnings)
    steps: dict[str, Any] = {"steps": 1, "batch_size": 1, **settings}
    same = ctxextend.compare("trained", 64, "book.txt", seq_len=32, **steps)
    assert not any("trained on" in warning for warning in same.warnings)
    other = ctxextend.compare("trained", 64, "book.txt", **steps)
    assert any(
        "was trained on book.txt, and no known held-out part" in warning
        for warning in other.warnings
    )


def test_shared_texts_finds_files_by_content() -> None:
    shutil.copy("book.txt", "renamed.txt")
    assert shared_texts(["renamed.txt", "other.txt"], ["book.txt"]) == [Path("renamed.txt")]
    assert shared_texts(["other.txt"], ["book.txt"]) == []
    assert shared_texts(["hf:a/b/c.d@refs/pr/1"], ["hf:a/b/c.d:train@refs/pr/1"]) == [
        "hf:a/b/c.d:train@refs/pr/1"
    ]
