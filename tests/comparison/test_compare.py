"""`compare` on pico models, end to end, checked against `resize`, `train` and `evaluate`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctxextend
from ctxextend.comparison import comparison_run
from ctxextend.comparison.comparison_run import ComparisonRun, open_comparison
from ctxextend.comparison.comparison_settings import Compare
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
    return {name: value for name, value in to_json(evaluation).items() if name not in DIFFERENT}


def resized(source: Path, method: str) -> Path:
    return ctxextend.resize(source, to=TO, method=method, output=method.partition(":")[0]).output


def open_run(source: Path, *methods: str, folder: Path, steps: int, **flags: Any) -> ComparisonRun:
    settings = Compare.from_flags(TO, ("texts.jsonl",), methods, steps, **flags)
    return open_comparison(open_model(CheckpointRef(str(source))), settings, folder)


@pytest.mark.parametrize(
    ("model_type", "dtype"), [("gpt2", torch.bfloat16), ("roberta", torch.float32)]
)
def test_compare_equals_evaluate_of_resized_checkpoint(
    model_type: str, dtype: torch.dtype, texts: Path, tmp_path: Path
) -> None:
    source = make_source(tmp_path / "source", model_type, dtype=dtype)
    found = ctxextend.compare(
        source, TO, texts, methods=["random", "stretch:keep-first=5"], tokens=512
    )
    assert {row.method for row in found.rows} == {"stretch:keep-first=5", "random"}
    for row in found.rows:
        single = ctxextend.evaluate(resized(source, row.method), texts, base=source, tokens=512)
        assert results(row.untrained.evaluation) == results(single)
        assert row.untrained.score == single.positions.losses["model"]  # type: ignore[union-attr]
        assert row.trained is None


def test_compare_ranks_encoders_by_retrieval(tmp_path: Path) -> None:
    source, texts = make_encoder(tmp_path / "encoder"), write_texts(80, 12)
    found = ctxextend.compare(source, TO, texts, methods=["mean", "linear"], tokens=12 * TO)
    assert (found.kind, found.metric) == ("encoder", RECIPROCAL_RANK)
    first, second = (row.final for row in found.rows)
    assert first.delta is None
    assert second.delta is not None
    assert second.delta.mean == pytest.approx(first.score.mean - second.score.mean)
    assert second.delta.mean >= 0
    for row in found.rows:
        single = ctxextend.evaluate(resized(source, row.method), texts, base=source, tokens=12 * TO)
        assert results(row.final.evaluation) == results(single)
        assert single.retrieval is not None
        assert row.final.score.mean == single.retrieval.modes["model"].reciprocal_rank.mean
        assert found.base is not None
        assert found.base.mean == single.retrieval.modes["chunks"].reciprocal_rank.mean
        assert row.final.against_base is not None
        assert row.final.against_base.mean == pytest.approx(row.final.score.mean - found.base.mean)
        assert row.final.short_inputs is None
    assert "perplexity" not in to_json(found)["rows"][0]["untrained"]["score"]


def test_compare_pairs_windows_and_short_inputs_with_base(source: Path, texts: Path) -> None:
    found = ctxextend.compare(source, TO, texts, methods=FEW, tokens=512, measure=["context"])
    assert (found.metric, found.max_len_before, found.max_len_after) == (LOSS, 16, TO)
    assert (found.complete, found.table) == (True, "transformer.wpe.weight")
    assert found.base == found.rows[0].final.evaluation.positions.losses["sliding"]  # type: ignore[union-attr]
    best, *others = found.rows
    assert best.final.delta is None
    assert best.final.is_tied
    for row in others:
        assert row.final.delta is not None
        assert row.final.delta.mean == pytest.approx(row.final.score.mean - best.final.score.mean)
        assert row.final.delta.standard_error < row.final.score.standard_error  # type: ignore[operator]
    for row in found.rows:
        assert row.final.short_inputs is not None
        assert (
            (row.final.short_inputs.mean == 0) == row.keeps_learned_rows == (row.method == "copy")
        )


@pytest.mark.parametrize("setting", ["contrastive", "fsdp", "lora", "save_adapter"])
def test_compare_rejects_settings_of_single_runs(setting: str, source: Path, texts: Path) -> None:
    with pytest.raises(TypeError, match=setting):
        ctxextend.compare(source, TO, texts, steps=1, **{setting: 1})  # type: ignore[arg-type]


def test_compare_skips_methods_that_do_not_apply_unless_named(source: Path) -> None:
    texts = write_texts(900)
    measured: dict[str, Any] = {"tokens": 300, "measure": ["position"]}
    found = ctxextend.compare(
        source, 300, texts, methods=["all", "stretch:keep-first=5"], **measured
    )
    assert set(found.skipped) == {"hierarchical", "stretch"}
    assert "at most 256" in found.skipped["hierarchical"]
    assert {row.method for row in found.rows} == {*pico.LEARNED_METHODS, "stretch:keep-first=5"} - {
        *found.skipped,
        "auto",
    }
    for name in found.skipped:
        with pytest.raises(ResizeError, match=name):
            ctxextend.compare(source, 300, texts, methods=["copy", name])


def test_compare_loads_one_model_and_reports_progress(
    source: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, calls = list[object](), list[tuple[int, int, str]]()

    def count_load(*arguments: Any) -> Any:
        loads.append(arguments)
        return load_eval_model(*arguments)

    monkeypatch.setattr(comparison_run, "load_eval_model", count_load)
    ctxextend.compare(
        source,
        TO,
        texts,
        methods=FEW,
        tokens=512,
        steps=2,
        progress=lambda *call: calls.append(call),
    )
    assert len(loads) == 1
    assert {total for _, total, _ in calls} == {sum(tokens for tokens, _, _ in calls)}
    assert {name for _, _, name in calls} == {"the base", "linear", "copy", "stretch:keep-first=5"}


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
        source, texts = make_encoder(tmp_path / "encoder"), write_texts(80, 12)
        measured: dict[str, Any] = {"tokens": 768, "measure": ["retrieval"], "seed": 3}
    else:
        source, texts = make_source(tmp_path / "source", model_type, dtype=dtype), write_texts()
        measured = {"tokens": 256, "measure": ["position", "context"], "seed": 3}
    write_book()
    training: dict[str, Any] = {"steps": 2, "trainable": trainable, "lr": 0.01, "batch_size": 2}
    found = ctxextend.compare(
        source, TO, "book.txt", eval_data=texts, methods=[method], **measured, **training
    )
    assert (found.steps, found.trainable, found.seq_len) == (2, trainable, TO)
    (row,) = found.rows
    assert "  seed: 3\n" in row.recipe
    output = ctxextend.run(parse_recipe(row.recipe, "the row's recipe").recipe, "output").output
    assert output is not None
    single = ctxextend.evaluate(output, texts, base=source, precision="fp32", **measured)
    assert row.trained is not None
    assert results(row.trained.evaluation) == results(single)
    assert results(row.trained.evaluation) != results(row.untrained.evaluation)
    assert row.final is row.trained
    if trainable == "new":
        assert row.trained.short_inputs is not None
        assert row.trained.short_inputs.mean == 0


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
    found.measure(lambda *call: None)
    after = model.state_dict()
    assert [name for name, value in before.items() if not torch.equal(value, after[name])] == []
    assert not any(value.grad is not None for value in model.parameters())
    one, other = found.candidates
    for first, second in zip(one.measured, other.measured, strict=True):
        assert [values.tolist() for values in first.scores] == [
            values.tolist() for values in second.scores
        ]
    assert not [*tmp_path.glob("saves/*")]


def test_comparison_run_evaluates_on_held_out_windows(source: Path, tmp_path: Path) -> None:
    write_texts(150, 40)
    found = open_run(source, "copy", steps=1, folder=tmp_path, tokens=256)
    assert found.trainer is not None
    task = found.trainer.task
    rule = HeldOut(**task.text.facts["held_out"])
    held_out = np.concatenate(held_out_windows(task.text.train.tokens, rule))
    read = np.concatenate(found.evaluation.text.documents)
    assert (
        read.tolist()
        == [token for token in held_out if token != task.files.tokenizer.separator][: len(read)]
    )
    assert any("windows held out of --data" in note for note in found.report(complete=True).notes)


def test_compare_quickly_compares_few_methods_at_twice_the_length(
    source: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxextend.comparison.quick.SECONDS", 0)  # the fewest windows
    found = ctxextend.compare(source, data=texts, quick=True)
    assert (found.is_quick, found.max_len_after, found.tokens) == (True, 32, 2 * 32)
    assert {row.method for row in found.rows} == {"copy", "linear", "bands", "bands:keep-first=16"}
    with pytest.raises(ResizeError, match="--quick cannot be used with --steps"):
        ctxextend.compare(source, data=texts, quick=True, steps=1)
    with pytest.raises(ResizeError, match="--quick cannot be used with --method"):
        ctxextend.compare(source, data=texts, quick=True, methods="copy")


def test_compare_rejects_encoders_with_too_few_documents(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ranked by document retrieval"):
        ctxextend.compare(
            make_encoder(tmp_path / "encoder"), TO, write_texts(80, 1), methods=["copy"]
        )


def test_compare_continues_after_a_failed_training(
    source: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_training = trainer.run_training
    calls = list[object]()

    def fail_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise TrainingError("The loss became NaN or infinite.")
        return run_training(*arguments)

    monkeypatch.setattr(trainer, "run_training", fail_once)
    found = ctxextend.compare(source, TO, texts, methods=["linear", "copy"], steps=1, **QUICK)
    assert [(row.method, row.trained is not None) for row in found.rows] == [
        ("copy", True),
        ("linear", False),
    ]
    assert "Training failed for linear: The loss became NaN or infinite." in found.warnings
