"""`print(result)` shows what the command of a result prints."""

import re
from pathlib import Path

import pytest

import ctxextend
from tests.helpers.evaluations import EVALUATIONS, WORSE
from tests.helpers.result_screens import page_of
from tests.helpers.trainings import succeed

TEXT = "The quick brown fox jumps over the lazy dog. " * 400


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_print_of_an_inspection_shows_the_screen() -> None:
    result = ctxextend.inspect("tiny-gpt2")
    done = succeed("inspect", "tiny-gpt2")
    assert str(result) == done.stdout.removesuffix("\n")


def test_print_of_a_verification_shows_the_screen() -> None:
    ctxextend.resize("tiny-gpt2", to=256, output="out")
    result = ctxextend.verify("out")
    done = succeed("verify", "out")
    assert str(result).split() == done.stdout.split()
    assert max(map(len, str(result).splitlines())) <= 80


def test_print_of_a_resize_shows_its_output_and_what_is_new() -> None:
    result = ctxextend.resize("tiny-gpt2", to=256, output="out")
    done = succeed("resize", "tiny-gpt2", "--to", 256, "--output", "again")
    timed = re.compile(r"in \d+ ms|in [\d.]+ s")
    printed = timed.sub("", str(result)).replace("out:", "again:").replace("\nout", "\nagain")
    assert printed.split() == timed.sub("", done.stderr + done.stdout).split()


def test_print_of_a_planned_resize_shows_the_plan() -> None:
    planned = ctxextend.plan_resize("tiny-gpt2", to=256)
    done = succeed("resize", "tiny-gpt2", "--to", 256, "--dry-run")
    assert done.stdout.strip() in str(planned)
    assert str(planned).count("\n") > 10


def test_print_of_a_training_shows_its_losses_and_output() -> None:
    Path("text.txt").write_text(TEXT)
    planned = ctxextend.plan_training("tiny-gpt2", "text.txt", 2, trainable="all")
    done = succeed(
        "train",
        "tiny-gpt2",
        "--data",
        "text.txt",
        "--steps",
        2,
        "--trainable",
        "all",
        "--dry-run",
    )
    assert done.stdout.strip() in str(planned)
    trained = ctxextend.train(
        "tiny-gpt2",
        "text.txt",
        steps=1,
        seq_len=16,
        batch_size=2,
        trainable="all",
        output="trained",
    )
    assert re.search(r"^held-out loss \d", str(trained), re.MULTILINE)
    assert str(trained).endswith("\ntrained")


@pytest.mark.parametrize("name", EVALUATIONS)
def test_print_of_a_measurement_shows_the_screen(name: str) -> None:
    result = EVALUATIONS[name]
    shown = "\n".join("".join(text for text, _ in line).rstrip() for line in page_of(result).lines)
    assert shown in str(result)
    for note in (*result.notes, *result.warnings):
        assert "".join(note.split()) in "".join(str(result).split())


def test_repr_of_a_result_is_one_line() -> None:
    assert repr(WORSE).startswith("Evaluation(names=")
    assert "\n" not in repr(WORSE)
