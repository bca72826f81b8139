"""`compare` on pico models, end to end, checked against `resize` and `evaluate`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ctxextend.comparison.metrics import LOSS, RECIPROCAL_RANK
from ctxextend.lab.evaluation_result import Evaluation

import ctxextend
from ctxextend.errors import DataError, ResizeError
from ctxextend.json_output import to_json
from tests.helpers import pico
from tests.helpers.trainings import make_encoder, make_source
from tests.helpers.word_tokenizer import write_texts

TO = 64
FEW = ("linear", "copy", "stretch:keep-first=5")
# Fields of a row's evaluation that differ from those of `evaluate` on the same checkpoint.
DIFFERENT = ("source", "seconds", "notes")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source", "gpt2")


@pytest.fixture
def texts(_empty_folder: None) -> Path:
    return write_texts()


def results(evaluation: Evaluation) -> dict[str, Any]:
    values = to_json(evaluation)
    return {name: value for name, value in values.items() if name not in DIFFERENT}


def resized(source: Path, method: str) -> Path:
    name = method.partition(":")[0]
    return ctxextend.resize(source, to=TO, method=method, output=name).output


@pytest.mark.parametrize(
    ("model_type", "dtype"), [("gpt2", torch.bfloat16), ("roberta", torch.float32)]
)
def test_compare_equals_evaluate_of_resized_checkpoint(
    model_type: str, dtype: torch.dtype, texts: Path, tmp_path: Path
) -> None:
    source = make_source(tmp_path / "source", model_type, dtype=dtype)
    methods = ["random", "stretch:keep-first=5"]
    found = ctxextend.compare(source, TO, texts, method=methods, tokens=512)
    assert {row.method for row in found.rows} == set(methods)
    for row in found.rows:
        output = resized(source, row.method)
        single = ctxextend.evaluate(output, texts, base=source, tokens=512)
        assert results(row.evaluation) == results(single)
        assert single.positions is not None
        assert row.score == single.positions.losses["model"]


def test_compare_ranks_encoders_by_retrieval(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    texts = write_texts(80, 12)
    tokens = 12 * TO
    found = ctxextend.compare(source, TO, texts, method=["mean", "linear"], tokens=tokens)
    assert found.kind == "encoder"
    assert found.metric == RECIPROCAL_RANK
    first, second = found.rows
    assert first.delta is None
    assert second.delta is not None
    assert second.delta.mean == pytest.approx(first.score.mean - second.score.mean)
    assert second.delta.mean >= 0

    assert found.base is not None
    for row in found.rows:
        output = resized(source, row.method)
        single = ctxextend.evaluate(output, texts, base=source, tokens=tokens)
        assert results(row.evaluation) == results(single)
        assert single.retrieval is not None
        modes = single.retrieval.modes
        score = row.score.mean
        assert score == modes["model"].reciprocal_rank.mean
        assert found.base.mean == modes["chunks"].reciprocal_rank.mean
        assert row.against_base is not None
        assert row.against_base.mean == pytest.approx(score - found.base.mean)
        assert row.short_inputs is None
    as_json = to_json(found)["rows"][0]
    assert "perplexity" not in as_json["score"]


def test_compare_pairs_windows_and_short_inputs_with_base(source: Path, texts: Path) -> None:
    found = ctxextend.compare(source, TO, texts, method=FEW, tokens=512, measure=["context"])
    assert found.metric == LOSS
    assert found.max_len_before == 16
    assert found.max_len_after == TO
    assert found.table == "transformer.wpe.weight"
    best, *others = found.rows
    positions = best.evaluation.positions
    assert positions is not None
    assert found.base == positions.losses["sliding"]

    best_score = best.score
    assert best.delta is None
    assert best.is_tied
    for row in others:
        score = row.score
        delta = row.delta
        assert delta is not None
        assert delta.mean == pytest.approx(score.mean - best_score.mean)
        assert delta.standard_error is not None
        assert score.standard_error is not None
        assert delta.standard_error < score.standard_error
    for row in found.rows:
        assert row.short_inputs is not None
        is_unchanged = row.short_inputs.mean == 0
        assert is_unchanged == row.keeps_learned_rows
        assert is_unchanged == (row.method == "copy")


def test_compare_skips_methods_that_do_not_apply_unless_named(source: Path) -> None:
    texts = write_texts(900)
    measured: dict[str, Any] = {"tokens": 300, "measure": ["position"]}
    methods = ["all", "stretch:keep-first=5"]
    found = ctxextend.compare(source, 300, texts, method=methods, **measured)
    assert set(found.skipped) == {"hierarchical", "stretch"}
    assert "at most 256" in found.skipped["hierarchical"]
    compared = {row.method for row in found.rows}
    applicable = set(pico.LEARNED_METHODS) - {"hierarchical", "stretch", "auto"}
    assert compared == {*applicable, "stretch:keep-first=5"}
    for name in found.skipped:
        with pytest.raises(ResizeError, match=name):
            ctxextend.compare(source, 300, texts, method=["copy", name])


def test_compare_rejects_encoders_with_too_few_documents(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    texts = write_texts(80, 1)
    with pytest.raises(DataError, match="ranked by document retrieval"):
        ctxextend.compare(source, TO, texts, method=["copy"])


def test_compare_without_text_reads_the_documentation_of_python(source: Path) -> None:
    found = ctxextend.compare(source, "3x", method=["copy", "linear"], tokens=320)
    assert found.tokens == 288
    assert "The text is Python's documentation. Pass your own with --data." in found.notes
    assert {row.method for row in found.rows} == {"copy", "linear"}
