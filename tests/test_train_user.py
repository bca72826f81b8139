"""`train` as its user meets it: what is said before and after, and what the folder says of itself."""

import json
from pathlib import Path

import pytest

from ctxextend.json_output import to_json
from ctxextend.training.training_result import TrainResult
from tests.trainings import invoke, log_of, make_source, train
from tests.words import text_of

pytestmark = pytest.mark.usefixtures("book")


def test_train_keeps_its_precision_whatever_a_launcher_was_set_to(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(gpt2, "exact", "--precision", "fp32", steps=2)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    train(gpt2, "launched", "--precision", "fp32", steps=2)
    assert log_of(Path("launched")) == log_of(Path("exact"))


def test_train_says_how_a_name_was_understood_before_it_begins() -> None:
    make_source(Path("gpt2"), "gpt2")
    done = train("gpt2", "out", "--json", steps=1)
    (note,) = json.loads(done.stdout)["notes"]
    assert note == "gpt2 is a local folder here, and it wins over a model of the Hub of that name."
    assert done.stderr.count(note) == 1
    assert done.stderr.startswith(note)
    assert "1 step of 4 sequences of 16 tokens, 4 at once on 1 device," in done.stderr


def test_train_warns_where_the_loss_is_measured_on_what_is_trained_on(gpt2: Path) -> None:
    Path("other.txt").write_text(Path("book.txt").read_text())
    done = train(gpt2, "out", "--eval-data", "./book.txt", "--json", steps=1)
    warning = "book.txt is trained on and measured on: the held-out loss is not one of new text."
    assert json.loads(done.stdout)["warnings"] == [warning]
    assert done.stderr.count(warning) == 1
    assert "Warning" not in train(gpt2, "new", "--eval-data", "other.txt", steps=1).stderr


@pytest.mark.parametrize(
    ("flags", "text", "said"),
    [
        (("--data", "some.txt"), " \n ", "some.txt holds no text"),
        (("--data", "some.jsonl"), '{"body": "w1"}', "some.jsonl, line 1, has no field 'text'; it has body"),
        (("--data", "book.txt", "--eval-data", "some.txt"), " ", "some.txt holds no text"),
    ],
)
def test_train_looks_at_all_texts_before_it_opens_the_model(
    flags: tuple[str, ...], text: str, said: str, gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxextend.training.train.open_files", lambda *_: pytest.fail("The model was opened."))
    Path(flags[-1]).write_text(text)
    done = invoke("train", gpt2, *flags, "--steps", 1, "-o", "out")
    assert (done.exit_code, done.stderr.startswith(f"Error: {said}")) == (1, True), done.stderr
    assert not list(Path.cwd().glob("out*"))


def test_train_says_which_text_is_too_little(gpt2: Path) -> None:
    Path("short.txt").write_text(text_of([1, 2, 3]))
    done = invoke("train", gpt2, "--data", "book.txt", "--eval-data", "short.txt", "--steps", 1, "-o", "out")
    assert "Error: The text of --eval-data has 3 tokens, and a sequence takes 32.\n" in done.stderr


def test_train_of_what_was_trained_leaves_no_old_word_of_the_log() -> None:
    source = make_source(Path("source"), "gpt2")
    train(source, "once", steps=1)
    train("once", "twice", steps=1)
    card = Path("twice/README.md").read_text()
    assert (card.count("## Trained at 16"), card.count("holds the losses"), card.count("holds the recipe")) == (2, 1, 1)
    done = invoke("verify", source, "twice")
    assert done.exit_code == 0
    said = "16 -> 16 rows; 1 of 16 rows are what they were (by its recipe), bit for bit; then it was trained"
    assert f"transformer.wpe.weight: {said}" in done.stdout
    assert done.stdout.endswith("Proved: twice is source, but for the table, whose rows were trained.\n")


def test_tokens_per_second_leaves_out_the_time_for_measurements() -> None:
    numbers = {"parameters": 1, "steps": 1, "batch_size": 1, "micro_batch": 1, "devices": 1, "seq_len": 8, "window": 8}
    measured = tuple({"eval_loss": 1.0, "eval_runtime": 4.0} for _ in range(2))
    losses = {"lr": 0.1, "tokens": 100, "loss_before": 1.0, "loss_after": 1.0, "seconds": 10.0, "log": measured}
    names = {"source": "x", "objective": "causal", "trainable": "new", "precision": "fp32", "peak_bytes": None}
    result = TrainResult(Path("out"), **numbers, **losses, **names)  # type: ignore[arg-type]
    assert result.tokens_per_second == 50
    assert to_json(result)["seconds"] == 10
