"""The demo, with few methods and little text."""

import hashlib
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ctxextend import demo as demonstration
from ctxextend.cli.app import build_app
from ctxextend.comparison.compare import Compare, compare_model, read_methods
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.demo import compare_demo
from ctxextend.models import load as running
from ctxextend.plan.find_tables import OpenedModel
from ctxextend.report.figures import FileKind
from ctxextend.text_data import read_documents


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["demo", *arguments])


def compare_few(opened: OpenedModel, settings: Compare, *others: Any) -> Comparison:
    """Compare two methods on one window, with a warning."""
    few = replace(settings.evaluate, tokens=512, measure=("position",))
    methods = read_methods(("linear", "copy"), settings.to)
    result = compare_model(opened, replace(settings, methods=methods, evaluate=few), *others)
    return replace(result, warnings=(*result.warnings, "The text is short."))


@pytest.fixture
def two_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration, "compare_model", compare_few)


@pytest.fixture
def no_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip text generation, which takes seconds."""
    monkeypatch.setattr(running, "continue_text", lambda *_: ("within", "beyond", 512))


@pytest.mark.usefixtures("two_methods")
def test_demo_resizes_generates_past_the_old_limit_and_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration, "DEMO_LENGTH", 160)  # faster to generate
    Path("tiny-gpt2").mkdir()  # the demo must use the bundled checkpoint
    done = demo("-o", "kept")
    assert done.exit_code == 0, done.output
    assert "tiny-gpt2 accepts 128 tokens and fails at 129: IndexError" in done.stdout
    assert "base and resized outputs for 128 tokens are identical bit for bit." in done.stdout
    before, _, after = done.stdout.partition("---- position 128: the base checkpoint ends here ----")
    assert "Return a new list" in before
    assert "160 tokens. Not yet trained at 160" in after
    assert len(after) > 100
    assert "128 -> 160 positions, 2 methods" in done.stdout
    assert " 1 linear " in done.stdout
    assert Path("kept/model.safetensors").is_file()
    assert "linear" in Path("ctxextend-demo.html").read_text("utf-8")


@pytest.mark.usefixtures("two_methods", "no_generation")
def test_demo_prints_one_json_object_and_writes_the_report_next_to_the_output() -> None:
    Path("folder").mkdir()
    done = demo("--json", "-o", "folder/kept")
    values = json.loads(done.stdout)
    assert (values["command"], values["max_len_after"], values["tokens"]) == ("demo", 512, 512)
    assert (values["same_outputs"], values["output"]) == (True, "folder/kept")
    assert [row["method"] for row in values["comparison"]["rows"]] == ["linear", "copy"]
    assert values["warnings"] == ["The text is short."]
    assert Path("folder/ctxextend-demo.html").is_file()
    assert demo("--quiet", "--report", "other.html").exit_code == 0
    assert Path("other.html").is_file()
    assert not Path("ctxextend-demo.html").exists()


@pytest.mark.usefixtures("two_methods", "no_generation")
def test_demo_without_the_plot_extra_prints_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxextend.report.figures.REPORT", FileKind("pages", (".html",), ("no_such_library",)))
    done = demo()
    assert done.exit_code == 0
    assert "pip install 'ctxextend[plot]'" in done.stderr
    assert not list(Path().iterdir())
    failed = demo("--report", "page.html")
    assert failed.exit_code == 1
    assert failed.stderr.splitlines()[-1] == "pip install 'ctxextend[plot]'"


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_demo_without_torch_writes_nothing(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    done = demo("-o", "kept")
    assert (done.exit_code, list(Path().iterdir())) == (1, [])
    assert f"This needs {library}: pip install {library}" in done.stderr


def test_demo_rejects_an_invalid_report_path_before_any_work() -> None:
    assert demo("--report", "page.txt").exit_code == 2
    done = demo("--report", "none/page.html", "-o", "kept")
    assert done.exit_code == 1
    assert "none does not exist.\nCreate it first." in done.stderr
    assert not Path("kept").exists()


@pytest.mark.usefixtures("no_generation")
def test_demo_interrupted_by_ctrl_c_prints_partial_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(advance: int, total: int, label: str) -> None:
        if label == "copy":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(demonstration, "compare_model", lambda opened, settings, _: compare_few(opened, settings, stop))
    done = demo()
    assert done.exit_code == 130
    assert "incomplete" in done.stdout.lower()
    assert " 1 linear " in done.stdout


def test_compare_demo_compares_every_method_on_the_held_out_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []

    def record(opened: OpenedModel, settings: Compare, *others: Any) -> None:
        calls.append((opened.ref.source, settings, list(read_documents(settings.evaluate.data))))

    monkeypatch.setattr(demonstration, "compare_model", record)
    compare_demo()
    ((source, settings, texts),) = calls
    assert (source, settings.to, settings.methods, settings.train) == ("tiny-gpt2", 512, read_methods((), 512), None)
    assert settings.evaluate.measure == settings.evaluate.length == ()
    assert len(texts) == len(set(texts)) > 100
    assert all(hashlib.sha256(text.encode()).digest()[0] < 256 / 20 for text in texts)
    assert sum(map(len, texts)) > 2 * demonstration.DEMO_TOKENS
