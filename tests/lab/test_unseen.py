"""`evaluate` skips text that a model was trained on, or warns."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import ctxextend
from ctxextend.held_out import HeldOut, held_out_windows
from ctxextend.lab.evaluation import Evaluation
from ctxextend.lab.text_tokenizer import TextTokenizer
from tests.helpers.scores import score_of
from tests.helpers.trainings import make_resized, train, write_book
from tests.helpers.word_tokenizer import text_of

OTHER_TEXT = text_of([number * 7 % 27 for number in range(1200)])
NEW_TEXT = text_of([number * 5 % 27 for number in range(1200)])
HELD_OUT = "128 held-out tokens"
NOT_HELD_OUT = "was trained on book.txt, and no known held-out part of it is long enough:"


@pytest.fixture(autouse=True)
def book(_empty_folder: None) -> None:
    write_book()
    Path("other.txt").write_text(OTHER_TEXT)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_resized(tmp_path / "source", "gpt2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a checkpoint after training on the book; tests must not change it."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_book()
        train(make_resized(folder / "source", "gpt2"), "trained")
    return folder / "trained"


def run_evaluate(model: str | Path, *data: str, **settings: Any) -> Evaluation:
    return ctxextend.evaluate(model, data=data, base="none", measure="position", **settings)


def uses_held_out_windows(found: Evaluation) -> bool:
    """Tell whether a warning says that only the held-out tokens are used."""
    return any(HELD_OUT in warning for warning in found.warnings)


def trained_on_warnings(found: Evaluation) -> list[str]:
    return [warning for warning in found.warnings if "trained on" in warning]


def read_provenance(model: str) -> Any:
    """Return what the recipe of a trained checkpoint says about its training."""
    recipe = yaml.safe_load(Path(model, "ctxextend.yaml").read_text())
    return recipe["provenance"]["trained"]


def test_evaluate_uses_held_out_windows_of_a_renamed_file(source: Path) -> None:
    train(source, "trained")
    shutil.copy("book.txt", "renamed.txt")

    found = run_evaluate("trained", "renamed.txt")

    assert found.warnings == (
        "trained was trained on renamed.txt: only the 128 held-out tokens are used.",
    )
    assert found.tokens == 4 * 32
    assert found.documents == 4
    assert run_evaluate("trained", "other.txt").warnings == ()


def test_evaluate_of_trained_text_equals_that_of_its_held_out_windows(source: Path) -> None:
    train(source, "trained")
    tokenizer = TextTokenizer.open(source)
    rule = HeldOut(**read_provenance("trained")["held_out"])
    tokens = tokenizer.encode(Path("book.txt").read_text())
    documents = []
    for window in held_out_windows(tokens, rule):
        text = tokenizer.tokenizer.decode(window)
        documents.append(json.dumps({"text": text}))
    Path("held-out.jsonl").write_text("\n".join(documents))

    shutil.copy("book.txt", "renamed.txt")
    of_book = run_evaluate("trained", "renamed.txt")
    of_windows = run_evaluate("trained", "held-out.jsonl")

    assert score_of(of_book).mean == score_of(of_windows).mean


def test_evaluate_reads_other_files_in_full(source: Path) -> None:
    train(source, "trained")
    found = run_evaluate("trained", "other.txt", "book.txt", tokens=10_000)
    assert found.tokens == (1200 + 128) // 32 * 32
    assert any("was trained on book.txt: " in warning for warning in found.warnings)


def test_evaluate_with_another_tokenizer_warns_of_training_text(source: Path) -> None:
    train(source, "trained")
    shutil.copytree(source, "other")

    found = run_evaluate("trained", "book.txt", tokenizer="other")
    (warning,) = found.warnings
    assert warning.startswith(f"trained {NOT_HELD_OUT}")

    found = run_evaluate("trained", "book.txt", tokenizer="trained")
    assert uses_held_out_windows(found)


def test_evaluate_finds_a_training_before_a_resize(source: Path) -> None:
    train(source, "first")
    train("first", "second")

    ctxextend.resize("second", to=64, output="longer")
    assert uses_held_out_windows(run_evaluate("longer", "book.txt"))

    ctxextend.resize("second", to=256, output="longest")
    (warning,) = trained_on_warnings(run_evaluate("longest", "book.txt"))
    assert "results look better than on new text" in warning


@pytest.mark.parametrize(
    "changes",
    [
        {"held_out": {"window": 0, "every": 1, "tokens": 5}},
        {"held_out": {"window": 1, "every": 1, "tokens": 10**30}},
        {"held_out": {"window": 1, "every": 1, "tokens": -5}},
        {"held_out": [1]},
        {"first_token": 10**30},
        {"data": 3},
        {"data": [{"name": []}]},
    ],
)
def test_evaluate_ignores_malformed_training_provenance(
    changes: dict[str, Any], trained: Path
) -> None:
    shutil.copytree(trained, "trained")
    path = Path("trained/ctxextend.yaml")
    recipe = yaml.safe_load(path.read_text())
    changed = recipe["provenance"]["trained"]
    if "first_token" in changes:
        changed = changed["data"][0]
    changed.update(changes)
    path.write_text(yaml.safe_dump(recipe))

    found = run_evaluate("trained", "book.txt", tokens=64)

    assert found.tokens == 64


def held_out_of(model: str) -> tuple[int, int]:
    """Return the windows that a training held out: their size, and one of how many."""
    rule = read_provenance(model)["held_out"]
    return rule["window"], rule["every"]


@pytest.mark.parametrize(
    "flags", [("--seq-len", 16), ("--data", "other.txt")], ids=["shorter", "more data"]
)
def test_train_holds_out_windows_of_earlier_trainings(
    flags: tuple[str, object], source: Path
) -> None:
    train(source, "first")
    done = train("first", "second", *flags, "--json")
    assert "was trained on" not in done.stderr
    assert held_out_of("second") == held_out_of("first")
    assert uses_held_out_windows(run_evaluate("second", "book.txt"))


def test_train_warns_if_held_out_text_was_trained_on_before(source: Path) -> None:
    train(source, "first", "--seq-len", 16)
    done = train("first", "longer", "--json")
    (warning,) = json.loads(done.stdout)["warnings"]
    assert warning.startswith(f"first {NOT_HELD_OUT}")
    assert done.stderr.count(f"Warning: {warning}\n") == 1
    assert done.stderr.index(warning) < done.stderr.index(" trainable parameters")


def test_methods_are_measured_on_held_out_windows(source: Path) -> None:
    train(source, "trained")
    found = ctxextend.evaluate("trained", data="book.txt", to=64, method="copy", measure="position")
    assert uses_held_out_windows(found)


def test_a_warning_names_each_model_that_was_trained_on_a_text(source: Path) -> None:
    train(source, "first", "--seq-len", 16)
    train("first", "second", "--seq-len", 16)
    found = ctxextend.evaluate(["first", source, "second"], data="book.txt", measure="position")
    assert [one.partition(" ")[0] for one in trained_on_warnings(found)] == ["first", "second"]
