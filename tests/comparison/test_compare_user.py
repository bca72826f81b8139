"""Tests of the command `ctxextend compare`."""

import json
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from ctxextend.cli.app import _handle_signal
from ctxextend.errors import OutputError
from ctxextend.report import html
from ctxextend.training.trainer import RunCallback
from tests.helpers.json_schemas import check_result
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


def test_compare_json_prints_one_object(source: Path) -> None:
    training = (
        "--steps",
        1,
        "--trainable",
        "new",
        "--lr",
        0.01,
        "--batch-size",
        2,
        "--seed",
        5,
    )
    methods = ("--method", "copy", "--method", "stretch:keep-first=5")
    measured = ("--length", 16, "--measure", "context")
    done = compare(source, *methods, *training, *measured, "--json")
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    check_result(values)
    assert values["steps"] == 1
    assert values["trainable"] == "new"
    assert values["seed"] == 5
    assert {row["method"] for row in values["rows"]} == {"copy", "stretch:keep-first=5"}
    points = values["rows"][0]["trained"]["evaluation"]["contexts"]["points"]
    assert [point["context"] for point in points] == [16, 64]
    shown = [line for line in done.stderr.splitlines() if "Warn" in line]
    assert values["warnings"] == [line.removeprefix("Warning: ") for line in shown]


def test_compare_steps_trains_the_default_method_by_default(source: Path) -> None:
    values = json.loads(compare(source, "--steps", 1, "--batch-size", 2, "--json").stdout)
    check_result(values)
    assert [row["method"] for row in values["rows"]] == ["auto"]
    assert values["rows"][0]["trained"] is not None


def test_compare_quick_prints_a_verdict_and_the_next_command(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxextend.comparison.quick.SECONDS", 0)  # the fewest windows
    flags = ("--quick", "--json", "--data", "texts.jsonl", "--model-type", "gpt2")
    done = invoke("compare", source, *flags)
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    check_result(values)
    assert values["max_len_after"] == 32
    assert values["tokens"] == 2 * 32
    methods = {row["method"] for row in values["rows"]}
    assert methods == {"copy", "linear", "bands", "bands:keep-first=16"}
    assert "stretch" in values["skipped"]  # it keeps 20 rows
    assert values["verdict"].startswith(
        "2 windows are too little text to choose; auto takes copy. At 32 tokens copy has"
    )
    assert values["auto"] == "copy"
    assert values["recommended"] == "copy"
    assert values["limited_by"] == "time"
    resize = f"ctxextend resize {source} --model-type gpt2 --to 32 --method copy"
    assert values["next_command"] == resize
    assert "--tokens 640" in done.stderr


def test_compare_quick_without_data_reads_the_documentation_of_python(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxextend.comparison.quick.SECONDS", 0)
    flags = ("--quick", "--tokens", 320, "--to", "3x", "--report", "page.html")
    done = invoke("compare", source, *flags)
    assert done.exit_code == 0, done.stderr
    assert "Next: <code>ctxextend resize" in Path("page.html").read_text("utf-8")
    assert "16 -> 48 positions" in done.stdout
    assert "288 tokens" in done.stdout
    assert "Python's documentation" in done.stderr
    assert Path("page.html").is_file()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--method", "no-such"), 2, "Unknown method 'no-such'"),
        (("--method", "linear:alpha=0.4"), 2, "--method linear has no setting 'alpha'"),
        (("--method", "hierarchical", "--to", 999), 1, "256"),
        (("--to", 16), 1, "--to 64"),
        (("--length", 128), 2, "--length 128"),
        (("--lr", 0.1), 2, "--lr requires --steps"),
        (("--eval-data", "texts.jsonl"), 2, "--eval-data requires --steps"),
        (("--eval-data", "texts.jsonl", "--steps", 1), 1, "texts.jsonl is passed to both --data"),
        (("--data", "none.txt"), 1, "none.txt does not exist."),
        (("--steps", 1, "--seq-len", 128), 1, "--seq-len 128"),
        (("--measure", "retrieval"), 1, "--measure retrieval does not apply to"),
        (("--quick",), 2, "--quick cannot be used with --measure"),
    ],
)
def test_compare_rejects_invalid_flags_before_loading_a_model(
    flags: tuple[Any, ...], code: int, message: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flags[0] not in ("--measure", "--steps"):  # which depend on the model
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_compare_interrupted_in_training_prints_results_and_removes_files(
    number: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_step = RunCallback.on_step_end
    steps = list[object]()

    def stop_second_training(self: RunCallback, *arguments: Any, **named: Any) -> Any:
        steps.append(arguments)
        if len(steps) == 3:
            signal.raise_signal(number)
        return end_step(self, *arguments, **named)

    monkeypatch.setattr(RunCallback, "on_step_end", stop_second_training)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    methods = ("--method", "linear", "--method", "copy")
    training = ("--steps", 2, "--batch-size", 2)
    before = signal.signal(signal.SIGTERM, _handle_signal)
    try:
        done = compare(source, *methods, *training, "--json", "--report", "page.html")
    finally:
        signal.signal(signal.SIGTERM, before)

    assert done.exit_code == 128 + number
    assert [*tmp_path.glob("ctxextend-*")] == []
    values = json.loads(done.stdout)
    if number == signal.SIGTERM:
        assert values["error"]["type"] == "Interrupted"
        assert done.stderr.count("Error") == 0
        return
    check_result(values)
    assert values["complete"] is False
    is_trained = {row["method"]: row["trained"] is not None for row in values["rows"]}
    assert is_trained == {"linear": True, "copy": False}
    page = Path("page.html").read_text("utf-8")
    assert "Incomplete" in page
