"""Document retrieval with mock encoders of known ranks, and inputs for which it is skipped."""

from dataclasses import replace

import numpy as np
import pytest

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import open_embedder
from ctxextend.evaluation.eval_model import EvalModel
from ctxextend.evaluation.evaluation_result import CHUNKS, MODEL, TRUNCATED, Estimate, Retrieval
from ctxextend.evaluation.retrieval import RetrievalTask, plan_retrieval
from tests.helpers.mock_models import counts, mock_model


def plan(
    model: EvalModel, base: EvalModel, documents: list[np.ndarray], length: int
) -> RetrievalTask:
    return plan_retrieval(open_embedder(model), open_embedder(base), documents, length)


@pytest.mark.parametrize(
    ("length", "base_len", "starts", "query_tokens"),
    [
        (2048, 512, (1024, 1280, 1536, 1792), 40),
        (700, 512, (512, 560, 609, 658), 40),
        (555, 512, (512, 513), 40),
        (554, 512, (512,), 40),
        (64, 16, (16, 26, 37, 48), 14),
    ],
)
def test_plan_retrieval_cuts_queries_beyond_base_context(
    length: int, base_len: int, starts: tuple[int, ...], query_tokens: int, minilm: EvalModel
) -> None:
    documents = [np.arange(length), np.arange(5000), np.arange(length - 3)]
    task = plan(minilm, replace(minilm, max_len=base_len), documents, length)
    assert [(query[0], len(query)) for query in task.queries] == [
        (start, query_tokens) for start in starts
    ] * 2
    assert [len(document) for document in task.documents] == [length - 2] * 2


def test_plan_retrieval_rejects_short_documents_and_missing_base(minilm: EvalModel) -> None:
    documents = [np.arange(2046), np.arange(2045), np.arange(9)]
    with pytest.raises(
        DataError, match="two documents of at least 2,046 tokens, but 1 of 3 documents"
    ):
        plan(minilm, minilm, documents, 2048)
    for length in (512, 553, 100):
        with pytest.raises(DataError, match="a length of at least 554"):
            plan(minilm, minilm, documents, length)
    with pytest.raises(
        DataError, match="it needs a base, because queries are cut from text beyond"
    ):
        plan_retrieval(open_embedder(minilm), None, documents, 2048)


def test_retrieval_task_ranks_documents_of_mock_encoders(minilm: EvalModel) -> None:
    # Five documents with 60 tokens in common, followed by tokens that no other has.
    shared = np.arange(1000, 1060)
    documents = [
        np.concatenate([shared, np.arange(2000 + 500 * i, 2140 + 500 * i)]) for i in range(5)
    ]
    counter = mock_model(minilm, lambda ids: counts(ids, 5000))
    task = plan(replace(counter, max_len=202), replace(counter, max_len=62), documents, 202)
    progress: list[int] = []
    task.measure(progress.append)
    assert sum(progress) == task.tokens + task.base_tokens
    report: Retrieval = task.report()["retrieval"]
    assert (report.documents, report.queries, report.query_tokens, report.pooling) == (
        5,
        20,
        40,
        "mean",
    )
    truncated, chunks, whole = (report.modes[mode] for mode in (TRUNCATED, CHUNKS, MODEL))
    # The first 60 tokens of all documents are equal, so each ranks last.
    assert (truncated.recall.mean, truncated.change) == (0.0, None)
    assert truncated.reciprocal_rank.mean == pytest.approx(0.2)
    assert (
        chunks.recall == chunks.change == whole.recall == whole.change == Estimate(1.0, 0.0, 20, 5)
    )
    assert chunks.reciprocal_rank.mean == 1.0
    lengths = [ids.shape[1] for ids in counter.model.inputs]
    # The test text of `open_embedder`, queries, the start and full chunks, the last chunk, the
    # whole document.
    assert set(lengths) == {3, 42, 62, 22, 202}
    task.measure(progress.append)
    assert [ids.shape[1] for ids in counter.model.inputs[len(lengths) :]] == [
        202
    ]  # the base is not run again
    assert task.report()["retrieval"] == report


def test_report_of_retrieval_equals_manual_computation(minilm: EvalModel) -> None:
    documents = [np.arange(2048), np.arange(1, 2049), np.arange(2, 2050)]
    task = plan(minilm, replace(minilm, max_len=2005), documents, 2048)
    assert task.sample == 2
    ranks = {MODEL: [1, 2, 1, 1, 4, 2], TRUNCATED: [1, 1, 3, 2, 2, 3], CHUNKS: [1] * 6}
    for mode, values in ranks.items():
        task.found[mode] = {
            "MRR": 1 / np.array(values),
            "recall@1": np.equal(values, 1).astype(np.float64),
        }
    recall = task.report()["retrieval"].modes[MODEL]
    assert recall.recall.mean == 0.5
    assert recall.reciprocal_rank.mean == pytest.approx((0.75 + 1 + 0.375) / 3)
    # Means per document are 1/2, 1 and 0, and 1, 0 and 0 with truncation: changes are -1/2, 1 and
    # 0.
    assert recall.recall.standard_error == pytest.approx(np.std([0.5, 1, 0], ddof=1) / 3**0.5)
    assert recall.change is not None
    assert recall.change.mean == pytest.approx(1 / 6)
    assert recall.change.standard_error == pytest.approx(np.std([-0.5, 1, 0], ddof=1) / 3**0.5)
    assert [values.tolist() for values in task.scores] == [[1, 0.5], [1, 1], [0.25, 0.5]]
