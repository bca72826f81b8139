"""Tuned candidates of `compare`: METHOD+tuned, whose table is trained on the text for a while."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ctxextend
from ctxextend.cli.app import build_app
from ctxextend.comparison import comparison_run
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.comparison_run import ComparisonRun, open_comparison
from ctxextend.comparison.comparison_settings import Compare, TextUse
from ctxextend.comparison.tuning_settings import tuning_settings
from ctxextend.errors import DataError, MethodError, ResizeError, TrainingError
from ctxextend.evaluation.eval_model import open_files
from ctxextend.evaluation.evaluation_run import EvaluationRun
from ctxextend.held_out import HeldOut, held_out_windows
from ctxextend.plan.opened_model import open_model
from ctxextend.planned import prepare_resize
from ctxextend.recipe import CheckpointRef, Recipe, Resize
from ctxextend.recipe_file import parse_recipe
from ctxextend.training import time_limit, train
from tests.helpers import pico, rotary_models, sinusoidal_models
from tests.helpers.json_schemas import check
from tests.helpers.trainings import (
    fix_steps,
    make_encoder,
    make_source,
    succeed,
    unwrapped,
    write_book,
)

TO = 64
STEPS = 4
MEASURED: dict[str, Any] = {"tokens": 512, "measure": ["position"]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source", "gpt2")


@pytest.fixture
def book(_empty_folder: None) -> Path:
    """Return book.txt with 40 windows of the new length."""
    write_book(40 * TO)
    return Path("book.txt")


@pytest.fixture
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all tuned tables take the same few steps, whatever the time."""

    fix_steps(monkeypatch, STEPS)


def open_run(
    source: Path, *methods: str, data: tuple[str, ...], folder: Path, **flags: Any
) -> ComparisonRun:
    text_use = TextUse.from_values(data, 0, flags, methods)
    settings = Compare.from_request(TO, text_use, methods)
    return open_comparison(open_model(CheckpointRef(str(source))), settings, folder)


def ignore(advance: int, total: int, label: str = "") -> None:
    """Take progress, and report nothing."""


def final_scores(run: ComparisonRun) -> dict[str, list[list[float]]]:
    """Return the scores of each candidate by name, sample by sample."""
    scores = dict[str, list[list[float]]]()
    for candidate in run.candidates:
        (measured,) = candidate.measured
        scores[candidate.name] = [values.tolist() for values in measured.scores]
    return scores


def tensors_of(output: Path) -> dict[str, Any]:
    """Return the tensors of a checkpoint, which may be in a sentence-transformers folder."""
    nested = output / "0_Transformer"
    if nested.is_dir():
        output = nested
    return pico.tensor_bytes(output)


def means(found: Comparison) -> dict[str, float]:
    return {row.method: row.final.score.mean for row in found.rows}


# ---- results


def test_compare_ranks_tuned_candidates_with_the_others(
    source: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limit, "FEWEST_STEPS", 1)
    Path("other.txt").write_text(f"w1 {book.read_text()}")
    base = ctxextend.train(
        source, "other.txt", 300, trainable="all", lr=0.01, batch_size=8, output="base"
    ).output

    methods = ["random+tuned", "random", "copy"]
    found = ctxextend.compare(base, TO, book, methods=methods, budget=5, **MEASURED)

    assert found.complete
    assert {row.method for row in found.rows} == set(methods)
    scores = means(found)
    assert [row.method for row in found.rows] == sorted(scores, key=scores.__getitem__)
    assert scores["random+tuned"] < scores["random"]
    rows = {row.method: row for row in found.rows}
    assert rows["random"].tuned is None
    tuned = rows["random+tuned"].tuned
    assert tuned is not None
    assert tuned.steps >= 1
    assert tuned.budget == 5
    assert 0 < tuned.seconds < rows["random+tuned"].seconds
    assert rows["random+tuned"].trained is None
    assert found.steps == 0


def test_compare_tunes_the_rows_that_a_method_creates(
    source: Path, book: Path, _few_steps: None
) -> None:
    methods = ["copy+tuned", "linear+tuned", "copy"]
    found = ctxextend.compare(source, TO, book, methods=methods, tokens=512, measure=["context"])
    keeps = {row.method: row.keeps_learned_rows for row in found.rows}
    assert keeps == {"copy+tuned": True, "linear+tuned": False, "copy": True}
    for row in found.rows:
        assert row.untrained.short_inputs is not None
        assert (row.untrained.short_inputs.mean == 0) == row.keeps_learned_rows
        if row.tuned is not None:
            assert row.tuned.steps == STEPS
    scores = means(found)
    assert scores["copy+tuned"] != scores["copy"]


@pytest.mark.parametrize(
    ("model_type", "dtype", "method"),
    [
        ("gpt2", torch.float32, "copy"),
        ("gpt2", torch.float32, "stretch:keep-first=5"),
        ("gpt2", torch.float16, "linear"),
        ("roberta", torch.float32, "copy"),
        ("encoder", torch.float32, "copy"),
    ],
)
def test_tuned_table_in_memory_equals_what_train_recipe_writes(
    model_type: str,
    dtype: torch.dtype,
    method: str,
    tmp_path: Path,
    book: Path,
    _few_steps: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if model_type == "encoder":
        source = make_encoder(tmp_path / "encoder")
        measured: dict[str, Any] = {"tokens": 16 * TO, "measure": ["retrieval"]}
    else:
        source = make_source(tmp_path / "source", model_type, dtype=dtype)
        measured = MEASURED
    data = str(book)
    tables = dict[str, Any]()
    measure = EvaluationRun.measure

    def record(self: EvaluationRun, *arguments: Any) -> None:
        model = self.model.model
        for name, value in model.state_dict().items():
            tables[name] = value.clone()
        measure(self, *arguments)

    monkeypatch.setattr(EvaluationRun, "measure", record)
    found = ctxextend.compare(source, TO, data, methods=[f"{method}+tuned"], **measured)

    (row,) = found.rows
    resize = Resize(TO, method=method)
    planned = prepare_resize(open_model(CheckpointRef(str(source))), resize)
    kind = open_files(planned.model).stated_kind
    settings = replace(tuning_settings(planned.plan, (data,), kind), steps=STEPS)
    recipe = Recipe(CheckpointRef(str(source)), resize=planned.plan.settings, train=settings)
    trained = train.train_recipe(recipe, "trained", planned=planned)
    reproduced = ctxextend.run(parse_recipe(row.recipe, "the row's recipe").recipe, "run").output
    assert reproduced is not None
    assert tensors_of(trained.output) == tensors_of(reproduced)
    table = planned.plan.tables[0].name
    written = tensors_of(reproduced)[table]
    in_memory = next(value for name, value in tables.items() if name.endswith(table))
    assert in_memory.to(dtype).numpy().tobytes() == written[2]
    untrained = ctxextend.resize(source, TO, method, output="untrained").output
    assert tensors_of(untrained)[table] != written

    windows = pico.recipe_of(reproduced)["provenance"]["trained"]["held_out"]
    assert row.untrained.evaluation.max_len == TO
    assert windows["window"] == TO - (2 if model_type != "gpt2" else 0)


def test_tuning_restores_weights_after_each_candidate(
    source: Path, book: Path, tmp_path: Path, _few_steps: None
) -> None:
    # The same method under two names: leftovers of other trainings would change the second.
    # `copy` keeps rows, of which the masks must not remain.
    methods = ("linear+tuned", "copy+tuned", "linear:keep-first=0+tuned", "linear")
    run = open_run(source, *methods, data=(str(book),), folder=tmp_path, **MEASURED)
    model = run.resizer.model.model
    base = run.evaluation.base
    assert base is not None
    before = {name: value.clone() for name, value in model.state_dict().items()}
    base_before = {name: value.clone() for name, value in base.model.state_dict().items()}
    run.measure(ignore)

    after = model.state_dict()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name
    for name, value in base.model.state_dict().items():
        assert torch.equal(value, base_before[name]), name
    for value in model.parameters():
        assert value.grad is None
    scores = final_scores(run)
    assert scores["linear+tuned"] == scores["linear:keep-first=0+tuned"]
    assert scores["linear+tuned"] != scores["linear"]


def test_tuning_and_all_candidates_use_the_windows_of_resize(
    source: Path, book: Path, tmp_path: Path, _few_steps: None
) -> None:
    methods = ("linear", "linear+tuned")
    flags = {"tokens": 65_536, "measure": ("position",)}
    run = open_run(source, *methods, data=(str(book),), folder=tmp_path, **flags)
    assert run.tuner is not None
    task = run.tuner.task
    rule = HeldOut(**task.text.facts["held_out"])
    assert rule == HeldOut.for_text(40 * TO, TO, at_least=8)
    windows = held_out_windows(task.text.train.tokens, rule)
    read = np.concatenate(run.evaluation.text.documents)
    assert read.tolist() == np.concatenate(windows).tolist()

    run.measure(ignore)
    found = run.report(complete=True)
    assert {row.untrained.score.samples for row in found.rows} == {len(windows)}
    assert any("windows held out of --data" in note for note in found.notes)


def test_compare_evaluates_tuned_candidates_on_other_text(
    source: Path, book: Path, _few_steps: None
) -> None:
    words = book.read_text().split()
    Path("other.txt").write_text(" ".join(reversed(words)))
    found = ctxextend.compare(
        source, TO, book, methods=["linear+tuned"], eval_data="other.txt", **MEASURED
    )
    assert not any("held out" in note for note in found.notes)
    (row,) = found.rows
    train = parse_recipe(row.recipe, "the row's recipe").recipe.train
    assert train is not None
    assert train.eval_data == ("other.txt",)
    with pytest.raises(DataError, match="is passed to both --data .* and --eval-data"):
        ctxextend.compare(source, TO, book, methods=["linear+tuned"], eval_data=book)


def test_compare_recommends_the_command_that_tunes(
    source: Path, book: Path, _few_steps: None
) -> None:
    text = book.rename("my book.txt")
    done = succeed(
        *("compare", source, "--to", TO, "--data", text, "--tokens", 512, "--measure", "position"),
        *("--method", "zero", "--method", "linear:keep-first=2+tuned", "--budget", 7, "--json"),
    )
    value = json.loads(done.stdout)
    check(value, "compare")
    rows = {row["method"]: row for row in value["rows"]}
    tuned = rows["linear:keep-first=2+tuned"]["tuned"]
    assert (tuned["steps"], tuned["budget"]) == (STEPS, 7)
    assert rows["zero"]["tuned"] is None
    command = shlex.join(
        [
            *("ctxextend", "resize", str(source), "--to", str(TO)),
            *("--method", "linear:keep-first=2", "--data", "my book.txt", "--budget", "7"),
        ]
    )
    assert value["recommended"] in rows
    if value["recommended"] != "zero":
        assert value["next_command"] == command
    else:
        assert "--data" not in value["next_command"]


# ---- what cannot be tuned


def test_compare_without_enough_time_leaves_out_the_tuned_candidate(
    source: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limit, "FEWEST_STEPS", 1_000_000)
    methods = ["linear+tuned", "linear"]
    found = ctxextend.compare(source, TO, book, methods=methods, budget=1, **MEASURED)
    assert [row.method for row in found.rows] == ["linear"]
    assert found.complete
    (warning,) = [text for text in found.warnings if "linear+tuned" in text]
    assert "training takes" in warning
    assert "seconds or more, and --budget is 1." in warning
    assert found.recommended in ("linear", "copy")


def test_compare_keeps_other_rows_if_tuning_fails(
    source: Path, book: Path, _few_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise TrainingError("The loss became NaN.", "Lower it.")

    monkeypatch.setattr("ctxextend.training.trainer.run_training", fail)
    methods = ["linear+tuned", "linear"]
    found = ctxextend.compare(source, TO, book, methods=methods, **MEASURED)
    assert [row.method for row in found.rows] == ["linear"]
    assert "Training failed for linear+tuned: The loss became NaN. Lower it." in found.warnings


def no_model(*arguments: object) -> None:
    raise AssertionError("the model was loaded")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--method bands+tuned --steps 3", "+tuned in --method cannot be used with --steps."),
        ("--method bands+tuned --quick", "--quick cannot be used with --method."),
        (
            "--method bands+tuned --corpus a.jsonl --queries b.jsonl --qrels c.tsv",
            "+tuned in --method cannot be used with --corpus.",
        ),
        (
            "--method bands+tuned --text-field body",
            "+tuned in --method cannot be used with --text-field.",
        ),
        ("--method bands+tuned --lr 0.1", "--lr requires --steps."),
        ("--method bands+tuned --budget 0", "--budget must be at least 1, got 0."),
        (
            "--method bands+TUNED",
            "--method bands+TUNED: there is no +TUNED. Did you mean bands+tuned?",
        ),
        (
            "--method bands+tune",
            "--method bands+tune: there is no +tune. Did you mean bands+tuned?",
        ),
        ("--method bands+tuned+tuned", "+tuned is given twice."),
        ("--method all+tuned", "Name those to tune, such as --method bands+tuned."),
        ("--method bandz+tuned", "Unknown method 'bandz'. Did you mean bands?"),
        ("--method bands+tuned --tune", "--tune searches settings of yarn and switch"),
    ],
)
@pytest.mark.usefixtures("book")
def test_compare_refuses_tuned_candidates_before_the_model_is_loaded(
    flags: str, message: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_run, "load_eval_model", no_model)
    arguments = ["compare", str(source), "--to", str(TO), "--data", "book.txt", *flags.split()]
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code in (1, 2), done.exception
    assert message in unwrapped(done.stderr)


def make_rotary(folder: Path) -> Path:
    return rotary_models.make("llama", "rotary").folder


def make_formula(folder: Path) -> Path:
    return sinusoidal_models.make("pegasus")


@pytest.mark.parametrize(
    ("make", "method", "message"),
    [
        (make_rotary, "linear+tuned", "Rotary positions have no rows to tune."),
        (make_rotary, "auto+tuned", "Rotary positions have no rows to tune."),
        (make_rotary, "bands+tuned", "--method bands"),
        (make_formula, "auto+tuned", "follow a formula, so there is nothing to tune."),
    ],
)
@pytest.mark.usefixtures("book")
def test_compare_refuses_to_tune_what_has_no_trainable_rows(
    make: Callable[[Path], Path],
    method: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison_run, "load_eval_model", no_model)
    with pytest.raises(MethodError, match=message):
        ctxextend.compare(make(tmp_path), "4x", "book.txt", methods=[method])


@pytest.mark.usefixtures("_empty_folder")
def test_compare_refuses_a_text_that_is_too_short_to_tune_on(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_run, "load_eval_model", no_model)
    write_book(12 * TO)
    with pytest.raises(DataError, match="tuning a table requires 16"):
        ctxextend.compare(source, TO, "book.txt", methods=["linear+tuned"])


@pytest.mark.usefixtures("_empty_folder")
def test_all_methods_include_no_tuned_ones() -> None:
    text_use = TextUse.from_values(("a",), 0, {}, ["all"])
    settings = Compare.from_request(TO, text_use, ["all"])
    assert text_use.tuned is None
    assert not any(request.is_tuned for request in settings.methods)


def test_resize_names_the_flag_that_tunes(source: Path) -> None:
    with pytest.raises(ResizeError) as raised:
        ctxextend.resize(source, TO, "bands+tuned")
    assert raised.value.hint == "To train the rows of bands, use --method bands --data TEXT."
