"""The demo, with few windows and one step of training."""

import hashlib
import json
import re
import signal
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ctxextend import demo as demonstration
from ctxextend.cli.app import build_app
from ctxextend.comparison import python_text
from ctxextend.errors import TrainingError
from ctxextend.models import load as running
from ctxextend.report.figures import FileKind
from tests.helpers.json_schemas import check_result


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["demo", *arguments])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare and train for one step on little text, and write few tokens."""
    documents = [topic for topic in topics.values() if len(topic) < 3000]
    for module in (demonstration, python_text):
        monkeypatch.setattr(module, "python_documents", lambda: documents)
    monkeypatch.setattr(demonstration, "WRITTEN_TOKENS", 8)
    monkeypatch.setattr(demonstration, "DEMO_STEPS", 1)


@pytest.mark.usefixtures("short")
def test_demo_compares_trains_and_writes_past_the_old_end() -> None:
    Path("tiny-gpt2").mkdir()  # the demo must use the bundled checkpoint
    done = demo("-o", "kept")
    assert done.exit_code == 0, done.output
    assert "128 -> 256 positions, 5 methods" in done.stdout
    assert "Training the rows for 1 step changes the perplexity at 256 tokens from " in done.stdout
    assert "Get the names and default values" in done.stdout
    assert "IndexError" in done.stdout
    assert json.loads(Path("kept/config.json").read_text("utf-8"))["n_positions"] == 256
    assert "trained:" in Path("kept/ctxextend.yaml").read_text("utf-8")
    page = Path("ctxextend-demo.html").read_text("utf-8")
    assert "bands" in page
    assert re.search("after the comparison, the position table of .*, 1 step on .* documents", page)
    next_command = "ctxextend resize tiny-gpt2 --to 256 --tune TEXT"
    assert f"Next: <code>{next_command}</code>" in page
    assert done.stdout.splitlines()[-1] == f"Next, on your text: {next_command}"


@pytest.mark.usefixtures("short")
def test_demo_prints_one_json_object_and_writes_the_report_next_to_the_output() -> None:
    Path("folder").mkdir()
    done = demo("--json", "-o", "folder/kept")
    values = json.loads(done.stdout)
    check_result(values)
    assert (values["command"], values["max_len_after"], values["steps"]) == ("demo", 256, 1)
    assert values["output"] == "folder/kept"
    assert values["method"] == values["comparison"]["recommended"]
    assert values["text_before"]
    assert values["text_after"]
    assert Path("folder/ctxextend-demo.html").is_file()


@pytest.mark.usefixtures("short")
def test_demo_without_the_training_extra_compares_and_says_what_it_would_add(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise TrainingError("Training requires accelerate, which is not installed.")

    monkeypatch.setattr(demonstration, "check_can_train", fail)
    done = demo()
    assert done.exit_code == 0, done.output
    assert "128 -> 256 positions, 5 methods" in done.stdout
    assert "Training the rows" not in done.output
    said = "To also train its rows and write past the old end: pip install 'ctxextend[train]'"
    assert said in done.stderr.splitlines()
    values = json.loads(demo("--json").stdout)
    check_result(values)
    assert (values["method"], values["steps"], values["loss_after"], values["output"]) == (
        "bands",
        0,
        None,
        None,
    )
    # Without training, there would be nothing to keep.
    failed = demo("--output", "kept")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert failed.stderr == "Error: Training requires accelerate, which is not installed.\n"
    assert not Path("kept").exists()


def test_demo_without_the_plot_extra_prints_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "ctxextend.report.figures.REPORT", FileKind("pages", (".html",), ("no_such_library",))
    )
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


@pytest.mark.usefixtures("short")
def test_demo_interrupted_by_ctrl_c_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "load", lambda *_: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(
        "ctxextend.evaluation.eval_model.load", lambda *_: signal.raise_signal(signal.SIGINT)
    )
    assert demo("-o", "kept").exit_code == 130
    assert not list(Path().iterdir())


def test_default_text_is_held_out_documents_or_else_long_ones_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documents = python_text.python_documents()
    monkeypatch.setattr(python_text, "python_documents", lambda: documents)

    def texts(kind: str) -> list[str]:
        opened: Any = demonstration._open_demo()
        source = opened.checkpoint.source._replace(kind=kind)
        object.__setattr__(opened.checkpoint, "source", source)
        return python_text.default_documents(opened)

    held_out, long = texts("bundled"), texts("folder")
    assert len(held_out) == len(set(held_out)) > 100
    assert all(hashlib.sha256(text.encode()).digest()[0] < 256 / 20 for text in held_out)
    assert len([text for text in long if len(text) > 4096]) > 50
    assert long == sorted(long, key=len, reverse=True)
