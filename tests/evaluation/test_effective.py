"""How far models read of which that is known: they copy, from all or from the last tokens."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ctxextend.lab.effective import EffectiveTask, plan_effective
from ctxextend.lab.effective_result import MIN_TRIALS, Effective
from typer.testing import CliRunner

import ctxextend
from ctxextend.cli.app import build_app
from ctxextend.errors import DataError, ResizeError
from ctxextend.lab import eval_model
from ctxextend.lab.embedding import open_embedder
from ctxextend.lab.eval_model import CAUSAL, MASKED, EvalModel, open_eval_model
from ctxextend.lab.scorer import Scorer
from ctxextend.lab.trials import Answer, EncoderTrials, Trials
from ctxextend.settings import CheckpointRef, Evaluate
from tests.helpers.mock_models import counts, mock_model

TEXT = "The lobster lives in the sea, and is seldom seen by day. It sleeps under stones. "


@pytest.fixture(scope="module")
def tiny() -> EvalModel:
    """The bundled model."""
    return open_eval_model(CheckpointRef("tiny-gpt2"), "fp32")


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of many different sentences."""
    path = tmp_path_factory.mktemp("book") / "book.txt"
    words = TEXT.split()
    lines = [" ".join(words[index % 7 :: index % 5 + 1]) for index in range(900)]
    path.write_text("\n".join(lines), "utf-8")
    return path


def copier(model: EvalModel, matched: int, window: int | None = None) -> EvalModel:
    """Return a mock causal model that continues a text as the last time.

    It predicts what followed the last `matched` tokens before, within the last `window` tokens.
    """
    vocab_size = len(model.tokenizer.tokenizer)

    def compute(ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*ids.shape, vocab_size)
        for row, text in zip(logits, ids.tolist(), strict=True):
            token = following(text[-window:] if window else text, text[-matched:])
            if token is not None:
                row[-1, token] = 1.0
        return logits

    return mock_model(model, compute, kind=CAUSAL)


def following(text: list[int], pattern: list[int]) -> int | None:
    """Return the token after the last earlier occurrence of a pattern; None without one."""
    size = len(pattern)
    for start in range(len(text) - size - 1, -1, -1):
        if text[start : start + size] == pattern:
            return text[start + size]
    return None


def masked_copier(model: EvalModel, matched: int, window: int) -> EvalModel:
    """Return a mock masked model that predicts a mask from the `window` tokens before it."""
    tokenizer = model.tokenizer.tokenizer

    def compute(ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*ids.shape, len(tokenizer))
        for row, text in zip(logits, ids.tolist(), strict=True):
            for index, token in enumerate(text):
                if token == tokenizer.mask_token_id:
                    before = text[max(index - window, 0) : index]
                    copied = following(before, before[-matched:])
                    if copied is not None:
                        row[index, copied] = 1.0
        return logits

    return mock_model(model, compute, kind=MASKED)


def plan(model: EvalModel, longest: int, **settings: Any) -> EffectiveTask:
    """Return the task of a language model, without the checks that a mock model fails."""
    text = model.tokenizer.encode(TEXT * 40)
    scorer = Scorer(model=model, batch_size=None, has_separate_head=False)
    return plan_effective(scorer, text, longest, Evaluate(data=("book.txt",), **settings))


def measured(task: EffectiveTask) -> Effective:
    read = list[int]()
    expected = task.tokens
    task.measure(read.append)
    assert sum(read) == expected
    found: Effective = task.report()["effective"]
    return found


def lengths_of(found: Effective, name: str) -> list[int]:
    return [one.length for one in found.tasks[name].lengths]


def test_effective_length_of_a_model_that_copies_is_the_longest(tiny: EvalModel) -> None:
    found = measured(plan(copier(tiny, matched=3), 512))
    assert found.effective_length == 512
    assert found.read_tasks == {"needle": 512, "key": 512}
    assert lengths_of(found, "key") == [128, 256, 512]
    for result in found.tasks["key"].lengths:
        assert result.accuracy == 1.0
        assert len(result.cells) == 5
        assert min(cell.trials for cell in result.cells) >= MIN_TRIALS
    assert found.left_out == ()


def test_effective_length_ends_where_a_model_stops_to_see(tiny: EvalModel) -> None:
    found = measured(plan(copier(tiny, matched=3, window=200), 512))
    assert found.effective_length == 128
    task = found.tasks["key"]
    assert task.uncertain_lengths == ()
    at_512 = task.lengths[-1]
    assert at_512.cells[0].found == 0
    assert at_512.cells[-1].accuracy == 1.0
    assert 0.3 < at_512.accuracy < 0.5


def test_tracking_is_not_asked_about_longer_texts_if_the_shortest_are_not_read(
    tiny: EvalModel,
) -> None:
    # A copier answers with the key that a pointer points to, never with its value.
    found = measured(plan(copier(tiny, matched=3), 512))
    assert lengths_of(found, "tracking") == [256]
    assert found.tasks["tracking"].lengths[0].found == 0
    # In the shortest texts, there is only space for needles.
    assert lengths_of(found, "needle") == [128, 256, 512]


def test_tracking_is_read_by_a_model_that_follows_pointers(tiny: EvalModel) -> None:
    vocab_size = len(tiny.tokenizer.tokenizer)
    decode = tiny.tokenizer.tokenizer.decode

    def compute(ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*ids.shape, vocab_size)
        for row, text in zip(logits, ids.tolist(), strict=True):
            lines = [line.partition(": ") for line in decode(text).split("\n") if ": " in line]
            values = {key: value for key, _, value in lines}
            word = decode(text).rpartition("\n")[2].rstrip(":")
            while word in values:
                word = values[word]
            row[-1, tiny.tokenizer.encode(f" {word}")[0]] = 1.0
        return logits

    found = measured(plan(mock_model(tiny, compute, kind=CAUSAL), 512))
    assert found.read_tasks == {"needle": 512, "key": 512, "tracking": 512}


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_model_without_preference_is_at_chance(value: float, tiny: EvalModel) -> None:
    def compute(ids: torch.Tensor) -> torch.Tensor:
        return torch.full((*ids.shape, len(tiny.tokenizer.tokenizer)), value)

    found = measured(plan(mock_model(tiny, compute, kind=CAUSAL), 512))
    assert not found.is_above_chance
    assert found.effective_length is None
    assert {result.found for task in found.tasks.values() for result in task.lengths} == {0}


def ranking_model(model: EvalModel, rank: Callable[[list[int]], dict[int, float]]) -> EvalModel:
    """Return a mock causal model that scores tokens by a text, whatever it ends with."""
    vocab_size = len(model.tokenizer.tokenizer)

    def compute(ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(ids), 1, vocab_size)
        for row, text in zip(logits, ids.tolist(), strict=True):
            for token, score in rank(text).items():
                row[0, token] = score
        return logits.expand(-1, ids.shape[1], -1)

    return mock_model(model, compute, kind=CAUSAL)


def by_first_place(text: list[int]) -> dict[int, float]:
    return {token: -float(index) for index, token in reversed([*enumerate(text)])}


def by_last_place(text: list[int]) -> dict[int, float]:
    return {token: float(index) for index, token in enumerate(text)}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [by_first_place, by_last_place])
def test_model_that_ignores_the_question_does_not_answer_it(
    rank: Callable[[list[int]], dict[int, float]], minilm: EvalModel
) -> None:
    """The rivals of a question are any other needles, so their places tell nothing."""
    model = ranking_model(minilm, rank)
    scorer = Scorer(model=model, batch_size=None, has_separate_head=False)
    text = minilm.tokenizer.encode(TEXT * 60)
    settings = Evaluate(data=("book.txt",), length=(256, 400))
    found = measured(plan_effective(scorer, text, 400, settings))
    for name in ("key", "tracking"):
        task = found.tasks[name]
        share = sum(one.found for one in task.lengths) / sum(one.trials for one in task.lengths)
        assert share < 2 * task.chance
    assert found.effective_length is None


@pytest.mark.slow
def test_model_that_prefers_some_words_is_at_chance(minilm: EvalModel) -> None:
    """Each question has other rivals, so a preference for words does not decide many of them."""
    above = 0
    for seed in range(8):
        scores = torch.rand(len(minilm.tokenizer.tokenizer), generator=torch.manual_seed(seed))
        model = mock_model(minilm, lambda ids, scores=scores: scores.expand(*ids.shape, -1))  # type: ignore[misc]
        scorer = Scorer(replace(model, kind=CAUSAL), batch_size=None, has_separate_head=False)
        text = minilm.tokenizer.encode(TEXT * 10)
        settings = Evaluate(data=("book.txt",), seed=seed, length=(128,))
        found = measured(plan_effective(scorer, text, 128, settings))
        above += found.tasks["needle"].is_above_chance
    assert above <= 1


@pytest.mark.slow
def test_masked_model_is_asked_at_the_end_of_the_text(minilm: EvalModel) -> None:
    found = measured(plan(masked_copier(minilm, matched=2, window=10_000), 512))
    assert set(found.tasks) == {"needle", "key"}
    assert found.effective_length == 512
    limited = measured(plan(masked_copier(minilm, matched=2, window=300), 512))
    assert limited.effective_length == 256


def encoder_task(minilm: EvalModel, tokens: slice, longest: int) -> EffectiveTask:
    """Return the task of an encoder whose embedding counts the tokens of a slice."""
    vocab_size = len(minilm.tokenizer.tokenizer)
    model = mock_model(minilm, lambda ids: counts(ids[:, tokens], vocab_size).sqrt())
    text = minilm.tokenizer.encode(" ".join(f"{TEXT} {number}" for number in range(2000)))
    settings = Evaluate(data=("book.txt",), length=(128, longest))
    return plan_effective(open_embedder(model), text, longest, settings)


def test_encoder_finds_passages_in_the_tokens_that_it_sees(minilm: EvalModel) -> None:
    whole = measured(encoder_task(minilm, slice(None), 512))
    assert whole.scoring == "cosine rank"
    assert whole.tasks["passage"].effective_length == 512
    start = measured(encoder_task(minilm, slice(200), 512))
    assert start.tasks["passage"].effective_length == 128
    cells = start.tasks["passage"].lengths[-1].cells
    assert cells[0].accuracy > 0.75
    assert cells[-1].found == 0


def test_passages_are_not_in_the_texts_that_hide_others(minilm: EvalModel) -> None:
    task = encoder_task(minilm, slice(None), 512)
    for group in task.groups:
        assert isinstance(group, EncoderTrials)
        assert len(group.hidden) >= 640
        assert len(group.haystack) >= 512
        whole = minilm.tokenizer.encode(" ".join(f"{TEXT} {number}" for number in range(2000)))
        assert np.concatenate([group.hidden, group.haystack]).tolist() == whole.tolist()


class SlowTrials:
    """Trials that take so many seconds of a clock by length."""

    def __init__(self, trials: Trials, seconds: dict[int, float]) -> None:
        self.trials = trials
        self.seconds = seconds
        self.now = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trials, name)

    def read(self, length: int, index: int) -> list[Answer]:
        self.now += self.seconds[length]
        return self.trials.read(length, index)


def slow_task(
    model: EvalModel, seconds: dict[int, float], monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> EffectiveTask:
    """Return a task without pointers whose texts take so many seconds by length."""
    task: Any = plan(model, max(seconds), **settings)
    trials = SlowTrials(task.groups[0], seconds)
    task.groups = (trials,)
    task.predicted = seconds
    task.planning_seconds = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: trials.now)
    slow: EffectiveTask = task
    return slow


def texts_of(found: Effective) -> dict[int, int]:
    """Return how many texts were read by length."""
    return {one.length: one.texts for one in found.tasks["key"].lengths}


def test_budget_leaves_out_lengths(tiny: EvalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {128: 1.0, 256: 10.0, 512: 400.0}
    task = slow_task(copier(tiny, matched=3), seconds, monkeypatch, budget=100)
    found = measured(task)
    assert texts_of(found) == {128: 10, 256: 9}  # of 9 needles, so that at least three are needed
    assert found.left_out == (512,)
    assert found.left_out_seconds == 1200.0
    assert found.effective_length == 256
    assert found.max_len == 512


def test_measure_stops_after_the_budget(tiny: EvalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {128: 25.0, 256: 25.0, 512: 25.0}
    task = slow_task(copier(tiny, matched=3), seconds, monkeypatch, budget=100)
    task.predicted = {128: 0.01, 256: 0.01, 512: 0.01}  # far too low
    found = measured(task)
    assert texts_of(found) == {128: 3}
    assert found.left_out == (256, 512)


def test_another_task_reads_the_same_texts_without_a_budget(tiny: EvalModel) -> None:
    first = plan(copier(tiny, matched=3), 512)
    measured(first)
    second = plan(copier(tiny, matched=3, window=200), 512, budget=1)
    second.schedule = first.schedule
    second.scheduled_groups = first.scheduled_groups
    found = measured(second)
    assert [one.texts for one in found.tasks["key"].lengths] == [
        one.texts for one in first.report()["effective"].tasks["key"].lengths
    ]
    assert [len(one) for one in first.scores] == [len(two) for two in second.scores]
    assert sum(map(sum, first.scores)) > sum(map(sum, second.scores))


def test_scores_pair_the_questions_of_all_lengths(tiny: EvalModel) -> None:
    task = plan(copier(tiny, matched=3, window=200), 256)
    found = measured(task)
    texts = min(texts_of(found).values())
    assert len(task.scores) == 9 * texts  # needles of each text
    assert {len(one) for one in task.scores} == {2 * len(task.lengths)}  # needle and key
    shares = [one.accuracy for result in found.tasks.values() for one in result.lengths]
    assert np.mean(np.concatenate(task.scores)) == pytest.approx(np.mean(shares[:4]), abs=0.02)


# ---- the command


def run_evaluate(*arguments: str) -> str:
    """Run the command, and return what it prints to stdout."""
    result = CliRunner().invoke(build_app(), ["evaluate", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def no_model(*_: object) -> None:
    pytest.fail("a model was loaded")


@pytest.mark.slow
def test_evaluate_says_that_the_bundled_model_is_at_chance(book: Path) -> None:
    found = ctxextend.evaluate("tiny-gpt2", book, measure=["effective"])
    assert found.effective is not None
    assert not found.effective.is_above_chance
    assert found.effective.effective_length is None
    text = run_evaluate("tiny-gpt2", "--data", str(book), "--measure", "effective")
    assert text.startswith("At chance in texts of every length")


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"length": [512]}, ResizeError, "context length of 128, too short"),
        ({"length": [16]}, DataError, "needs texts of at least"),
        ({}, DataError, "The text has 4 tokens; one window needs 128"),
    ],
)
def test_evaluate_rejects_bad_input_before_a_model_is_loaded(
    settings: dict[str, Any],
    error: type[Exception],
    match: str,
    book: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eval_model, "load_eval_model", no_model)
    data = book
    if not settings:
        data = tmp_path / "short.txt"
        data.write_text("The sea.", "utf-8")
    with pytest.raises(error, match=match):
        ctxextend.evaluate("tiny-gpt2", data, measure=["effective"], **settings)
