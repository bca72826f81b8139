"""`compare` on pico models, end to end, checked against `resize`, `train` and `evaluate`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctxextend
from ctxextend.comparison import comparison_run
from ctxextend.comparison.comparison_run import ComparisonRun, open_comparison
from ctxextend.comparison.comparison_settings import Compare, TextUse
from ctxextend.comparison.metrics import LOSS, RECIPROCAL_RANK
from ctxextend.errors import DataError, ResizeError, TrainingError
from ctxextend.evaluation.eval_model import load_eval_model
from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.held_out import HeldOut, held_out_windows
from ctxextend.json_output import to_json
from ctxextend.plan.opened_model import open_model
from ctxextend.recipe import CheckpointRef
from ctxextend.recipe_file import parse_recipe
from ctxextend.training import trainer
from tests.helpers import pico
from tests.helpers.rotary_models import make as make_rotary
from tests.helpers.trainings import make_encoder, make_source, write_book
from tests.helpers.word_tokenizer import write_texts

TO = 64
FEW = ("linear", "copy", "stretch:keep-first=5")
QUICK: dict[str, Any] = {"tokens": 128, "measure": ("position",), "lr": 0.01, "batch_size": 2}
# Fields of a row's evaluation that differ from those of `evaluate` on the same checkpoint.
DIFFERENT = ("source", "seconds", "notes", "complete")


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


def open_run(source: Path, *methods: str, folder: Path, steps: int, **flags: Any) -> ComparisonRun:
    model = open_model(CheckpointRef(str(source)))
    text_use = TextUse.from_values(("texts.jsonl",), steps, flags)
    settings = Compare.from_request(TO, text_use, methods)
    return open_comparison(model, settings, folder)


@pytest.mark.parametrize(
    ("model_type", "dtype"), [("gpt2", torch.bfloat16), ("roberta", torch.float32)]
)
def test_compare_equals_evaluate_of_resized_checkpoint(
    model_type: str, dtype: torch.dtype, texts: Path, tmp_path: Path
) -> None:
    source = make_source(tmp_path / "source", model_type, dtype=dtype)
    methods = ["random", "stretch:keep-first=5"]
    found = ctxextend.compare(source, TO, texts, methods=methods, tokens=512)
    assert {row.method for row in found.rows} == set(methods)
    for row in found.rows:
        output = resized(source, row.method)
        single = ctxextend.evaluate(output, texts, base=source, tokens=512)
        assert results(row.untrained.evaluation) == results(single)
        assert single.positions is not None
        assert row.untrained.score == single.positions.losses["model"]
        assert row.trained is None


def test_compare_ranks_encoders_by_retrieval(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    texts = write_texts(80, 12)
    tokens = 12 * TO
    found = ctxextend.compare(source, TO, texts, methods=["mean", "linear"], tokens=tokens)
    assert found.kind == "encoder"
    assert found.metric == RECIPROCAL_RANK
    first, second = (row.final for row in found.rows)
    assert first.delta is None
    assert second.delta is not None
    assert second.delta.mean == pytest.approx(first.score.mean - second.score.mean)
    assert second.delta.mean >= 0

    assert found.base is not None
    for row in found.rows:
        output = resized(source, row.method)
        single = ctxextend.evaluate(output, texts, base=source, tokens=tokens)
        assert results(row.final.evaluation) == results(single)
        assert single.retrieval is not None
        modes = single.retrieval.modes
        score = row.final.score.mean
        assert score == modes["model"].reciprocal_rank.mean
        assert found.base.mean == modes["chunks"].reciprocal_rank.mean
        assert row.final.against_base is not None
        assert row.final.against_base.mean == pytest.approx(score - found.base.mean)
        assert row.final.short_inputs is None
    as_json = to_json(found)["rows"][0]
    assert "perplexity" not in as_json["untrained"]["score"]


def test_compare_pairs_windows_and_short_inputs_with_base(source: Path, texts: Path) -> None:
    found = ctxextend.compare(source, TO, texts, methods=FEW, tokens=512, measure=["context"])
    assert found.metric == LOSS
    assert found.max_len_before == 16
    assert found.max_len_after == TO
    assert found.complete
    assert found.table == "transformer.wpe.weight"
    best, *others = found.rows
    positions = best.final.evaluation.positions
    assert positions is not None
    assert found.base == positions.losses["sliding"]

    best_score = best.final.score
    assert best.final.delta is None
    assert best.final.is_tied
    for row in others:
        score = row.final.score
        delta = row.final.delta
        assert delta is not None
        assert delta.mean == pytest.approx(score.mean - best_score.mean)
        assert delta.standard_error is not None
        assert score.standard_error is not None
        assert delta.standard_error < score.standard_error
    for row in found.rows:
        assert row.final.short_inputs is not None
        is_unchanged = row.final.short_inputs.mean == 0
        assert is_unchanged == row.keeps_learned_rows
        assert is_unchanged == (row.method == "copy")


@pytest.mark.parametrize("setting", ["contrastive", "fsdp", "lora", "save_adapter"])
def test_compare_rejects_settings_of_single_runs(setting: str, source: Path, texts: Path) -> None:
    with pytest.raises(TypeError, match=setting):
        ctxextend.compare(source, TO, texts, steps=1, **{setting: 1})  # type: ignore[arg-type]


def test_compare_skips_methods_that_do_not_apply_unless_named(source: Path) -> None:
    texts = write_texts(900)
    measured: dict[str, Any] = {"tokens": 300, "measure": ["position"]}
    methods = ["all", "stretch:keep-first=5"]
    found = ctxextend.compare(source, 300, texts, methods=methods, **measured)
    assert set(found.skipped) == {"hierarchical", "stretch"}
    assert "at most 256" in found.skipped["hierarchical"]
    compared = {row.method for row in found.rows}
    applicable = set(pico.LEARNED_METHODS) - {"hierarchical", "stretch", "auto"}
    assert compared == {*applicable, "stretch:keep-first=5"}
    for name in found.skipped:
        with pytest.raises(ResizeError, match=name):
            ctxextend.compare(source, 300, texts, methods=["copy", name])


def test_compare_names_the_method_of_auto_if_no_other_applies() -> None:
    texts = write_texts()
    make_rotary("bloom", n_layer=2, seq_length=16)
    with pytest.raises(ResizeError, match="No method that is compared by default") as raised:
        ctxextend.compare("bloom", TO, texts, tokens=128)
    assert raised.value.hint == "To measure what auto does, use --method limits."
    found = ctxextend.compare("bloom", TO, texts, methods=["limits"], tokens=128)
    assert [row.method for row in found.rows] == ["limits"]


def test_compare_loads_one_model_and_reports_progress(
    source: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[object] = []
    calls: list[tuple[int, int, str]] = []

    def count_load(*arguments: Any) -> Any:
        loads.append(arguments)
        return load_eval_model(*arguments)

    def record(advance: int, total: int, label: str = "") -> None:
        calls.append((advance, total, label))

    monkeypatch.setattr(comparison_run, "load_eval_model", count_load)
    ctxextend.compare(source, TO, texts, methods=FEW, tokens=512, steps=2, progress=record)
    assert len(loads) == 1
    tokens = sum(call[0] for call in calls)
    assert {call[1] for call in calls} == {tokens}
    assert {call[2] for call in calls} == {"the base", *FEW}


@pytest.mark.parametrize(
    ("model_type", "dtype", "trainable", "method"),
    [
        ("gpt2", torch.bfloat16, "all", "linear"),
        ("bert", torch.float32, "new", "copy"),
        ("encoder", torch.float32, "all", "copy"),
        ("encoder", torch.float32, "all-but-positions", "copy"),
    ],
)
def test_compare_trains_like_run_with_recipe_of_row(
    model_type: str, dtype: torch.dtype, trainable: str, method: str, tmp_path: Path
) -> None:
    if model_type == "encoder":
        source = make_encoder(tmp_path / "encoder")
        texts = write_texts(80, 12)
        measured: dict[str, Any] = {"tokens": 768, "measure": ["retrieval"], "seed": 3}
    else:
        source = make_source(tmp_path / "source", model_type, dtype=dtype)
        texts = write_texts()
        measured = {"tokens": 256, "measure": ["position", "context"], "seed": 3}
    write_book()
    training: dict[str, Any] = {"steps": 2, "trainable": trainable, "lr": 0.01, "batch_size": 2}
    found = ctxextend.compare(
        source, TO, "book.txt", eval_data=texts, methods=[method], **measured, **training
    )
    assert found.steps == 2
    assert found.trainable == trainable
    assert found.seq_len == TO
    (row,) = found.rows
    assert "  seed: 3\n" in row.recipe

    recipe = parse_recipe(row.recipe, "the row's recipe").recipe
    output = ctxextend.run(recipe, "output").output
    assert output is not None
    single = ctxextend.evaluate(output, texts, base=source, precision="fp32", **measured)
    assert row.trained is not None
    trained = results(row.trained.evaluation)
    assert trained == results(single)
    assert trained != results(row.untrained.evaluation)
    assert row.final is row.trained
    if trainable == "new":
        assert row.trained.short_inputs is not None
        assert row.trained.short_inputs.mean == 0


def ignore(advance: int, total: int, label: str = "") -> None:
    """Take progress, and report nothing."""


@pytest.mark.parametrize("trainable", ["new", "all-but-positions", "all"])
@pytest.mark.usefixtures("texts")
def test_comparison_run_restores_weights_after_each_method(
    trainable: str, source: Path, tmp_path: Path
) -> None:
    # The same method under two names: leftovers of the first training would change the second.
    methods = ("linear", "linear:keep-first=0")
    found = open_run(source, *methods, steps=2, folder=tmp_path, trainable=trainable, **QUICK)
    model = found.resizer.model.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found.measure(ignore)

    after = model.state_dict()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name
    for value in model.parameters():
        assert value.grad is None
    one, other = found.candidates
    for first, second in zip(one.measured, other.measured, strict=True):
        for values, others in zip(first.scores, second.scores, strict=True):
            assert values.tolist() == others.tolist()
    assert not [*tmp_path.glob("saves/*")]


def test_comparison_run_evaluates_on_held_out_windows(source: Path, tmp_path: Path) -> None:
    write_texts(150, 40)
    found = open_run(source, "copy", steps=1, folder=tmp_path, tokens=256)
    assert found.trainer is not None
    task = found.trainer.task
    rule = HeldOut(**task.text.facts["held_out"])
    windows = np.concatenate(held_out_windows(task.text.train.tokens, rule))
    held_out = windows[windows != task.files.tokenizer.separator]

    read = np.concatenate(found.evaluation.text.documents)
    assert read.tolist() == held_out[: len(read)].tolist()
    notes = found.report(complete=True).notes
    assert any("windows held out of --data" in note for note in notes)


def test_compare_quickly_compares_few_methods_at_twice_the_length(
    source: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxextend.comparison.quick.SECONDS", 0)  # the fewest windows
    found = ctxextend.compare(source, data=texts, quick=True)
    assert found.is_quick
    assert found.max_len_after == 32
    assert found.tokens == 2 * 32
    methods = {row.method for row in found.rows}
    assert methods == {"copy", "linear", "bands", "bands:keep-first=16"}
    with pytest.raises(ResizeError, match="--quick cannot be used with --steps"):
        ctxextend.compare(source, data=texts, quick=True, steps=1)
    with pytest.raises(ResizeError, match="--quick cannot be used with --method"):
        ctxextend.compare(source, data=texts, quick=True, methods="copy")


def test_compare_rejects_encoders_with_too_few_documents(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    texts = write_texts(80, 1)
    with pytest.raises(DataError, match="ranked by document retrieval"):
        ctxextend.compare(source, TO, texts, methods=["copy"])


def test_compare_continues_after_a_failed_training(
    source: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_training = trainer.run_training
    calls: list[object] = []

    def fail_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise TrainingError("The loss became NaN or infinite.")
        return run_training(*arguments)

    monkeypatch.setattr(trainer, "run_training", fail_once)
    found = ctxextend.compare(source, TO, texts, methods=["linear", "copy"], steps=1, **QUICK)
    copy, linear = found.rows
    assert copy.method == "copy"
    assert copy.trained is not None
    assert linear.method == "linear"
    assert linear.trained is None
    assert "Training failed for linear: The loss became NaN or infinite." in found.warnings
