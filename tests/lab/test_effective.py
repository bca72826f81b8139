"""How far models read of which that is known: they copy, from all or from the last tokens."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ctxextend.errors import DataError
from ctxextend.lab.effective_length import effective_length, effective_lengths, is_above_chance
from ctxextend.lab.eval_model import CAUSAL, ENCODER, MASKED, EvalModel, open_eval_model
from ctxextend.lab.measures.effective import effective
from ctxextend.lab.reader import Reader
from ctxextend.lab.scorer import Scorer
from ctxextend.lab.scores import Score, select
from ctxextend.lab.texts import Texts
from ctxextend.settings import CheckpointRef
from tests.helpers.mock_models import counts, mock_model

TEXT = "The lobster lives in the sea, and is seldom seen by day. It sleeps under stones. "


@pytest.fixture(scope="module")
def tiny() -> EvalModel:
    """The bundled model."""
    return open_eval_model(CheckpointRef("tiny-gpt2"), "fp32")


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


def reader_of(model: EvalModel, **changes: Any) -> Reader:
    """Return the reader of a language model, without the checks that a mock model fails."""
    reader = Reader("m", model, **changes)
    reader.scorer = Scorer(model=model, batch_size=None, has_separate_head=False)
    return reader


def texts_of(model: EvalModel, length: int, **changes: Any) -> Texts:
    """Return texts of that length."""
    return Texts(documents=(model.tokenizer.encode(TEXT * 60),), length=length, **changes)


def scores_of(model: EvalModel, length: int, **changes: Any) -> list[Score]:
    """Return what a language model scores in texts up to a length."""
    return list(effective.scores(reader_of(model), texts_of(model, length, **changes)))


def means(scores: list[Score], name: str, length: int) -> list[float]:
    """Return the shares of answers found by depth."""
    own = [score for score in select(scores, name=name, length=length) if score.part is not None]
    return [score.mean for score in own]


def lengths_of(scores: list[Score], name: str) -> list[int]:
    return [score.length for score in select(scores, name=name, part=None)]


def test_model_that_copies_reads_all(tiny: EvalModel) -> None:
    scores = scores_of(copier(tiny, matched=3), 1024)
    assert effective_length(scores) == 1024
    assert effective_lengths(scores) == {"needle": 1024, "key": 1024}
    assert lengths_of(scores, "key") == [128, 256, 512, 1024]
    assert scores[0].name == "found"
    for length in lengths_of(scores, "key"):
        assert means(scores, "key", length) == [1.0] * 5
    for score in scores:
        assert score.samples >= 8
        assert score.measure == "effective"


def test_effective_length_ends_where_a_model_stops_to_see(tiny: EvalModel) -> None:
    scores = scores_of(copier(tiny, matched=3, window=200), 512)
    assert effective_length(scores) == 128
    assert means(scores, "key", 512)[0] == 0
    assert means(scores, "key", 512)[-1] == 1
    (at_512,) = select(scores, name="key", length=512, part=None)
    assert 0.3 < at_512.mean < 0.5


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_model_without_preference_is_at_chance(value: float, tiny: EvalModel) -> None:
    def compute(ids: torch.Tensor) -> torch.Tensor:
        return torch.full((*ids.shape, len(tiny.tokenizer.tokenizer)), value)

    scores = scores_of(mock_model(tiny, compute, kind=CAUSAL), 512)
    assert not is_above_chance(scores)
    assert effective_length(scores) is None
    assert {score.mean for score in scores} == {0}
    assert lengths_of(scores, "key") == [128]


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
    scores = scores_of(ranking_model(minilm, rank), 400)
    for score in select(scores, name="key", part=None):
        assert score.chance is not None
        assert score.mean < 2 * score.chance
    assert effective_length(scores) is None


@pytest.mark.slow
def test_model_that_prefers_some_words_is_at_chance(minilm: EvalModel) -> None:
    """Each question has other rivals, so a preference for words does not decide many of them."""
    above = 0
    for seed in range(8):
        scores = torch.rand(len(minilm.tokenizer.tokenizer), generator=torch.manual_seed(seed))
        model = mock_model(minilm, lambda ids, scores=scores: scores.expand(*ids.shape, -1))  # type: ignore[misc]
        found = scores_of(replace(model, kind=CAUSAL), 128, seed=seed)
        above += is_above_chance([*select(found, name="needle")])
    assert above <= 1


@pytest.mark.slow
def test_masked_model_is_asked_at_the_end_of_the_text(minilm: EvalModel) -> None:
    scores = scores_of(masked_copier(minilm, matched=2, window=10_000), 512)
    assert effective_lengths(scores) == {"needle": 512, "key": 512}
    limited = scores_of(masked_copier(minilm, matched=2, window=300), 512)
    assert effective_length(limited) == 256


def test_first_score_pairs_the_questions_of_all_lengths(tiny: EvalModel) -> None:
    limited = scores_of(copier(tiny, matched=3, window=200), 512)
    (found,) = select(limited, name="found")
    assert found is limited[0]
    assert {len(values) for values in found.values} == {3 * 2}  # of each length, needle and key
    wholes = [score for score in limited if score.part is None and score.name in ("needle", "key")]
    assert found.mean == pytest.approx(np.mean([score.mean for score in wholes]))
    assert scores_of(copier(tiny, matched=3), 512)[0].minus(found).outcome == 1
    # Lengths that were not asked about count as not found.
    at_chance = scores_of(copier(tiny, matched=3, window=4), 512)
    assert lengths_of(at_chance, "needle") == [128]
    assert found.minus(at_chance[0]).outcome == 1


def encoder_scores(minilm: EvalModel, tokens: slice) -> list[Score]:
    """Return what an encoder scores whose embedding counts the tokens of a slice."""
    vocab_size = len(minilm.tokenizer.tokenizer)
    model = mock_model(minilm, lambda ids: counts(ids[:, tokens], vocab_size).sqrt())
    text = minilm.tokenizer.encode(" ".join(f"{TEXT} {number}" for number in range(2000)))
    return list(effective.scores(Reader("m", model), Texts(documents=(text,), length=512)))


def test_encoder_finds_passages_in_the_tokens_that_it_sees(minilm: EvalModel) -> None:
    whole = encoder_scores(minilm, slice(None))
    assert effective_lengths(whole)["passage"] == 512
    assert lengths_of(whole, "passage") == [128, 256, 512]
    start = encoder_scores(minilm, slice(200))
    assert effective_lengths(start)["passage"] == 128
    assert means(start, "passage", 512)[0] > 0.75
    assert means(start, "passage", 512)[-1] == 0


def test_passages_are_not_in_the_texts_that_hide_others(minilm: EvalModel) -> None:
    model = mock_model(minilm, lambda ids: torch.ones(*ids.shape, 1))
    list(
        effective.scores(Reader("m", model), Texts(documents=(np.arange(1000, 4000),), length=128))
    )
    special = minilm.tokenizer.num_special
    inputs = [row[1:-1].tolist() for batch in model.model.inputs for row in batch]
    passages = [row for row in inputs if len(row) == 64]
    texts = [row for row in inputs if len(row) == 128 - special]
    assert len(passages) == len(texts) == 5 * 10
    hidden = {token for row in passages for token in row}
    for row in texts:
        inside = [token for token in row if token in hidden]
        assert inside in passages
        outside = [token for token in row if token not in hidden]
        assert np.all(np.diff(outside) == 1)


def dry_tokens(reader: Reader, texts: Texts) -> int:
    """Return how many tokens a dry run counts, which computes nothing."""

    def fail(ids: torch.Tensor) -> torch.Tensor:
        pytest.fail("the model reads")

    read = list[int]()
    dry = Reader("m", mock_model(reader.model, fail), is_dry=True, advance=read.append)
    assert list(effective.scores(dry, texts)) == []
    return sum(read)


def test_dry_run_counts_what_a_language_model_reads(tiny: EvalModel) -> None:
    read = list[int]()
    reader = reader_of(copier(tiny, matched=3), advance=read.append)
    texts = texts_of(tiny, 512)
    list(effective.scores(reader, texts))
    # Nine needles, so that eight texts have enough trials at each depth.
    assert dry_tokens(reader, texts) == sum(read) == 8 * (128 + 256 + 512)


def test_dry_run_counts_what_an_encoder_reads(minilm: EvalModel) -> None:
    read = list[int]()
    vocab_size = len(minilm.tokenizer.tokenizer)
    model = mock_model(minilm, lambda ids: counts(ids, vocab_size).sqrt())
    reader = Reader("m", model, advance=read.append)
    texts = Texts(documents=(np.arange(1000, 4000),), length=256)
    assert len(list(effective.scores(reader, texts))) == 1 + 2 * 6
    # Passages with special tokens, and texts; of each depth.
    assert sum(read) == 10 * (2 * 66 + 128 + 256) * 5
    assert dry_tokens(reader, texts) == sum(read)


def test_base_is_not_asked(tiny: EvalModel) -> None:
    base = reader_of(copier(tiny, matched=3))
    assert list(effective.scores(base, texts_of(tiny, 128, base=base))) == []


@pytest.mark.parametrize(
    ("kind", "tokens", "length", "match"),
    [
        (CAUSAL, 1000, 16, "needs texts of at least"),
        (CAUSAL, 100, 128, "The text has 101 tokens; one window needs 126"),
        (ENCODER, 700, 128, "The text has 701 tokens; one window needs 766"),
    ],
)
def test_texts_that_do_not_suffice_are_refused_before_any_is_read(
    kind: str, tokens: int, length: int, match: str, minilm: EvalModel
) -> None:
    reader = Reader("m", replace(minilm, kind=kind), is_dry=True)
    text = minilm.tokenizer.encode(TEXT * 60)[:tokens]
    with pytest.raises(DataError, match=match):
        list(effective.scores(reader, Texts(documents=(text,), length=length)))
