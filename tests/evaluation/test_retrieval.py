"""Document retrieval with mock encoders of known ranks, and inputs for which it is skipped."""

from dataclasses import replace

import numpy as np
import pytest
from ctxextend.lab.evaluation_result import (
    CHUNKS,
    MODEL,
    SAME_TEXT,
    TRUNCATED,
    Estimate,
    Retrieval,
    TokensRead,
)
from ctxextend.lab.retrieval import DocumentTask, RetrievalTask, plan_retrieval

from ctxextend.errors import DataError
from ctxextend.lab.embedding import open_embedder
from ctxextend.lab.eval_model import EvalModel
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
    base = replace(minilm, max_len=base_len)

    task = plan(minilm, base, documents, length)

    queries = [(query[0], len(query)) for query in task.queries]
    queries_of_a_document = [(start, query_tokens) for start in starts]
    assert queries == queries_of_a_document * 2
    lengths = [len(document) for document in task.documents]
    assert lengths == [length - 2] * 2


LONG_AND_SHORT = [np.arange(2046), np.arange(2045), np.arange(9)]


def test_plan_retrieval_rejects_short_documents(minilm: EvalModel) -> None:
    message = "two documents of at least 2,046 tokens, but 1 of 3 documents"
    with pytest.raises(DataError, match=message):
        plan(minilm, minilm, LONG_AND_SHORT, 2048)


def ignore_progress(_tokens: int) -> None:
    pass


@pytest.fixture
def counter(minilm: EvalModel) -> EvalModel:
    """A mock encoder that counts the tokens of a text."""
    return mock_model(minilm, lambda ids: counts(ids, 5000))


@pytest.fixture
def mock_task(counter: EvalModel) -> RetrievalTask:
    """Retrieval of five documents with 60 tokens in common, followed by ones that no other has."""
    shared = np.arange(1000, 1060)
    documents = []
    for first in range(2000, 4500, 500):
        document = np.concatenate([shared, np.arange(first, first + 140)])
        documents.append(document)
    return plan(replace(counter, max_len=202), replace(counter, max_len=62), documents, 202)


def test_retrieval_task_ranks_documents_of_mock_encoders(mock_task: RetrievalTask) -> None:
    mock_task.measure(ignore_progress)
    report: Retrieval = mock_task.report()["retrieval"]

    assert report.documents == 5
    assert report.queries == 20
    assert report.query_tokens == 40
    assert report.pooling == "mean"
    # The first 60 tokens of all documents are equal, so each ranks last.
    truncated = report.modes[TRUNCATED]
    assert truncated.recall.mean == 0.0
    assert truncated.change is None
    assert truncated.reciprocal_rank.mean == pytest.approx(0.2)
    all_found = Estimate(1.0, 0.0, 20, 5)
    for mode in (CHUNKS, MODEL):
        assert report.modes[mode].recall == all_found
        assert report.modes[mode].change == all_found
    assert report.modes[CHUNKS].reciprocal_rank.mean == 1.0
    # Documents are as long as the model reads, so chunks of the same text are those of the whole.
    assert {*report.modes} == {TRUNCATED, CHUNKS, MODEL}
    assert report.tokens_read == {
        TRUNCATED: TokensRead(limit=62, median=62),
        CHUNKS: TokensRead(limit=None, median=202),
        MODEL: TokensRead(limit=202, median=202),
    }
    assert report.differences[TRUNCATED]["MRR"].mean == pytest.approx(0.8)
    assert report.against_chunks == Estimate(0.0, 0.0, 20, 5)
    assert report.against_same_text == report.against_chunks


@pytest.fixture
def whole_task(counter: EvalModel) -> DocumentTask:
    """Search in three documents of 12 tokens that differ in the second half, by a base of four."""
    documents = []
    for first in (2000, 2500, 3000):
        tokens = [1000] * 6 + [*range(first, first + 6)]
        documents.append(np.array(tokens))
    return DocumentTask(
        model=open_embedder(replace(counter, max_len=14)),
        base=open_embedder(replace(counter, max_len=6)),
        length=14,
        documents=tuple(documents),
        queries=tuple(document[8:10] for document in documents),
        relevant=({0: 1}, {1: 1}, {2: 1}),
    )


@pytest.mark.parametrize(
    ("length", "same_text", "read_again"),
    [
        (8, 1 / 3, [4]),  # the first half is the same: all documents rank last
        (11, 1.0, [3]),  # the first token of a query
        (12, 1.0, [4]),
        (10, 1 / 3, []),  # two complete chunks, before the first token of a query
    ],
)
def test_chunks_of_the_same_text_find_only_what_the_model_reads(
    length: int,
    same_text: float,
    read_again: list[int],
    counter: EvalModel,
    whole_task: DocumentTask,
) -> None:
    whole_task.measure(ignore_progress)
    assert {*whole_task.found} == {TRUNCATED, CHUNKS, MODEL}
    inputs = counter.model.inputs
    before = len(inputs)

    task = replace(whole_task, length=length, found={})
    task.measure(ignore_progress)

    assert [*task.found] == [TRUNCATED, SAME_TEXT, CHUNKS, MODEL]
    assert task.mean("MRR", SAME_TEXT).mean == pytest.approx(same_text)
    assert task.mean("MRR", MODEL).mean == pytest.approx(same_text)
    assert task.mean("MRR", CHUNKS).mean == 1.0
    # Complete chunks are not read again, and cut ones only once.
    assert [ids.shape[1] for ids in inputs[before:]] == [*read_again, length]
    before = len(inputs)
    replace(task, found={}).measure(ignore_progress)
    assert [ids.shape[1] for ids in inputs[before:]] == [length]


def test_report_of_retrieval_equals_manual_computation(minilm: EvalModel) -> None:
    documents = [np.arange(2048), np.arange(1, 2049), np.arange(2, 2050)]
    task = plan(minilm, replace(minilm, max_len=2005), documents, 2048)
    assert task.sample == 2
    ranks = {MODEL: [1, 2, 1, 1, 4, 2], TRUNCATED: [1, 1, 3, 2, 2, 3], CHUNKS: [1] * 6}
    for mode, values in ranks.items():
        reciprocal = 1 / np.array(values)
        first = np.equal(values, 1).astype(np.float64)
        task.found[mode] = {"MRR": reciprocal, "recall@1": first}
    # Shares per document that rank first, and their changes from 1, 0 and 0 with truncation.
    recalls = [0.5, 1, 0]
    changes = [-0.5, 1, 0]

    found = task.report()["retrieval"].modes[MODEL]

    assert found.recall.mean == 0.5
    assert found.recall.standard_error == pytest.approx(np.std(recalls, ddof=1) / 3**0.5)
    assert found.reciprocal_rank.mean == pytest.approx((0.75 + 1 + 0.375) / 3)
    assert found.change is not None
    assert found.change.mean == pytest.approx(1 / 6)
    assert found.change.standard_error == pytest.approx(np.std(changes, ddof=1) / 3**0.5)
    scores = [values.tolist() for values in task.scores]
    assert scores == [[1, 0.5], [1, 1], [0.25, 0.5]]
