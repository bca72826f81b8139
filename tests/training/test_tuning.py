"""`resize --tune`: training a table for a time, and what decides."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import Result

import ctxextend
from ctxextend.errors import CtxextendError, DataError, MethodError, ResizeError, TrainingError
from ctxextend.training import tune as tuning_module
from ctxextend.training.objectives import TableDistillation
from ctxextend.training.trainer import read_held_out
from ctxextend.training.tune import Tuning
from tests.helpers import pico
from tests.helpers.json_schemas import check
from tests.helpers.sinusoidal_models import make as make_sinusoidal
from tests.helpers.trainings import (
    changed_tensors,
    equal_rows,
    files_here,
    fix_steps,
    make_encoder,
    make_source,
    succeed,
    train,
    unwrapped,
    write_book,
)
from tests.helpers.word_tokenizer import write_texts

LEARNED, TO = 16, 48
TABLE = "transformer.wpe.weight"
STEPS = 40
BOOK = ("--tune", "book.txt")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the number of steps, which else depends on the clock."""

    fix_steps(monkeypatch, STEPS)
    return partial(fix_steps, monkeypatch)


@pytest.fixture(scope="module")
def learned_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with book.txt, and a model `source` that has learned to predict it."""
    folder = tmp_path_factory.mktemp("learned")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_book(3000, seed=1)
        make_source(folder / "start", "gpt2", n_positions=LEARNED)
        train("start", "source", "--trainable", "all", steps=150)
        write_book(3000)
    return folder


@pytest.fixture
def source(learned_folder: Path) -> Path:
    """Return the model that has learned, with its text as book.txt here."""
    Path("book.txt").write_text((learned_folder / "book.txt").read_text())
    return learned_folder / "source"


def tune(source: object, *flags: object) -> Result:
    return succeed("resize", source, "--to", TO, *BOOK, *flags)


def values_of(done: Result) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(done.stdout)
    check(values, "resize")
    return values


def test_resize_tune_trains_the_rows_and_records_what_it_did(
    source: Path, steps: Callable[[int], None]
) -> None:
    done = tune(source, "--method", "random", "--verify", "--json", "-o", "tuned")
    values = values_of(done)
    found = values["tuning"]
    assert values["verified"]
    training = found["training"]
    assert training["steps"] == STEPS
    assert training["is_kept"]
    assert training["improvement"]["interval"][0] > 0
    assert training["windows"] >= 8
    assert training["length"] == TO
    assert training["long"][1] < training["long"][0]
    assert f"then {STEPS} steps of training; perplexity is lower by " in done.stderr
    assert changed_tensors(source, Path("tuned")) == {TABLE}

    recipe = yaml.safe_load(Path("tuned/ctxextend.yaml").read_text())
    assert recipe["train"]["batch_size"] == 8 * LEARNED // TO
    assert recipe["train"]["distill"] == 1.0
    facts = recipe["provenance"]["trained"]
    assert facts["threads"] == 1
    assert len(recipe["provenance"]["tables"][0]["sha256"]) == 64
    card = Path("tuned/README.md").read_text()
    assert "to predict anywhere what its base checkpoint predicts in windows it can read" in card


def test_run_writes_a_tuned_table_again(source: Path, steps: Callable[[int], None]) -> None:
    tune(source, "--method", "random", "-o", "tuned")
    steps(1)  # a recipe states the steps that were taken
    succeed("run", "tuned/ctxextend.yaml", "-o", "again")
    assert pico.tensor_bytes(Path("again")) == pico.tensor_bytes(Path("tuned"))
    succeed("verify", "tuned")
    assert files_here() == ["again", "book.txt", "tuned"]


def test_resize_tune_keeps_learned_rows_bit_for_bit(
    source: Path, steps: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_module, "is_better", lambda result: True)
    method = ("--method", "linear", "--keep-first", 10)
    done = tune(source, *method, "--json", "-o", "tuned")
    assert values_of(done)["tuning"]["training"]["is_kept"]
    succeed("resize", source, "--to", TO, *method, "-o", "plain")
    rows = equal_rows(Path("tuned"), Path("plain"))
    assert rows[:10] == [True] * 10
    assert not any(rows[11:-1]), rows


def test_resize_tune_does_not_keep_what_is_not_better(
    source: Path, steps: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_module, "is_better", lambda result: False)
    done = tune(source, "--method", "linear", "--json", "-o", "tuned")
    found = values_of(done)["tuning"]
    assert not found["training"]["is_kept"]
    assert f": linear; {STEPS} steps of training on the base's predictions " in done.stderr
    assert " on 9 held-out windows of 48 tokens, and are not kept. To learn from " in done.stderr
    succeed("resize", source, "--to", TO, "--method", "linear", "-o", "plain")
    assert pico.contents(Path("tuned")) == pico.contents(Path("plain"))
    assert files_here() == ["book.txt", "plain", "tuned"]


def test_resize_tune_trains_nothing_in_a_dry_run(source: Path) -> None:
    values = values_of(tune(source, "--dry-run", "--json"))
    assert values["tuning"] is None
    assert files_here() == ["book.txt"]


def test_resize_tune_distils_masked_models(tmp_path: Path, steps: Callable[[int], None]) -> None:
    source = make_source(tmp_path / "masked", "roberta", max_position_embeddings=LEARNED + 2)
    write_book(3000)
    found = ctxextend.resize(source, TO, "random", tune="book.txt", output="tuned").tuning
    assert isinstance(found, Tuning)
    assert found.training is not None
    assert found.training["steps"] == STEPS
    assert found.training["length"] == TO


def test_resize_tune_brings_encoders_closer_to_their_base(
    tmp_path: Path, steps: Callable[[int], None]
) -> None:
    steps(150)
    source = make_encoder(tmp_path / "encoder")
    data = write_texts(80, 20)
    result = ctxextend.resize(source, 64, "random", keep_first=8, tune=data, output="tuned")
    found = result.tuning
    assert isinstance(found, Tuning)
    assert found.is_encoder
    assert found.training is not None
    assert found.training["is_kept"]
    assert found.training["trainable"] == "new"
    folder = next(source.glob("*/model.safetensors")).parent
    tuned = Path("tuned", folder.name)
    before, after = pico.tensor_bytes(folder), pico.tensor_bytes(tuned)
    (name,) = changed_tensors(folder, tuned)
    kept = before[name][-1]
    assert after[name][-1].startswith(kept)


def test_resize_tune_trains_nothing_if_reading_shows_that_it_takes_too_long(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_slowly(objective: Any, items: Any, batches: Any) -> Any:
        time.sleep(0.2 * len(batches))
        return read_held_out(objective, items, batches)

    def fail(*arguments: object) -> None:
        raise AssertionError("a step was taken")

    monkeypatch.setattr("ctxextend.training.tune.read_held_out", read_slowly)
    monkeypatch.setattr("ctxextend.training.tune._time_gradients", fail)
    done = tune(source, "--method", "copy", "--budget", "4", "--json", "-o", "tuned")
    found = values_of(done)["tuning"]
    assert found["training"] is None
    assert found["seconds"] < 4
    # Each of 20 steps reads two sequences, usually in five passes; 9 held-out ones are read twice.
    usual = 0.2 * (20 * 5 * 2 + 2 * 9)
    spent = 0.95 * found["seconds_needed"] - usual
    assert 0 < spent < 60
    line = "copy, not tuned: training the rows takes --budget "
    assert line in unwrapped(done.stderr)


def test_resize_tune_stays_within_its_budget(source: Path) -> None:
    started = time.perf_counter()
    result = ctxextend.resize(source, TO, "random", tune="book.txt", budget=4, output="tuned")
    seconds = time.perf_counter() - started
    assert isinstance(result.tuning, Tuning)
    assert result.tuning.training is not None
    assert result.tuning.training["steps"] > 1
    assert seconds < 8


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"budget": 0}, ResizeError, "--budget must be at least 1, got 0"),
        ({"to": LEARNED}, ResizeError, "creates no new rows to tune"),
        ({"tune": "little.txt"}, DataError, "has 15 windows of 48 tokens, but .* requires 16"),
        ({"edit_only": True}, ResizeError, "--edit-only cannot be used with --tune"),
    ],
)
def test_resize_tune_rejects_bad_input_before_the_model_is_loaded(
    changes: dict[str, Any],
    error: type[CtxextendError],
    match: str,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning_module, "load_eval_model", None)
    Path("little.txt").write_text("w1 " * (16 * TO - 1))
    request: dict[str, Any] = {"to": TO, "tune": "book.txt", "output": "out"} | changes
    with pytest.raises(error, match=match):
        ctxextend.resize(source, **request)
    assert files_here() == ["book.txt", "little.txt"]


@pytest.mark.parametrize("model_type", ["xlm", "ctrl"])
def test_resize_tune_rejects_tables_that_follow_a_formula(model_type: str) -> None:
    source = make_sinusoidal(model_type)
    data = write_texts()
    with pytest.raises(MethodError, match="follow a formula, so there is nothing to tune"):
        ctxextend.resize(source, "3x", tune=data)


def test_resize_tune_retries_with_smaller_batches_when_memory_is_too_small(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = TableDistillation.forward

    def limited(
        self: TableDistillation, input_ids: Any, labels: Any, position_ids: Any = None
    ) -> Any:
        if self.training and len(input_ids) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        return forward(self, input_ids, labels, position_ids)

    monkeypatch.setattr(TableDistillation, "forward", limited)
    result = ctxextend.resize(source, TO, "copy", tune="book.txt", budget=4, output="tuned")
    assert isinstance(result.tuning, Tuning)
    assert result.tuning.training is not None


def test_resize_tune_discards_no_other_training(source: Path) -> None:
    Path("tuned.training/saves/checkpoint-5").mkdir(parents=True)
    with pytest.raises(TrainingError, match="contains an interrupted run, which tuning would"):
        ctxextend.resize(source, TO, tune="book.txt", output="tuned")
    assert files_here() == ["book.txt", "tuned.training"]
