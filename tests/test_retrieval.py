"""Retrieval: planted encoders whose ranks are known, and what cannot be measured."""

from dataclasses import replace

import numpy as np
import pytest

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import open_embedder
from ctxextend.evaluation.eval_model import EvalModel
from ctxextend.evaluation.evaluation_result import CHUNKS, MODEL, TRUNCATED, Estimate, Retrieval
from ctxextend.evaluation.retrieval import RetrievalTask, plan_retrieval, recall_of
from tests.planted import counts, plant


def plan(model: EvalModel, original: EvalModel, documents: list[np.ndarray], length: int) -> RetrievalTask:
    return plan_retrieval(open_embedder(model), open_embedder(original), documents, length)


@pytest.mark.parametrize(
    ("length", "reads", "starts", "query_tokens"),
    [
        (2048, 512, (1024, 1280, 1536, 1792), 40),
        (700, 512, (512, 560, 609, 658), 40),
        (555, 512, (512, 513), 40),
        (554, 512, (512,), 40),
        (64, 16, (16, 26, 37, 48), 14),
    ],
)
def test_queries_lie_beyond_what_the_original_reads(
    length: int, reads: int, starts: tuple[int, ...], query_tokens: int, minilm: EvalModel
) -> None:
    documents = [np.arange(length), np.arange(5000), np.arange(length - 3)]
    task = plan(minilm, replace(minilm, max_len=reads), documents, length)
    assert (task.starts, task.query_tokens) == (starts, query_tokens)
    assert [len(document) for document in task.documents] == [length - 2] * 2


def test_what_cannot_be_measured_says_why(minilm: EvalModel) -> None:
    documents = [np.arange(2046), np.arange(2045), np.arange(9)]
    with pytest.raises(DataError, match="2,046 tokens or more, and there is 1 of 3"):
        plan(minilm, minilm, documents, 2048)
    for length in (512, 553, 100):
        with pytest.raises(DataError, match="554 or more"):
            plan(minilm, minilm, documents, length)
    with pytest.raises(DataError, match="what the base cannot read, and the base is not known"):
        plan_retrieval(open_embedder(minilm), None, documents, 2048)


def test_planted_encoders_find_what_they_can_see(minilm: EvalModel) -> None:
    # Five documents that begin alike for 60 tokens, and go on with words that no other has.
    alike = np.arange(1000, 1060)
    documents = [np.concatenate([alike, np.arange(2000 + 500 * i, 2140 + 500 * i)]) for i in range(5)]
    counter = plant(minilm, lambda ids: counts(ids, 5000))
    task = plan(replace(counter, max_len=202), replace(counter, max_len=62), documents, 202)
    told: list[int] = []
    task.measure(told.append)
    assert sum(told) == task.tokens + task.base_tokens
    report: Retrieval = task.report()["retrieval"]
    assert (report.documents, report.queries, report.query_tokens, report.pooling) == (5, 20, 40, "mean")
    truncated, chunks, whole = (report.modes[way] for way in (TRUNCATED, CHUNKS, MODEL))
    # To the first 60 tokens all documents are one, and so each comes last.
    assert (truncated.recall.mean, truncated.change) == (0.0, None)
    assert truncated.reciprocal_rank.mean == pytest.approx(0.2)
    assert chunks.recall == chunks.change == whole.recall == whole.change == Estimate(1.0, 0.0, 20, 5)
    assert chunks.reciprocal_rank.mean == 1.0
    reads = [ids.shape[1] for ids in counter.model.read]
    # The one token that each embedder tries; queries; the start and whole chunks; the last chunk; all of it.
    assert set(reads) == {3, 42, 62, 22, 202}
    task.measure(told.append)
    assert [ids.shape[1] for ids in counter.model.read[len(reads) :]] == [202] * 5  # the base does not read again
    assert task.report()["retrieval"] == report


def test_recall_by_hand() -> None:
    recall = recall_of(np.array([[1, 2], [1, 1], [4, 2]]), np.array([[1, 1], [3, 2], [2, 3]]))
    assert recall.recall.mean == 0.5
    assert recall.reciprocal_rank.mean == pytest.approx((0.75 + 1 + 0.375) / 3)
    # Documents have means of 1/2, 1 and 0; against the other's 1, 0 and 0 they change by -1/2, 1 and 0.
    assert recall.recall.standard_error == pytest.approx(np.std([0.5, 1, 0], ddof=1) / 3**0.5)
    assert recall.change is not None
    assert recall.change.mean == pytest.approx(1 / 6)
    assert recall.change.standard_error == pytest.approx(np.std([-0.5, 1, 0], ddof=1) / 3**0.5)
    assert recall_of(np.array([[1]]), None).recall.ci95 is None
