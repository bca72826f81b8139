"""`calibrate` and `resize --method auto --data` on pico models, against `resize` and `evaluate`."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import ctxextend
from ctxextend.comparison import calibrate as calibration_module
from ctxextend.comparison.comparison_result import Calibration, Trial
from ctxextend.comparison.metrics import LOSS, RECIPROCAL_RANK
from ctxextend.errors import CtxextendError, DataError, ResizeError, SourceError
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.json_output import to_json
from ctxextend.report.tuning import describe_calibration
from tests.helpers import pico
from tests.helpers.json_schemas import check_result
from tests.helpers.trainings import (
    files_here,
    invoke,
    make_encoder,
    make_source,
    train,
    write_book,
)
from tests.helpers.word_tokenizer import write_texts

LEARNED, TO = 48, 96


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_texts(2 * TO, 5)
    return make_source(tmp_path / "source", "gpt2", n_positions=LEARNED)


def run_calibration(source: Path, *flags: object) -> Result:
    return invoke("resize", source, "--to", TO, *flags, "--data", "texts.jsonl")


def test_calibrate_scores_equal_evaluate_of_resized_checkpoint(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "roberta", max_position_embeddings=LEARNED + 2)
    data = write_texts(2 * TO, 5)
    calls: list[tuple[int, int]] = []

    def record(advance: int, total: int, label: str = "") -> None:
        calls.append((advance, total))

    found = ctxextend.calibrate(source, TO, data, progress=record)
    measured = len(found.trials) * found.windows * (TO - 2)
    tokens = sum(call[0] for call in calls)
    _, first_total = calls[0]
    assert tokens == measured
    assert tokens <= first_total

    before = found.before.score
    after = found.after.score
    last = found.trials[-1]
    assert found.metric == LOSS
    assert found.length == TO
    assert found.windows == 10
    assert found.trials[0] == found.before
    assert found.after in found.trials
    assert after.mean <= before.mean
    assert found.improvement.mean == pytest.approx(before.mean - after.mean)
    measure: dict[str, Any] = {"tokens": 10 * TO, "length": [TO], "measure": ["position"]}
    for name, trial in {"before": found.before, "after": found.after, "last": last}.items():
        output = ctxextend.resize(source, TO, trial.method, output=name).output
        single = ctxextend.evaluate(output, data, no_base=True, **measure)
        assert single.positions is not None
        assert single.positions.losses["model"] == trial.score


def test_calibrate_ranks_encoders_by_retrieval(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    data = write_texts(80, 12)
    found = ctxextend.calibrate(source, 64, data)
    assert found.metric == RECIPROCAL_RANK
    assert found.windows == 12
    assert found.length == 64
    assert found.after.score.mean >= found.before.score.mean
    as_json = to_json(found)
    assert "perplexity" not in as_json["before"]["score"]

    tried = {trial.method: trial.score for trial in found.trials}
    for name in tried:  # too short for a high-frequency part
        assert name.startswith("bands:sigma=0,gain=")
    last_two = [*tried][-2:]
    compared = ctxextend.compare(
        source, 64, data, methods=last_two, tokens=12 * 64, measure=["retrieval"]
    )
    scores = {row.method: row.final.score for row in compared.rows}
    assert scores == {name: tried[name] for name in last_two}


def test_calibrate_rejects_encoders_with_too_few_documents(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    data = write_texts(80, 7)
    with pytest.raises(DataError, match="7 documents of at least 64 tokens; tuning needs 8"):
        ctxextend.calibrate(source, 64, data)


def test_calibrate_is_deterministic_and_writes_nothing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pico.contents(source)
    temporary = Path("temporary").resolve()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    first = ctxextend.calibrate(source, TO, "texts.jsonl", method="bands:gain=1.1")
    second = ctxextend.calibrate(source, TO, "texts.jsonl", method="bands:gain=1.1")
    assert first.trials == second.trials
    gains = {trial.settings["gain"] for trial in first.trials}
    assert gains == {1.1}
    assert pico.contents(source) == before
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize(("tokens", "windows"), [(65_536, 16), (1, 8)])
def test_calibrate_uses_between_8_and_16_windows(source: Path, tokens: int, windows: int) -> None:
    data = write_texts(2 * TO, 20)
    method = "bands:sigma=4,repeat=8:40"
    found = ctxextend.calibrate(source, TO, data, tokens=tokens, method=method)
    assert found.windows == windows


@pytest.mark.parametrize(
    ("flags", "error", "match"),
    [
        ({"to": LEARNED}, ResizeError, "no new rows to tune"),
        (
            {"method": "linear"},
            ResizeError,
            "Only bands can be tuned on a text, got --method linear",
        ),
        ({"method": "bands:sigma=0,gain=1"}, ResizeError, "All settings of bands are given"),
        ({"data": "little.txt"}, DataError, "8 windows of 96 are needed"),
        ({"revision": "main"}, SourceError, "revision"),
    ],
)
def test_calibrate_rejects_invalid_requests(
    flags: dict[str, Any], error: type[CtxextendError], match: str, source: Path
) -> None:
    Path("little.txt").write_text("w1 " * (8 * TO - 1))
    request: dict[str, Any] = {"to": TO, "data": "texts.jsonl"} | flags
    with pytest.raises(error, match=match):
        ctxextend.calibrate(source, **request)


def test_resize_auto_with_data_writes_tuned_settings_as_if_requested(source: Path) -> None:
    done = run_calibration(source, "--output", "new", "--verify", "--json")
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    check_result(values)
    found = values["calibration"]
    (method,) = values["methods"].values()
    assert method == found["after"]["method"]
    assert method.endswith(f",within=0:{LEARNED}")
    assert values["verified"]
    assert found["trials"][0] == found["before"]
    assert "tuned on 10 windows of 96 tokens in " in done.stderr

    explicit = invoke("resize", source, "--to", TO, "--method", method, "--output", "explicit")
    assert explicit.exit_code == 0, explicit.stderr
    Path("texts.jsonl").unlink()
    rerun = invoke("run", "new/ctxextend.yaml", "--output", "rerun")
    assert rerun.exit_code == 0, rerun.stderr
    written = pico.contents(Path("new"))
    assert pico.contents(Path("explicit")) == written
    assert pico.contents(Path("rerun")) == written
    assert files_here() == ["explicit", "new", "rerun"]


def test_resize_auto_with_data_calibrates_before_training(source: Path) -> None:
    write_book()
    done = run_calibration(source, "--train", "book.txt", "--steps", 1, "--output", "new", "--json")
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["train"]["steps"] == 1
    method = values["calibration"]["after"]["method"]
    recipe = Path("new/ctxextend.yaml").read_text()
    assert f"method: {method}\n" in recipe


def test_resize_auto_with_training_text_warns_before_calibrating(source: Path) -> None:
    write_book()
    train(source, "trained", "--data", "texts.jsonl", steps=1)
    flags = ("--method", "auto", "--data", "texts.jsonl", "--dry-run", "--json")
    done = invoke("resize", "trained", "--to", TO, *flags)
    warnings = json.loads(done.stdout)["warnings"]
    (warning,) = (text for text in warnings if "was trained on texts.jsonl" in text)
    assert done.stderr.index(f"Warning: {warning}") < done.stderr.index("tuned on")
    assert done.stderr.count(warning) == 1


@pytest.mark.parametrize("method", [["--method", "bands"], ["--method", "auto:gain=1.2"]])
def test_resize_rejects_data_without_auto(
    method: list[str], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration_module, "load_eval_model", None)
    done = invoke("resize", source, "--to", TO, *method, "--data", "texts.jsonl")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "--data requires --method auto" in done.stderr


ESTIMATED = Trial(
    {"sigma": 7.931, "repeat": (31, 98), "gain": 1.4, "within": None}, Estimate(1.6, 0.1, 99, 9)
)


@pytest.mark.parametrize(
    ("after", "metric", "expected"),
    [
        (ESTIMATED, LOSS, "bands:sigma=7.931,repeat=31:98,gain=1.4; no candidate was better"),
        (
            Trial({"sigma": 0.0, "repeat": None, "gain": 1.4}, Estimate(1.5, 0.1, 99, 9)),
            LOSS,
            "bands:sigma=0,gain=1.4; better than untuned by 0.1 ± 0.008 (95 %) nats/token",
        ),
        (
            Trial({"sigma": 0.0, "repeat": None, "gain": 1.3}, Estimate(1.7, 0.1, 99, 9)),
            RECIPROCAL_RANK,
            "gain=1.3; better than untuned by 0.1 ± 0.008 (95 %) MRR",
        ),
    ],
)
def test_describe_calibration_reports_method_and_improvement(
    after: Trial, metric: str, expected: str
) -> None:
    difference = abs(after.score.mean - ESTIMATED.score.mean)
    better = Estimate(difference, 0.004, 99, 61)
    trials = (ESTIMATED, after)
    found = Calibration(metric, ESTIMATED, after, better, trials, 16, 512, 4.21)
    text = describe_calibration(found)
    unit = "windows" if metric == LOSS else "documents"
    assert text.startswith(f"tuned on 16 {unit} of 512 tokens in 4.2 s: bands:sigma=")
    assert expected in text
