"""The demo, on few texts and with one step of training."""

import hashlib
import json
import signal
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from typer.testing import CliRunner, Result

from ctxextend import demo as demonstration
from ctxextend.cli.app import build_app
from ctxextend.lab import python_text
from tests.helpers.json_schemas import check


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["demo", *arguments])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [topic for topic in topics.values() if len(topic) < 3000]
    monkeypatch.setattr(demonstration, "python_documents", lambda: documents)
    monkeypatch.setattr(demonstration, "ASKED_TEXTS", 1)
    monkeypatch.setattr(demonstration, "TRAINING_TEXTS", 40)
    monkeypatch.setattr(demonstration, "DEMO_STEPS", 1)


@pytest.mark.usefixtures("short")
def test_demo_asks_the_base_the_resized_and_the_trained_checkpoint() -> None:
    Path("tiny-lookup").mkdir()  # the demo must use the bundled checkpoint
    done = demo("--json")
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    check(values, "demo")
    base, resized, trained = values["readers"]
    assert (base["name"], resized["name"], trained["name"]) == ("base", "resized", "trained")
    assert values["beyond"] > values["within"] > 0
    assert base["beyond"] == 0
    assert base["within"] > 0.9
    assert base["answer"] != values["expected"]
    assert resized["beyond"] > 0
    assert f"\n{values['question']} {values['expected']}\n" in values["text"]
    assert [path.name for path in Path().iterdir()] == ["tiny-lookup"]


@pytest.mark.usefixtures("short")
def test_demo_without_the_training_extra_ends_after_the_resize(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demonstration, "can_train", lambda: False)
    done = demo()
    assert done.exit_code == 0, done.output
    assert "pip install 'ctxextend[train]'" in done.stdout
    assert "trained for" not in done.stdout
    assert "ctxextend resize MODEL --to 4x" in done.stdout


@pytest.mark.slow
def test_demo_shows_what_training_brings() -> None:
    base, resized, trained = json.loads(demo("--json").stdout)["readers"]
    assert base["beyond"] < 0.05 < 0.2 < resized["beyond"] < 0.8 < trained["beyond"]
    assert min(base["within"], trained["within"]) > 0.9


@pytest.mark.usefixtures("short")
def test_demo_interrupted_by_ctrl_c_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        demonstration, "_training_texts", lambda *_: signal.raise_signal(signal.SIGINT)
    )
    done = demo()
    assert (done.exit_code, done.stderr) == (130, "Stopped: nothing was written.\n")
    assert not list(Path().iterdir())


def test_default_text_is_held_out_documents_or_else_long_ones_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [*python_text._python_texts()]  # which takes seconds
    monkeypatch.setattr(python_text, "_python_texts", lambda: found)

    held_out = python_text.default_documents("bundled")
    long = python_text.default_documents("folder")
    assert len(held_out) == len(set(held_out)) > 100
    assert all(hashlib.sha256(text.encode()).digest()[0] < 256 / 20 for text in held_out)
    assert len([text for text in long if len(text) > 4096]) > 50
    assert long == sorted(long, key=len, reverse=True)
