"""The search for settings of yarn on small models: `resize --data` and `compare --tune`."""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctxextend
from ctxextend.comparison import search_settings as search_module
from ctxextend.comparison.comparison_result import SettingsSearch
from ctxextend.comparison.in_memory import open_resizer
from ctxextend.comparison.search_settings import PlanReader, SearchRequest, search_settings
from ctxextend.errors import DataError, MethodError, ResizeError
from ctxextend.evaluation.eval_model import load_eval_model, open_files
from ctxextend.evaluation.scorer import open_scorer
from ctxextend.plan.opened_model import open_model
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.progress import no_progress
from ctxextend.recipe import CheckpointRef, Evaluate, Resize
from ctxextend.report.tuning import describe_search
from tests.helpers import pico, rotary_models
from tests.helpers.json_schemas import check_result
from tests.helpers.trainings import invoke, make_source
from tests.helpers.word_tokenizer import write_texts

OLD = 64
NEW = 256


@pytest.fixture
def llama() -> pico.Pico:
    return rotary_models.make(max_position_embeddings=OLD, num_hidden_layers=2)


@pytest.fixture
def text() -> str:
    """A text in which words repeat, of 60 windows."""
    words = np.random.default_rng(0).integers(0, 20, 60 * NEW)
    Path("text.txt").write_text(" ".join(f"w{word}" for word in words))
    return "text.txt"


def plan_of(source: Path, method: str) -> Plan:
    return plan_model(open_model(CheckpointRef(str(source))), Resize(NEW, method=method))


def run_search(source: Path, text: str, method: str = "yarn", **options: Any) -> SettingsSearch:
    request = SearchRequest(plan=plan_of(source, method), budget=1000, available=1000)
    return search_settings(request, Evaluate((text,)), **options)


def test_resize_with_data_writes_searched_settings_as_if_requested(
    llama: pico.Pico, text: str
) -> None:
    flags = ("--to", NEW, "--method", "yarn", "--data", text)
    done = invoke("resize", llama.folder, *flags, "-o", "new", "--verify", "--json")
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    check_result(values)
    found = values["search"]
    assert found["is_better"]
    assert values["verified"]
    assert "has a lower loss than yarn by" in done.stderr
    (method,) = values["methods"].values()
    assert method == f"yarn:factor=4,{found['method'].partition(':')[2]}"
    assert found["trials"][0] == found["before"]
    assert found["trials"][0]["method"] == "yarn"

    requested = invoke(
        "resize", llama.folder, "--to", NEW, "--method", found["method"], "-o", "requested"
    )
    assert requested.exit_code == 0, requested.stderr
    Path(text).unlink()
    rerun = invoke("run", "new/ctxextend.yaml", "--output", "rerun")
    assert rerun.exit_code == 0, rerun.stderr
    written = pico.contents(Path("new"))
    assert pico.contents(Path("rerun")) == written
    assert pico.config_of("requested") == pico.config_of("new")


def test_resize_in_python_takes_data_and_a_budget(llama: pico.Pico, text: str) -> None:
    result = ctxextend.resize(llama.folder, NEW, "yarn", data=text, budget=30, output="new")
    assert isinstance(result.search, SettingsSearch)
    assert result.search.budget == 30
    assert result.search.method in result.plan.methods["rope_parameters"].replace("factor=4,", "")


@pytest.mark.parametrize("method", ["yarn:beta-slow=2", "switch:beta-slow=2", "switch"])
def test_search_measures_losses_of_the_written_checkpoint(
    method: str, llama: pico.Pico, text: str
) -> None:
    first = plan_of(llama.folder, method.partition(":")[0])
    base = load_eval_model(open_files(first.model), "fp32", None)
    resizer = open_resizer(base, first)
    windows = [np.arange(NEW) % 20 + 5, np.arange(NEW) // 3 % 20 + 5]
    reader = PlanReader(
        first, resizer, open_scorer(resizer.model), lambda count: windows, no_progress
    )
    reader.cut_windows(2, passes=3)
    # What another candidate has read must not count any more.
    reader.losses(plan_of(llama.folder, f"{first.method}:beta-slow=0.5").settings, [0])
    measured = reader.losses(plan_of(llama.folder, method).settings, [0, 1])

    output = ctxextend.resize(llama.folder, NEW, method, output="new").output
    model = llama.load(output)
    for window, losses in zip(windows, measured, strict=True):
        ids = torch.from_numpy(window)[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0].double()
        expected = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")
        assert losses.shape == (NEW - OLD,)
        np.testing.assert_allclose(losses, expected[OLD - 1 :].numpy(), rtol=1e-4)


def test_search_for_switch_leaves_short_inputs_as_they_are(llama: pico.Pico, text: str) -> None:
    found = run_search(llama.folder, text, "switch")
    for trial in found.trials:
        assert trial.settings["attention_factor"] is None
    assert found.is_better
    output = ctxextend.resize(llama.folder, NEW, found.method, output="new").output
    before = pico.logits(pico.realign(llama.load()), OLD)
    assert torch.equal(pico.logits(pico.realign(llama.load(output)), OLD), before)


def test_search_in_scaled_settings_starts_from_those_that_they_state(
    llama: pico.Pico, text: str
) -> None:
    scaled = ctxextend.resize(
        llama.folder, 2 * OLD, "yarn:beta-fast=8,beta-slow=2", output="scaled"
    ).output
    found = run_search(scaled, text)
    tried = {trial.settings["beta_slow"] for trial in found.trials} - {None}
    assert tried <= {4.0, 1.0}
    assert found.first_position == 2 * OLD

    flags = ("--to", NEW, "--data", text, "--budget", 20, "--dry-run", "--json")
    done = invoke("resize", scaled, *flags)
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    check_result(values)
    assert values["method"] == "yarn"  # it is kept, and `switch` is not chosen by a loss
    assert values["comparison"]["recommended"] == "yarn"
    assert values["search"]["before"]["method"] == "yarn"


def test_search_with_too_small_a_budget_changes_nothing_and_states_the_time(
    llama: pico.Pico, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count(0, 7)
    slow = functools.partial(SearchRequest, clock=lambda: next(seconds))
    monkeypatch.setattr(search_module, "SearchRequest", slow)
    flags = ("--to", NEW, "--method", "yarn", "--data", text, "-o", "new", "--json")
    done = invoke("resize", llama.folder, *flags)
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    check_result(values)
    assert values["methods"] == {"rope_parameters": "yarn:factor=4"}
    assert values["search"]["seconds_needed"] == 63
    assert values["search"]["best"] is None
    assert values["search"]["budget"] == 60
    assert values["search"]["available"] == 60
    expected = "yarn keeps its settings: a search takes 63 s or more, and the budget is 60 s"
    assert f"{expected} (--method yarn --budget 63)" in done.stderr

    plain = ctxextend.resize(llama.folder, NEW, "yarn", output="plain").output
    assert pico.config_of(plain) == pico.config_of("new")


def test_search_after_the_choice_of_a_method_states_the_whole_budget_and_what_is_left(
    llama: pico.Pico, text: str
) -> None:
    seconds = itertools.count(0, 7)
    request = SearchRequest(
        plan=plan_of(llama.folder, "yarn"),
        budget=20,
        available=3.4,
        clock=lambda: next(seconds),
    )
    found = search_settings(request, Evaluate((text,)))
    assert found.budget == 20
    assert found.available == 3.4
    assert describe_search(found) == (
        "yarn keeps its settings: a search takes 63 s or more, and it had 3 s of the budget of "
        "20 s (--method yarn --budget 63)"
    )


def test_search_for_a_runtime_changes_only_what_it_applies(llama: pico.Pico, text: str) -> None:
    flags = ("--to", NEW, "--method", "yarn", "--data", text, "-o", "new", "--json")
    done = invoke("resize", llama.folder, *flags, "--for", "llama.cpp")
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    check_result(values)
    assert values["search"]["is_better"]
    tried = [trial["settings"] for trial in values["search"]["trials"]]
    assert {settings["attention_factor"] for settings in tried} == {None}
    beta_slow = values["search"]["best"]["settings"]["beta_slow"]
    assert values["serve"].endswith(f"--yarn-beta-fast 32 --yarn-beta-slow {beta_slow:g}")
    assert not [warning for warning in values["warnings"] if "attention_factor" in warning]


def test_search_of_switch_for_a_runtime_keeps_the_keys_that_it_reads(
    llama: pico.Pico, text: str
) -> None:
    flags = ("--to", NEW, "--method", "switch", "--data", text, "-o", "new", "--verify")
    done = invoke("resize", llama.folder, *flags, "--for", "vllm")
    assert done.exit_code == 0, done.stderr
    settings = pico.config_of("new")["rope_parameters"]
    assert settings["short_mscale"] == settings["long_mscale"] == settings["attention_factor"]


def test_resize_refuses_a_search_of_what_the_runtime_ignores(llama: pico.Pico, text: str) -> None:
    method = "yarn:beta-fast=16,beta-slow=2"
    with pytest.raises(ResizeError, match="All settings of yarn that the runtime applies"):
        ctxextend.resize(llama.folder, NEW, method, data=text, runtime="sglang")


def test_resize_announces_what_the_searched_settings_bring_and_nothing_twice(
    llama: pico.Pico, text: str
) -> None:
    flags = ("--to", NEW, "--method", "yarn", "--data", text, "-o", "new")
    done = invoke("resize", llama.folder, *flags)
    assert done.exit_code == 0, done.stderr
    assert "attention_factor" in pico.config_of("new")["rope_parameters"]
    stderr = " ".join(done.stderr.split())
    assert stderr.count("attention_factor, which SGLang, llama.cpp and mlx-lm ignore") == 1
    assert stderr.count("Limits below the model's 64 positions are raised") == 1


def test_search_reports_tokens_to_a_progress_bar(llama: pico.Pico, text: str) -> None:
    calls = list[int]()
    totals = list[int]()

    def record(advance: int, total: int, label: str = "") -> None:
        calls.append(advance)
        totals.append(total)

    found = run_search(llama.folder, text, progress=record)
    assert found.lead is not None
    windows = 1 + len(found.trials) * found.windows + 2 * found.lead.samples
    assert sum(calls) == windows * NEW
    assert sum(calls) <= max(totals) + NEW  # with the window that tells the time


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--method", "linear"],
            "--data searches settings of yarn and switch; here, the method",
        ),
        (
            ["--method", "yarn:beta-fast=16,beta-slow=2,attention-factor=1"],
            "All settings of yarn are given",
        ),
        (["--budget", 0], "--budget must be at least 1 second, got 0"),
        (["--budget", -5], "--budget must be at least 1 second, got -5"),
        (["--method", "yarn", "--data", "little.txt"], "4 windows of 256 are needed"),
        (["--data", "little.txt"], "4 windows of 256 are needed"),
        (["--method", "yarn", "--to", 32], "The model accepts 64 tokens"),
    ],
)
def test_resize_refuses_what_cannot_be_searched_before_a_model_is_loaded(
    flags: list[object],
    message: str,
    llama: pico.Pico,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("little.txt").write_text("w1 " * (4 * NEW - 1))
    monkeypatch.setattr("ctxextend.evaluation.eval_model._load", None)
    given = ["--to", NEW, *flags]
    if "--data" not in flags:
        given += ["--data", text]
    done = invoke("resize", llama.folder, *given)
    assert done.exit_code in (1, 2)
    assert done.stdout == ""
    assert message in " ".join(done.stderr.split())


def test_search_refuses_an_encoder_before_it_is_loaded(
    llama: pico.Pico, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxextend.evaluation.eval_model._load", None)
    folder = pico.nest_in_module(llama.folder, Path("sentences"))
    with pytest.raises(ResizeError, match="has no LM head"):
        ctxextend.resize(folder, NEW, "yarn", data=text)


def test_resize_refuses_a_budget_without_data(llama: pico.Pico) -> None:
    with pytest.raises(ResizeError, match="--budget requires --data"):
        ctxextend.resize(llama.folder, NEW, budget=60)


def test_resize_refuses_yarn_for_a_table_of_rows(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "gpt2", n_positions=48)
    data = write_texts(192, 5)
    with pytest.raises(MethodError, match="yarn"):
        ctxextend.resize(source, 96, data=data, method="yarn")


def test_search_refuses_settings_that_switch_does_not_give_yarn(text: str) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 32,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    source = rotary_models.make(max_position_embeddings=OLD, rope_parameters=rope)
    with pytest.raises(ResizeError, match="llama3 settings have none that a search may change"):
        ctxextend.resize(source.folder, NEW, "switch", data=text)


def test_search_refuses_little_text(llama: pico.Pico) -> None:
    Path("little.txt").write_text("w1 " * 100)
    with pytest.raises(DataError, match="4 windows of 256 are needed"):
        run_search(llama.folder, "little.txt")


def test_search_without_other_positions_says_so(llama: pico.Pico, text: str) -> None:
    # The bounds of both betas are rounded to whole pairs of values, of which there are four.
    found = run_search(llama.folder, text, "yarn:attention-factor=1,beta-slow=0.1")
    assert found.method == "yarn:beta-slow=0.1,attention-factor=1"
    assert len(found.trials) == 1
    assert "change its positions" in describe_search(found)


def test_compare_with_tune_adds_searched_settings_on_other_windows(
    llama: pico.Pico, text: str
) -> None:
    flags = (
        "--method",
        "yarn",
        "--method",
        "linear",
        "--tokens",
        60 * NEW,
        "--measure",
        "position",
    )
    done = invoke("compare", llama.folder, "--to", NEW, "--data", text, "--tune", *flags, "--json")
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    check_result(values)
    (found,) = values["searches"]
    assert found["is_better"]
    rows = {row["method"]: row for row in values["rows"]}
    assert set(rows) == {"yarn", "linear", found["method"]}
    assert rows["yarn"]["untrained"]["score"]["samples"] == 30
    assert found["windows"] + found["lead"]["samples"] <= 30
    assert (
        "limited by --tokens"
        in invoke("compare", llama.folder, "--to", NEW, "--data", text, "--tune", *flags).stdout
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ["linear"]}, "none is compared without its settings"),
        ({"methods": ["yarn:beta-slow=2"]}, "none is compared without its settings"),
        ({"steps": 1}, "--tune cannot be used with --steps"),
        ({"quick": True}, "--quick cannot be used with --tune"),
        ({"budget": 0}, "--budget must be at least 1"),
    ],
)
def test_compare_refuses_tune_where_nothing_is_searched(
    settings: dict[str, Any], message: str, llama: pico.Pico, text: str
) -> None:
    with pytest.raises(ResizeError, match=message):
        ctxextend.compare(llama.folder, NEW, text, tune=True, **settings)
