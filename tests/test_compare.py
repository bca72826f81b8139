"""`compare` from end to end, on pico models: what it measures is what `resize`, `train` and `evaluate` give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctxextend
from ctxextend.comparison import compare as compare_module
from ctxextend.comparison.compare import Compare, ComparisonRun, open_comparison
from ctxextend.comparison.comparison_result import LOSS, RECIPROCAL_RANK
from ctxextend.errors import CtxextendError, DataError, ResizeError, TrainingError, UnsupportedModelError
from ctxextend.evaluation.eval_model import load_eval_model
from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.json_output import to_json
from ctxextend.plan.find_tables import open_model
from ctxextend.recipe import CheckpointRef
from ctxextend.recipe_file import parse_recipe
from ctxextend.tables.methods import METHODS
from ctxextend.training import trainer
from tests import pico
from tests.pico import Pico
from tests.trainings import make_encoder, make_source, write_book
from tests.words import write_texts

Make = Callable[..., Pico]
TO = 64
FEW = ("linear", "copy", "stretch:keep-first=5")
# What a row does not share with what evaluate says of the checkpoint that it stands for.
OWN = ("source", "seconds", "notes", "complete")


def found_by(evaluation: Evaluation) -> dict[str, Any]:
    return {name: value for name, value in to_json(evaluation).items() if name not in OWN}


def resized(source: Path, method: str, output: str) -> Path:
    name, *flags = method.split()
    keep_first = int(flags[1]) if flags else None
    return ctxextend.resize(source, to=TO, method=name, keep_first=keep_first, output=output).output


def run_of(source: Path, *methods: str, folder: Path | None = None, steps: int = 0, **flags: Any) -> ComparisonRun:
    settings = Compare.from_flags(TO, ("texts.jsonl",), methods, steps, **flags)
    return open_comparison(open_model(CheckpointRef(str(source))), settings, folder or Path())


@pytest.mark.parametrize(("model_type", "dtype"), [("gpt2", torch.bfloat16), ("roberta", torch.float32)])
def test_compare_measures_what_evaluate_does_on_what_resize_writes(
    model_type: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    source, texts = make_source(tmp_path / "source", model_type, dtype=dtype), write_texts()
    found = ctxextend.compare(source, TO, texts, methods=["random", "stretch:keep-first=5"], tokens=512)
    assert {row.method for row in found.rows} == {"stretch --keep-first 5", "random"}
    for row in found.rows:
        made = resized(source, row.method, row.method.split()[0])
        alone = ctxextend.evaluate(made, texts, original=source, tokens=512)
        assert found_by(row.untrained.evaluation) == found_by(alone)
        assert alone.passkey is None or alone.passkey.trials > 0
        assert row.untrained.score == alone.positions.losses["model"]  # type: ignore[union-attr]
        assert row.trained is None


def test_compare_ranks_encoders_by_the_documents_they_find(tmp_path: Path) -> None:
    source, texts = make_encoder(tmp_path / "encoder"), write_texts(80, 12)
    found = ctxextend.compare(source, TO, texts, methods=["mean", "linear"], tokens=12 * TO)
    assert (found.kind, found.metric) == ("encoder", RECIPROCAL_RANK)
    scores = [row.final.score.mean for row in found.rows]
    assert scores == sorted(scores, reverse=True)
    for row in found.rows:
        alone = ctxextend.evaluate(
            resized(source, row.method, row.method.split()[0]), texts, original=source, tokens=12 * TO
        )
        assert found_by(row.untrained.evaluation) == found_by(alone)
        assert alone.retrieval is not None
        assert row.final.score.mean == alone.retrieval.ways["model"].reciprocal_rank
        assert found.original is not None
        assert found.original.mean == alone.retrieval.ways["chunks"].reciprocal_rank
        assert row.final.short is None
        best = found.rows[0].final.score.mean
        if row.final.behind is not None:
            assert row.final.behind.mean == pytest.approx(best - row.final.score.mean)
    values = to_json(found)
    assert "perplexity" not in values["original"]
    assert "perplexity" not in values["rows"][0]["untrained"]["score"]


def test_compare_pairs_methods_by_window_and_short_texts_with_the_original(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "gpt2")
    found = ctxextend.compare(source, TO, write_texts(), methods=FEW, tokens=512, measure=["context"])
    assert (found.metric, found.max_len_before, found.max_len_after) == (LOSS, 16, TO)
    assert (found.complete, found.table, len(found.norms)) == (True, "transformer.wpe.weight", 16)
    assert found.original is not None
    assert found.original == found.rows[0].final.evaluation.positions.losses["sliding"]  # type: ignore[union-attr]
    best, *others = found.rows
    assert best.final.behind is None
    assert best.final.is_level
    for row in others:
        assert row.final.behind is not None
        assert row.final.behind.mean == pytest.approx(row.final.score.mean - best.final.score.mean)
        assert row.final.behind.error < row.final.score.error  # type: ignore[operator]
    by_name = {row.method: row for row in found.rows}
    for name, row in by_name.items():
        assert row.final.short is not None
        assert (row.final.short.mean == 0) == row.keeps_learned_rows == (name == "copy")
        assert len(row.norms) == TO
        assert np.isfinite(row.norms).all()
    assert by_name["copy"].norms[:16] == found.norms
    assert by_name["copy"].final.short.error == 0  # type: ignore[union-attr]


def test_compare_leaves_out_what_cannot_be_unless_it_is_named(tmp_path: Path) -> None:
    source, texts = make_source(tmp_path / "source", "gpt2"), write_texts(900)
    found = ctxextend.compare(
        source, 300, texts, tokens=300, measure=["position"], methods=["all", "stretch:keep-first=5"]
    )
    assert set(found.left_out) == {"hierarchical", "stretch"}
    assert "256 positions" in found.left_out["hierarchical"]
    assert {row.method for row in found.rows} == {*METHODS, "stretch --keep-first 5"} - {
        "hierarchical",
        "stretch",
        "auto",
    }
    for name in found.left_out:
        with pytest.raises(ResizeError, match=name):
            ctxextend.compare(source, 300, texts, methods=["copy", name])


def test_compare_reads_the_original_once_and_loads_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(tmp_path / "source", "gpt2")
    loads: list[object] = []

    def counted(*arguments: Any) -> Any:
        loads.append(arguments)
        return load_eval_model(*arguments)

    monkeypatch.setattr(compare_module, "load_eval_model", counted)
    told: list[tuple[int, int, str]] = []
    texts = write_texts()
    ctxextend.compare(source, TO, texts, methods=FEW, tokens=512, steps=2, progress=lambda *said: told.append(said))
    assert len(loads) == 1
    totals = {total for _, total, _ in told}
    assert totals == {sum(moved for moved, _, _ in told)}
    assert {who for _, _, who in told} == {"the original", "linear", "copy", "stretch --keep-first 5"}


@pytest.mark.parametrize(
    ("model_type", "dtype", "trainable", "method"),
    [
        ("gpt2", torch.bfloat16, "all", "linear"),
        ("bert", torch.float32, "new", "copy"),
        ("encoder", torch.float32, "all", "copy"),
    ],
)
def test_compare_trains_as_run_does_by_the_recipe_of_the_row(
    model_type: str, dtype: torch.dtype, trainable: str, method: str, tmp_path: Path
) -> None:
    if model_type == "encoder":
        source, texts, tokens, measure = make_encoder(tmp_path / "encoder"), write_texts(80, 12), 768, ["retrieval"]
    else:
        source, texts = make_source(tmp_path / "source", model_type, dtype=dtype), write_texts()
        tokens, measure = 256, ["position", "context"]
    write_book()
    flags: dict[str, Any] = {"steps": 2, "trainable": trainable, "lr": 0.01, "batch_size": 2}
    found = ctxextend.compare(
        source, TO, "book.txt", eval_data=texts, methods=[method], tokens=tokens, measure=measure, **flags
    )
    assert (found.steps, found.trainable, found.seq_len) == (2, trainable, TO)
    (row,) = found.rows
    made = ctxextend.run(parse_recipe(row.recipe, "the row's recipe").recipe, "made").output
    assert made is not None
    measured = ctxextend.evaluate(made, texts, original=source, tokens=tokens, measure=measure, precision="fp32")
    assert row.trained is not None
    assert found_by(row.trained.evaluation) == found_by(measured)
    assert found_by(row.trained.evaluation) != found_by(row.untrained.evaluation)
    assert row.final is row.trained
    if method == "copy" and row.trained.short is not None:
        assert row.trained.short.mean == 0  # new rows alone were trained


@pytest.mark.parametrize("trainable", ["new", "all"])
def test_comparison_gives_every_method_the_same_weights_back(trainable: str, tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "gpt2")
    write_texts()
    flags: dict[str, Any] = {
        **{"trainable": trainable, "lr": 0.01, "batch_size": 2, "tokens": 128, "measure": ("position",)}
    }
    # One method under two names: whatever the first training left behind would show in the second.
    found = run_of(source, "linear", "linear:keep-first=0", steps=2, folder=tmp_path, **flags)
    before = {name: value.clone() for name, value in found.resized.model.model.state_dict().items()}
    found.measure(lambda *told: None)
    after = found.resized.model.model.state_dict()
    assert [name for name, value in before.items() if not torch.equal(value, after[name])] == []
    assert not any(value.grad is not None for value in found.resized.model.model.parameters())
    one, other = found.candidates
    for first, second in zip(one.measured, other.measured, strict=True):
        assert [values.tolist() for values in first.scores] == [values.tolist() for values in second.scores]
    assert not [*tmp_path.glob("saves/*")]


def test_comparison_measures_on_what_training_leaves_out(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "gpt2")
    write_texts(150, 40)
    found = run_of(source, "copy", steps=1, folder=tmp_path, tokens=256)
    assert found.trainer is not None
    train, held_out = found.trainer.task.train, found.trainer.task.held_out
    assert len(held_out) == (len(train) + len(held_out)) // 20
    read = np.concatenate(found.evaluation.text.documents)
    assert read.tolist() == held_out[: len(read)].tolist()
    assert any("last twentieth" in note for note in found.report(complete=True).notes)


def test_compare_refuses_to_measure_on_what_is_trained_on(tmp_path: Path) -> None:
    source, texts = make_source(tmp_path / "source", "gpt2"), write_texts()
    with pytest.raises(DataError, match=r"texts\.jsonl is named by --data"):
        ctxextend.compare(source, TO, texts, eval_data=texts, steps=1)


@pytest.mark.parametrize(("stop_at", "stage"), [("copy", "untrained"), ("copy", "trained")])
def test_compare_interrupted_holds_what_was_measured(stop_at: str, stage: str, tmp_path: Path) -> None:
    source, texts = make_source(tmp_path / "source", "gpt2"), write_texts()
    seen: list[str] = []

    def stop(advance: int, total: int, label: str = "") -> None:
        seen.extend([label] if seen[-1:] != [label] else [])
        if label == stop_at and seen.count(label) == (2 if stage == "trained" else 1):
            raise KeyboardInterrupt

    flags: dict[str, Any] = {"tokens": 128, "measure": ["position"], "lr": 0.01, "batch_size": 2}
    with pytest.raises(ctxextend.ComparisonInterrupted) as stopped:
        ctxextend.compare(source, TO, texts, methods=FEW, steps=2, progress=stop, **flags)
    found = stopped.value.comparison
    assert not found.complete
    trained = {row.method: row.trained is not None for row in found.rows}
    later = {"copy": False, "stretch --keep-first 5": False}
    assert trained == ({"linear": True, **later} if stage == "trained" else {"linear": False})


@pytest.mark.parametrize(
    ("flags", "error", "match"),
    [
        ({"to": 16}, ResizeError, "--to 64"),
        ({"methods": ["linear:alpha=0.4"]}, ResizeError, "--alpha has no meaning for --method linear"),
        ({"methods": ["linear:keep-first=x"]}, ResizeError, "is no flag of a method and its value"),
        ({"methods": ["linear:steps=3"]}, ResizeError, "--steps 3 is no flag of a method"),
        ({"eval_data": "texts.jsonl"}, ResizeError, "--eval-data belongs to a training"),
        ({"data": "none.txt"}, DataError, "no file or folder"),
        ({"steps": 1, "seq_len": 128}, TrainingError, "--seq-len 128"),
    ],
)
def test_compare_refuses_what_cannot_be(
    flags: dict[str, Any], error: type[CtxextendError], match: str, tmp_path: Path
) -> None:
    source, texts = make_source(tmp_path / "source", "gpt2"), write_texts()
    asked: dict[str, Any] = {"to": TO, "data": texts} | flags
    with pytest.raises(error, match=match):
        ctxextend.compare(source, **asked)


def test_compare_refuses_encoder_decoders_as_evaluate_does(tmp_path: Path) -> None:
    folder = pico.make_bart(tmp_path / "bart")
    make_source(tmp_path / "words", "gpt2")
    for path in (tmp_path / "words").glob("tokenizer*"):
        (folder / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UnsupportedModelError):
        ctxextend.compare(folder, TO, write_texts())


def test_compare_refuses_encoders_whose_documents_are_too_few(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    with pytest.raises(DataError, match="ranked by the documents"):
        ctxextend.compare(source, TO, write_texts(80, 1), methods=["copy"])


def test_compare_goes_on_where_one_method_cannot_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, texts = make_source(tmp_path / "source", "gpt2"), write_texts()
    learn, seen = trainer.run_training, list[object]()

    def fail_once(*arguments: Any) -> Any:
        seen.append(arguments)
        if len(seen) == 1:
            raise TrainingError("The loss is no finite number.")
        return learn(*arguments)

    monkeypatch.setattr(trainer, "run_training", fail_once)
    flags: dict[str, Any] = {"tokens": 128, "measure": ["position"], "lr": 0.01, "batch_size": 2}
    found = ctxextend.compare(source, TO, texts, methods=["linear", "copy"], steps=1, **flags)
    assert [(row.method, row.trained is not None) for row in found.rows] == [("copy", True), ("linear", False)]
    assert "linear was not trained to the end: The loss is no finite number." in found.warnings
