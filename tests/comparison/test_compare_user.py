"""Tests of the command `ctxextend compare`."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from ctxextend.errors import OutputError
from ctxextend.report import html
from tests.helpers.trainings import invoke, make_source
from tests.helpers.word_tokenizer import write_texts

FLAGS = ("--data", "texts.jsonl", "--tokens", 128, "--measure", "position")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_texts(100)
    return make_source(tmp_path / "source", "gpt2")


def compare(source: Path, *flags: object) -> Result:
    return invoke("compare", source, "--to", 64, *FLAGS, *flags)


def test_compare_prints_ranking_and_writes_report_and_figure(source: Path) -> None:
    methods = ("--method", "linear", "--method", "copy", "--method", "random")
    done = compare(source, *methods, "--report", "page.html", "--plot", "figure.svg")
    assert done.exit_code == 0, done.stderr
    assert "16 -> 64 positions, 3 methods" in done.stdout

    numbers: list[str] = []
    ranked: list[str] = []
    for line in done.stdout.splitlines():
        if line.strip().startswith(("1", "2", "3")):
            number, method, *_ = line.split()
            numbers.append(number)
            ranked.append(method)
    assert set(ranked) == {"linear", "copy", "random"}
    assert numbers == ["1", "2", "3"]
    shown = " ".join(done.stdout.split())
    assert "The base in sliding windows of 16 tokens: " in shown
    page = Path("page.html").read_text("utf-8")
    assert "<html" in page
    figure = Path("figure.svg").read_text("utf-8")
    assert "<svg" in figure


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--method", "no-such"), 2, "Unknown method 'no-such'"),
        (("--method", "linear:alpha=0.4"), 2, "--method linear has no setting 'alpha'"),
        (("--method", "hierarchical", "--to", 999), 1, "256"),
        (("--to", 16), 1, "--to 64"),
        (("--length", 128), 2, "--length must be at most --to 64"),
        (("--data", "none.txt"), 1, "none.txt does not exist."),
        (("--measure", "retrieval"), 1, "--measure retrieval does not apply to"),
    ],
)
def test_compare_rejects_invalid_flags_before_loading_a_model(
    flags: tuple[Any, ...], code: int, message: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flags[0] != "--measure":  # which depends on the model
        monkeypatch.setattr("ctxextend.comparison.comparison_run.load_eval_model", None)
    done = compare(source, *flags)
    assert done.exit_code == code
    assert done.stdout == ""
    assert message in done.stderr


def test_compare_prints_ranking_if_the_report_cannot_be_written(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OutputError("page.html could not be written: no space.")

    monkeypatch.setattr(html, "write_report", fail)
    done = compare(source, "--method", "copy", "--report", "page.html", "--plot", "figure.svg")
    assert done.exit_code == 1
    assert " 1 copy" in done.stdout
    assert "no space" in done.stderr
    assert Path("figure.svg").is_file()
