"""Methods measured on one loaded model, checked against the folders that `resize` writes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ctxextend
from ctxextend.errors import DataError, ResizeError
from ctxextend.lab.evaluation import Evaluation
from ctxextend.lab.scores import CHUNKS, SEPARATE, SLIDING, START
from tests.helpers import pico
from tests.helpers.rotary_models import make as make_rotary
from tests.helpers.scores import scores_json
from tests.helpers.trainings import invoke, make_encoder, make_source
from tests.helpers.word_tokenizer import write_texts

TO = 64
FEW = ("linear", "copy", "stretch:keep-first=5")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source", "gpt2")


@pytest.fixture
def texts(_empty_folder: None) -> Path:
    return write_texts()


def check_methods(source: Path, texts: Path, methods: list[str], **settings: Any) -> Evaluation:
    """Return scores of methods, which are those of the folders that `resize` writes."""
    found = ctxextend.evaluate(source, data=texts, to=TO, method=methods, **settings)
    assert found.names == methods
    assert found.base is not None
    for method in methods:
        output = ctxextend.resize(source, to=TO, method=method, output=method, force=True).output
        single = ctxextend.evaluate(output, data=texts, base=source, **settings)
        expected = scores_json(single, output.name)
        assert expected
        assert scores_json(found, method) == expected
        assert scores_json(found, found.base.name) == scores_json(single, found.base.name)
    return found


@pytest.mark.parametrize(
    ("model_type", "dtype"), [("gpt2", torch.bfloat16), ("roberta", torch.float32)]
)
def test_scores_of_methods_equal_those_of_their_folders(
    model_type: str, dtype: torch.dtype, texts: Path, tmp_path: Path
) -> None:
    source = make_source(tmp_path / "source", model_type, dtype=dtype)
    methods = ["random", "stretch:keep-first=5", "hierarchical"]
    check_methods(source, texts, methods, tokens=512)
    check_methods(source, texts, methods[:1], tokens=512, precision="bf16", measure="context")


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_scores_of_rotary_methods_equal_those_of_their_folders(
    model_type: str, texts: Path
) -> None:
    sizes = {"num_hidden_layers": 2, "max_position_embeddings": 16}
    source = make_rotary(model_type, "rotary", **sizes).folder
    methods = ["yarn", "linear"]
    if model_type == "llama":  # without settings for each type of layers
        methods += ["dynamic", "theta", "switch", "yarn:beta-fast=16"]
    check_methods(source, texts, methods, tokens=512)


def test_scores_of_encoders_equal_those_of_their_folders_and_rank_by_retrieval(
    tmp_path: Path,
) -> None:
    source = make_encoder(tmp_path / "encoder")
    texts = write_texts(80, 12)
    found = check_methods(source, texts, ["mean", "linear"], tokens=10 * TO)
    assert found.tokens == 10 * TO == TO * found.documents
    assert found.limited_by == "tokens"
    first, second = found.ranking
    assert (first.measure, first.name) == ("retrieval", "MRR")
    assert second.mean <= first.mean
    assert [reference.reading for reference in found.references] == [START, CHUNKS]


def test_differences_say_which_method_is_better_and_what_short_inputs_cost(
    source: Path, texts: Path
) -> None:
    found = ctxextend.evaluate(source, data=texts, to=TO, method=FEW, tokens=512)
    assert [reference.reading for reference in found.references] == [SLIDING, SEPARATE]
    best, *others = found.ranking
    for score in others:
        difference = score.minus(best)
        assert difference.change.mean == pytest.approx(score.mean - best.mean)
        assert difference in found.differences
    for model in found.models:
        short = found.of_short(model.name)
        assert short is not None
        assert short.score.length == short.other.length == 16
        is_unchanged = short.change.mean == 0
        assert is_unchanged == model.keeps_learned_rows == (model.name == "copy")
        values = yaml.safe_load(model.recipe)
        assert values["source"] == str(source)
        assert values["resize"]["method"] == model.name.partition(":")[0]


def test_methods_that_do_not_apply_are_skipped_unless_they_are_named(source: Path) -> None:
    texts = write_texts(900)
    measured: dict[str, Any] = {"data": texts, "tokens": 300, "measure": ["position"]}
    methods = ["all", "stretch:keep-first=5"]
    found = ctxextend.evaluate(source, to=300, method=methods, **measured)
    assert set(found.skipped) == {"hierarchical", "stretch"}
    assert "at most 256" in found.skipped["hierarchical"]
    applicable = set(pico.LEARNED_METHODS) - {"hierarchical", "stretch", "auto"}
    assert set(found.names) == {*applicable, "stretch:keep-first=5"}
    for name in found.skipped:
        with pytest.raises(ResizeError, match=name):
            ctxextend.evaluate(source, to=300, method=["copy", name], **measured)


def test_methods_of_encoders_are_refused_with_too_few_documents(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    texts = write_texts(80, 1)
    with pytest.raises(DataError, match="two documents of at least 62 tokens, but 1 of 1"):
        ctxextend.evaluate(source, data=texts, to=TO, method="copy", measure="retrieval")


def test_methods_without_text_read_the_documentation_of_python(source: Path) -> None:
    found = ctxextend.evaluate(source, to="3x", method=["copy", "linear"], tokens=320)
    assert found.tokens == 288
    assert "The text is Python's documentation. Pass your own with --data." in found.notes
    assert found.names == ["copy", "linear"]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--method", "linear:alpha=0.4"), 2, "--method linear has no setting 'alpha'"),
        (("--to", 16), 1, "--to 64"),
        (("--measure", "retrieval"), 1, "--measure retrieval does not apply to"),
    ],
)
def test_invalid_flags_are_refused_before_a_model_is_loaded(
    flags: tuple[Any, ...],
    code: int,
    message: str,
    source: Path,
    texts: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ctxextend.lab.evaluate.load_eval_model", None)
    done = invoke("evaluate", source, "--to", TO, "--data", texts, *flags)
    assert done.exit_code == code
    assert done.stdout == ""
    assert message in done.stderr


@pytest.mark.parametrize("flag", ["--to 32", "--method copy"])
def test_flags_of_methods_are_refused_for_several_models(flag: str) -> None:
    done = invoke("evaluate", "a", "b", "--data", "book.txt", *flag.split())
    assert done.exit_code == 2
    message = "--to is for one MODEL, got several."
    if "--method" in flag:
        message = "--method requires --to."
    assert message in done.stderr
