"""Held-out rows: `compare` and `resize --method auto`, checked by hand with transformers."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctxextend
from ctxextend.comparison import comparison_run
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.metrics import COSINE
from ctxextend.errors import CtxextendError, DataError, ResizeError
from ctxextend.evaluation.evaluation_result import HeldOutRows
from ctxextend.tables.methods import METHODS
from tests.helpers.json_schemas import check
from tests.helpers.repository import ROOT
from tests.helpers.sinusoidal_models import make
from tests.helpers.trainings import invoke, make_encoder, make_source
from tests.helpers.word_tokenizer import write_texts

HOLD_OUT, LENGTH = 64, 128


@pytest.fixture
def oracle(request: pytest.FixtureRequest) -> Iterator[None]:
    """Register a method that returns the rows that were cut off."""

    def rows_cut_off(rows: Any, length: int) -> Any:
        return request.param()[:length].astype(np.float64)

    ctxextend.register_method("oracle", rows_cut_off)
    yield
    METHODS.pop("oracle", None)


def held_out(comparison: Comparison, method: str) -> HeldOutRows:
    (row,) = (row for row in comparison.rows if row.method == method)
    found = row.evaluation.held_out_rows
    assert found is not None
    return found


def tiny_root() -> Path:
    return ctxextend.plan_resize("tiny-gpt2", 256).plan.checkpoint.root


def tiny_table() -> Any:
    from safetensors.numpy import load_file

    return load_file(tiny_root() / "model.safetensors")["transformer.wpe.weight"]


def mean_loss(model: Any, inputs: torch.Tensor, first: int) -> float:
    """Return the mean loss of the tokens from index `first` of a text."""
    with torch.inference_mode():
        logits = model(inputs[None]).logits[0]
    predictions = logits[first - 1 : -1]
    return torch.nn.functional.cross_entropy(predictions, inputs[first:]).item()


@pytest.fixture
def license_text(_empty_folder: None) -> Path:
    path = Path("text.txt")
    path.write_text((ROOT / "LICENSE").read_text())
    return path


@pytest.mark.parametrize("oracle", [tiny_table], indirect=True)
@pytest.mark.usefixtures("oracle")
def test_compare_hold_out_measures_against_the_unmodified_checkpoint(license_text: Path) -> None:
    from transformers import AutoTokenizer, GPT2LMHeadModel

    methods = ["oracle", "copy", "linear"]
    found = ctxextend.compare(
        "tiny-gpt2", None, license_text, hold_out=HOLD_OUT, methods=methods, tokens=1200
    )
    assert found.hold_out == HOLD_OUT
    assert found.max_len_before == HOLD_OUT
    assert found.max_len_after == LENGTH

    model = GPT2LMHeadModel.from_pretrained(tiny_root())
    tokenizer = AutoTokenizer.from_pretrained(tiny_root())
    ids = torch.tensor(tokenizer(license_text.read_text())["input_ids"])
    beyond: list[float] = []
    short: list[float] = []
    for start in range(0, 9 * LENGTH, LENGTH):
        text = ids[start : start + LENGTH]
        beyond.append(mean_loss(model, text, HOLD_OUT))
        short.append(mean_loss(model, text[:HOLD_OUT], 1))
    exact = held_out(found, "oracle").scores
    assert found.base is not None
    assert found.base.mean == pytest.approx(np.mean(beyond), rel=1e-5)
    assert exact["beyond"].model.mean == found.base.mean
    assert exact["short"].reference.mean == pytest.approx(np.mean(short), rel=1e-5)
    assert set(exact) == {"beyond", "short"}
    for score in exact.values():
        assert score.change.mean == 0
        assert score.change.ci95 == 0

    copied = held_out(found, "copy")
    assert copied.texts == 9
    assert copied.scores["short"].change.mean == 0
    assert copied.scores["beyond"].change.sign == 1
    for bucket in copied.buckets:
        if bucket.stop <= HOLD_OUT:
            assert bucket.losses["model"] == bucket.losses["reference"]

    best = found.rows[0]
    assert "to: 2x\n" in best.recipe
    assert found.next_command == f"ctxextend resize tiny-gpt2 --to 2x --method {best.method}"


def test_compare_hold_out_of_masked_models_scores_the_same_masks(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "roberta", max_position_embeddings=96 + 2)
    data = write_texts(90, 9)
    found = ctxextend.compare(source, 80, data, methods=["copy", "linear"], hold_out=40)
    assert found.max_len_after == 80
    assert "to: 2x\n" in found.rows[0].recipe
    copied = held_out(found, "copy")
    beyond = copied.scores["beyond"]
    short = copied.scores["short"]
    assert copied.texts == 9
    assert beyond.model.tokens == 9 * round(0.15 * (80 - 2 - 39))
    assert short.model.tokens == 9 * round(0.15 * (40 - 2))
    assert short.change.mean == 0
    assert held_out(found, "linear").scores["short"].change.mean != 0

    found = ctxextend.compare(source, 60, data, methods="copy", hold_out=40)
    assert "144" in found.rows[0].recipe


@pytest.mark.parametrize("tokens", [30, 60])
def test_compare_hold_out_ranks_encoders_by_cosine_to_the_reference(
    tokens: int, tmp_path: Path
) -> None:
    source = make_encoder(tmp_path / "encoder")
    data = write_texts(tokens, 10)
    found = ctxextend.compare(source, None, data, methods=["copy", "zero:scope=new"], hold_out=8)
    assert found.metric == COSINE
    assert found.base is not None
    assert found.base.mean == 1
    means = [row.score.mean for row in found.rows]
    assert means[0] == max(means)
    assert means[0] < 1

    scores = held_out(found, "copy").scores
    assert scores["short"].model.mean == 1
    texts = scores["beyond"].model.samples
    assert scores["recall"].model.samples == texts
    assert scores["reciprocal_rank"].change.samples == texts
    assert 0 < scores["reciprocal_rank"].reference.mean <= 1


def test_compare_hold_out_shows_the_reference_on_screen_in_json_report_and_figure() -> None:
    write_texts(150, 10)
    flags = [
        "--hold-out",
        64,
        "--to",
        "2x",
        "--data",
        "texts.jsonl",
        "--tokens",
        1200,
        "--method",
        "copy",
        "--method",
        "linear",
    ]
    done = invoke("compare", "tiny-gpt2", *flags, "--report", "page.html", "--plot", "figure.svg")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("With 64 of 128 rows held out, ")
    lines = [line.split() for line in done.stdout.splitlines()]
    first_words = [line[0] if line else "" for line in lines]
    header = first_words.index("method")
    assert first_words[header + 1 : header + 4] == ["reference", "1", "2"]
    assert "Next:" not in done.stdout  # only on a terminal
    page = Path("page.html").read_text()
    figure = Path("figure.svg").read_text()
    assert "reference rows" in page
    assert "delta vs. reference" in page
    assert "reference" in figure

    values = json.loads(invoke("compare", "tiny-gpt2", *flags, "--json").stdout)
    check(values, "compare")
    shown = float(lines[header + 1][1])
    assert math.isclose(values["base"]["perplexity"], shown, rel_tol=0.02)


def write_documents(name: str, words: int, documents: int) -> None:
    line = json.dumps({"text": "a " * words})
    Path(name).write_text("\n".join([line] * documents))


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        (
            {"hold_out": 128},
            ResizeError,
            "hold_out=128: tiny-gpt2 has a context length of 128, so no rows",
        ),
        ({"to": 64}, ResizeError, "to=64 with hold_out=64: .* up to 128"),
        ({"to": "4x"}, ResizeError, "to=256 with hold_out=64: .* up to 128"),
        (
            {"data": "short.jsonl"},
            DataError,
            r"needs 8 texts, but data has 0 texts .* longest document has 60\)",
        ),
        (
            {"data": "few.jsonl"},
            DataError,
            "needs 8 texts, but data has 3 texts of more than 64 tokens",
        ),
        ({"hold_out": 7}, ResizeError, "hold_out must be at least 8, got 7"),
        ({"hold_out": None}, ResizeError, "to or hold_out is missing"),
        ({"steps": 1}, ResizeError, "steps cannot be used with hold_out"),
        ({"length": [64]}, ResizeError, "length cannot be used with hold_out"),
        ({"measure": ["effective"]}, ResizeError, "measure cannot be used with hold_out"),
    ],
)
def test_compare_hold_out_rejects_bad_input_before_a_model_is_loaded(
    changes: dict[str, Any],
    error: type[CtxextendError],
    match: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*_: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr(comparison_run, "load_eval_model", load)
    write_documents("short.jsonl", 59, 20)
    write_documents("few.jsonl", 70, 3)
    settings = {"to": None, "data": write_texts(200, 4), "hold_out": 64} | changes
    with pytest.raises(error, match=match):
        ctxextend.compare("tiny-gpt2", **settings)


@pytest.mark.parametrize("model_type", ["xlm", "ctrl"])
def test_compare_hold_out_rejects_tables_that_follow_a_formula(model_type: str) -> None:
    source = make(model_type)
    data = write_texts()
    message = "follow a formula, so the rows beyond any length are known exactly"
    with pytest.raises(ResizeError, match=message):
        ctxextend.compare(source, None, data, hold_out=8)
