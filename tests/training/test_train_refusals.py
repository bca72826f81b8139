"""Errors, notes, warnings and JSON output of `ctxextend train`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ctxextend import convert, resize
from tests.helpers import pico
from tests.helpers.json_schemas import SCHEMAS
from tests.helpers.trainings import OLD, invoke, make_encoder, train
from tests.helpers.word_tokenizer import add_tokenizer

pytestmark = pytest.mark.usefixtures("book")
SCHEMA = SCHEMAS["train"]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--data missing.txt", 1, "missing.txt does not exist. Pass an existing file or folder."),
        (
            "--data short.txt",
            1,
            "has 3 tokens, but one sequence to train on and one to hold out require 64.",
        ),
        ("--data book.txt --precision fp16", 1, "Training in fp16 is not supported on a CPU."),
        ("--data book.txt --window-skip", 2, "--window-skip requires --window"),
    ],
)
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_train_rejects_invalid_data_and_flags_before_it_loads_the_model(
    dry_run: tuple[str, ...],
    flags: str,
    code: int,
    message: str,
    gpt2: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*_: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("ctxextend.lab.eval_model.load_eval_model", load)
    Path("short.txt").write_text("w1 w2 w3")
    done = invoke("train", gpt2, "--steps", 2, *flags.split(), "-o", "out", *dry_run)
    shown = " ".join(done.stderr.split())
    assert done.exit_code == code
    assert message in shown
    assert not list(Path.cwd().glob("out*"))


def refuse(source: object, message: str, *flags: object) -> None:
    """Check that training ends with a message."""
    done = invoke("train", source, "--data", "book.txt", "--steps", 2, *flags, "-o", "out")
    assert done.exit_code == 1
    assert message in done.stderr


def test_train_new_rejects_a_checkpoint_without_known_new_rows_in_reach(gpt2: Path) -> None:
    source = gpt2.with_name("long-old")
    resize(source, to=OLD, fix_limits=True, output="same")
    new = ("--trainable", "new")

    refuse("same", "same has no new rows: all are learned rows.", *new)
    refuse(source, "has no new rows: all are learned rows.", *new, "--base", source)
    without_base = (
        "long-old are new: no recipe names its base checkpoint.\nPass its base checkpoint "
        "with --base"
    )
    refuse(source, without_base, *new)
    too_short = f"--seq-len {OLD} does not reach any new row: the first is at position {OLD}."
    refuse(gpt2, too_short, *new, "--seq-len", OLD)
    one_short = f"Use a --seq-len above {OLD + 1}, or remove it."
    refuse(gpt2, one_short, *new, "--seq-len", OLD + 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            make_encoder,
            "has no LM head, and its base checkpoint is unknown. Pass --base to distil from it.",
        ),
        (
            lambda folder: add_tokenizer(pico.make_bart(folder), special_tokens=True),
            "is an encoder-decoder model",
        ),
    ],
)
def test_train_rejects_models_without_an_objective(
    make: Callable[[Path], Path], message: str
) -> None:
    source = make(Path("source").absolute())
    done = invoke("train", source, "--data", "book.txt", "--steps", 2, "-o", "out")
    shown = " ".join(done.stderr.split())
    assert done.exit_code == 1
    assert message in shown
    assert not list(Path.cwd().glob("out*"))


def test_train_rejects_new_rows_of_positions_without_rows(gpt2: Path) -> None:
    convert(gpt2.with_name("long-old"), "rotary", OLD, output="twin")
    message = "--trainable new: its positions (rotary) have no rows to train.\nUse --trainable all."
    refuse("twin", message, "--trainable", "new")


def test_train_rejects_several_processes(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuse(gpt2, "Training in several processes is not supported.")


# ---- notes, warnings and JSON


def test_train_warns_of_new_rows_that_no_sequence_reaches(gpt2: Path) -> None:
    done = train(gpt2, "out", "--seq-len", 24, "--json", steps=1)
    warning = (
        "--seq-len 24 leaves 8 new rows untrained, from position 24 on. Remove it, or use --window "
        "24 instead, which trains all positions."
    )
    assert json.loads(done.stdout)["warnings"] == [warning]
    assert done.stderr.count(f"Warning: {warning}\n") == 1

    done = train(gpt2, "windows", "--window", 24, steps=1)
    assert "untrained" not in done.stderr


def test_train_json_matches_its_schema(gpt2: Path) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    schema = SCHEMA["$defs"]["result"]
    assert set(schema["properties"]) == {*schema["required"]}
    assert schema["additionalProperties"] is False

    done = train(gpt2, "out", "--window", 8, "--window-skip", "--json")
    result = json.loads(done.stdout)
    errors = Draft202012Validator(SCHEMA).iter_errors(result)
    messages = [f"{error.json_path}: {error.message}" for error in errors]
    assert messages == []
    assert result["seq_len"] == 32
    assert result["window"] == 8
    assert result["tokens"] == 4 * 4 * 8
    assert result["objective"] == "causal"
