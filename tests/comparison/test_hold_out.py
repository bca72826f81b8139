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
    ctxextend.register_method(
        "oracle", lambda rows, length: request.param()[:length].astype(np.float64)
    )
    yield
    METHODS.pop("oracle", None)


def held_out(comparison: Comparison, method: str) -> HeldOutRows:
    (row,) = (row for row in comparison.rows if row.method == method)
    assert row.final.evaluation.held_out_rows is not None
    return row.final.evaluation.held_out_rows


def tiny_table() -> Any:
    from safetensors.numpy import load_file

    root = ctxextend.plan_resize("tiny-gpt2", 256).plan.checkpoint.root
    return load_file(root / "model.safetensors")["transformer.wpe.weight"]


@pytest.mark.parametrize("oracle", [tiny_table], indirect=True)
@pytest.mark.usefixtures("oracle")
def test_compare_hold_out_measures_against_the_unmodified_checkpoint() -> None:
    from transformers import AutoTokenizer, GPT2LMHeadModel

    text = (ROOT / "LICENSE").read_text()
    (data := Path("text.txt")).write_text(text)
    settings: dict[str, Any] = {"methods": ["oracle", "copy", "linear"], "tokens": 1200}
    found = ctxextend.compare("tiny-gpt2", None, data, hold_out=HOLD_OUT, **settings)
    root = ctxextend.plan_resize("tiny-gpt2", 256).plan.checkpoint.root
    model = GPT2LMHeadModel.from_pretrained(root)
    ids = AutoTokenizer.from_pretrained(root)(text)["input_ids"]
    beyond, short = list[float](), list[float]()
    for start in range(0, 9 * LENGTH, LENGTH):
        for size, losses in ((LENGTH, beyond), (HOLD_OUT, short)):
            inputs = torch.tensor(ids[start : start + size])[None]
            with torch.inference_mode():
                logits = model(inputs).logits[0]
            first = HOLD_OUT if size == LENGTH else 1
            losses.append(
                torch.nn.functional.cross_entropy(logits[first - 1 : -1], inputs[0, first:]).item()
            )
    exact = held_out(found, "oracle").scores
    assert found.base is not None
    assert found.base.mean == pytest.approx(np.mean(beyond), rel=1e-5) == exact["beyond"].model.mean
    assert exact["short"].reference.mean == pytest.approx(np.mean(short), rel=1e-5)
    assert (
        [score.change.mean for score in exact.values()]
        == [0, 0]
        == [score.change.ci95 for score in exact.values()]
    )
    assert (found.hold_out, found.max_len_before, found.max_len_after) == (
        HOLD_OUT,
        HOLD_OUT,
        LENGTH,
    )
    copied = held_out(found, "copy")
    assert (copied.texts, copied.scores["short"].change.mean) == (9, 0)
    assert copied.scores["beyond"].change.sign == 1
    assert "to: 2x\n" in found.rows[0].recipe
    assert (
        found.next_command == f"ctxextend resize tiny-gpt2 --to 2x --method {found.rows[0].method}"
    )
    inside = [
        losses for bucket in copied.buckets for losses in [bucket.losses] if bucket.stop <= HOLD_OUT
    ]
    assert all(losses["model"] == losses["reference"] for losses in inside)


def test_compare_hold_out_of_masked_models_scores_the_same_masks(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "roberta", max_position_embeddings=96 + 2)
    found = ctxextend.compare(
        source, 80, write_texts(90, 9), methods=["copy", "linear"], hold_out=40
    )
    scores = held_out(found, "copy").scores
    assert (held_out(found, "copy").texts, found.max_len_after) == (9, 80)
    assert scores["beyond"].model.tokens == 9 * round(0.15 * (80 - 2 - 39))
    assert scores["short"].model.tokens == 9 * round(0.15 * (40 - 2))
    assert scores["short"].change.mean == 0 != held_out(found, "linear").scores["short"].change.mean
    assert "to: 2x\n" in found.rows[0].recipe
    assert (
        ctxextend.compare(source, 60, Path("texts.jsonl"), methods="copy", hold_out=40)
        .rows[0]
        .recipe.count("144")
    )


@pytest.mark.parametrize("tokens", [30, 60])
def test_compare_hold_out_ranks_encoders_by_cosine_to_the_reference(
    tokens: int, tmp_path: Path
) -> None:
    source, data = make_encoder(tmp_path / "encoder"), write_texts(tokens, 10)
    found = ctxextend.compare(source, None, data, methods=["copy", "zero:scope=new"], hold_out=8)
    assert (found.metric, found.base and found.base.mean) == (COSINE, 1)
    first, *_ = found.rows
    assert first.final.score.mean == max(row.final.score.mean for row in found.rows) < 1
    scores = held_out(found, "copy").scores
    assert scores["short"].model.mean == 1
    assert (
        scores["recall"].model.samples
        == scores["reciprocal_rank"].change.samples
        == scores["beyond"].model.samples
    )
    assert 0 < scores["reciprocal_rank"].reference.mean <= 1


def test_compare_hold_out_shows_the_reference_on_screen_in_json_report_and_figure() -> None:
    write_texts(150, 10)
    flags = [
        "compare",
        "tiny-gpt2",
        "--hold-out",
        64,
        "--to",
        "2x",
        "--data",
        "texts.jsonl",
        "--tokens",
        1200,
    ]
    flags += [
        "--method",
        "copy",
        "--method",
        "linear",
        "--report",
        "page.html",
        "--plot",
        "figure.svg",
    ]
    done = invoke(*flags)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("With 64 of 128 rows held out, ")
    lines = [line.split() for line in done.stdout.splitlines()]
    table = lines.index(next(line for line in lines if line[:1] == ["method"]))
    assert [line[0] for line in lines[table + 1 : table + 4]] == ["reference", "1", "2"]
    assert lines[-1][:3] == ["Next:", "ctxextend", "resize"]
    assert "reference rows" in Path("page.html").read_text()
    assert "delta vs. reference" in Path("page.html").read_text()
    assert "reference" in Path("figure.svg").read_text()
    values = json.loads(invoke(*flags[:-4], "--json").stdout)
    check(values, "compare")
    perplexity = values["base"]["perplexity"]
    assert math.isclose(perplexity, float(lines[table + 1][1]), rel_tol=0.02)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        (
            {"hold_out": 128},
            ResizeError,
            "--hold-out 128: tiny-gpt2 has a context length of 128, so no rows",
        ),
        ({"to": 64}, ResizeError, "--to 64 with --hold-out 64: .* up to 128"),
        ({"to": "4x"}, ResizeError, "--to 256 with --hold-out 64: .* up to 128"),
        (
            {"data": "short.jsonl"},
            DataError,
            r"needs 8 texts, but --data has 0 texts .* longest document has 60\)",
        ),
        (
            {"data": "few.jsonl"},
            DataError,
            "needs 8 texts, but --data has 3 texts of more than 64 tokens",
        ),
        ({"hold_out": 7}, ResizeError, "--hold-out must be at least 8, got 7"),
        ({"hold_out": None}, ResizeError, "--to or --hold-out is missing"),
        ({"steps": 1}, ResizeError, "--steps cannot be used with --hold-out"),
        ({"length": [64]}, ResizeError, "--length cannot be used with --hold-out"),
        ({"measure": ["passkey"]}, ResizeError, "--measure cannot be used with --hold-out"),
    ],
)
def test_compare_hold_out_rejects_bad_input_before_a_model_is_loaded(
    changes: dict[str, Any],
    error: type[CtxextendError],
    match: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        comparison_run, "load_eval_model", lambda *_: pytest.fail("a model was loaded")
    )
    for name, words, documents in (("short", 59, 20), ("few", 70, 3)):
        Path(f"{name}.jsonl").write_text(
            "\n".join([json.dumps({"text": "a " * words})] * documents)
        )
    settings = {"to": None, "data": write_texts(200, 4), "hold_out": 64} | changes
    with pytest.raises(error, match=match):
        ctxextend.compare("tiny-gpt2", **settings)


@pytest.mark.parametrize("model_type", ["xlm", "ctrl"])
def test_compare_hold_out_rejects_tables_that_follow_a_formula(model_type: str) -> None:
    with pytest.raises(
        ResizeError, match="follow a formula, so the rows beyond any length are known exactly"
    ):
        ctxextend.compare(make(model_type), None, write_texts(), hold_out=8)


def test_resize_auto_chooses_by_held_out_rows() -> None:
    write_texts(60, 8)
    flags = ["resize", "tiny-gpt2", "--to", "4x", "--method", "auto", "--hold-out", 64]
    done = invoke(*flags, "--data", "texts.jsonl", "--output", "new", "--json")
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    assert (values["max_len_after"], values["comparison"]["max_len_after"]) == (512, 128)
    best, *others = values["comparison"]["rows"]
    assert len(others) == 4
    assert values["method"] == best["method"].partition(":")[0]
    assert "With 64 of 128 rows held out, " in done.stderr
    assert f"method: {values['method']}" in Path("new/ctxextend.yaml").read_text()
    assert (
        "so --to 64 needs no method"
        in invoke(*flags[:3], 64, "--data", "texts.jsonl", "--hold-out", 32).stderr
    )
    short = invoke(*flags[:-1], 0, "--data", "texts.jsonl")
    assert (short.exit_code, "--hold-out must be at least 8, got 0" in short.stderr) == (2, True)
    copy, keep = ["--method", "copy", "--hold-out", 64], ["--hold-out", 64, "--keep-first", 3]
    for wrong in (
        flags,
        [*flags[:4], "--data", "texts.jsonl", *copy],
        [*flags[:4], "--data", "texts.jsonl", *keep],
    ):
        assert invoke(*wrong).exit_code == 2
