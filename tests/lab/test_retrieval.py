"""Document retrieval with mock encoders of known ranks, and inputs for which it is skipped."""

from dataclasses import replace

import numpy as np
import pytest

from ctxextend.errors import DataError
from ctxextend.lab.documents import MRR
from ctxextend.lab.eval_model import EvalModel
from ctxextend.lab.measures.retrieval import query_starts, retrieval
from ctxextend.lab.reader import Reader
from ctxextend.lab.scores import CHUNKS, ONE_PASS, SAME_TEXT, START, Score, select
from ctxextend.lab.statistics import Estimate
from ctxextend.lab.texts import Texts
from tests.helpers.mock_models import counts, mock_model


def retrieve(
    model: EvalModel, base_len: int, documents: list[np.ndarray], length: int
) -> list[Score]:
    """Return the scores of a base with a shorter context, and those of a model."""
    base = Reader("base", replace(model, max_len=base_len))
    texts = Texts(documents=tuple(documents), length=length, base=base)
    scores = list[Score]()
    for reader in (base, Reader("model", model)):
        scores += retrieval.scores(reader, texts)
    return scores


@pytest.mark.parametrize(
    ("length", "base_len", "starts", "query_tokens"),
    [
        (2048, 512, (1024, 1280, 1536, 1792), 40),
        (700, 512, (512, 560, 609, 658), 40),
        (64, 16, (16, 26, 37, 48), 14),
    ],
)
def test_queries_are_cut_from_text_beyond_the_context_of_the_base(
    length: int, base_len: int, starts: tuple[int, ...], query_tokens: int, minilm: EvalModel
) -> None:
    assert query_starts(base_len, length, length - 2 - query_tokens) == starts

    mock = mock_model(minilm, lambda ids: counts(ids, 10_000), max_len=length)
    # The middle one is longer than what is read of it, and the last one too short.
    documents = [np.arange(length), np.arange(4000, 9000), np.arange(length - 3)]
    retrieve(mock, base_len, documents, length)

    inputs = mock.model.inputs
    queries = inputs[1][:, 1:-1].numpy()  # after one short text
    expected = [first + start for first in (0, 4000) for start in starts]
    assert queries[:, 0].tolist() == expected
    assert queries.shape[1] == query_tokens
    assert inputs[-1].shape == (2, length)


@pytest.mark.parametrize(
    ("base_len", "documents", "message"),
    [
        (512, (2046, 2045, 9), "two documents of at least 2,046 tokens, but 1 of 3 documents"),
        (2030, (2046, 2046), "beyond 2,030 tokens need a length of at least 2,072. Pass --length"),
    ],
)
def test_retrieval_rejects_short_texts(
    base_len: int, documents: tuple[int, ...], message: str, minilm: EvalModel
) -> None:
    with pytest.raises(DataError, match=message):
        retrieve(minilm, base_len, [np.arange(tokens) for tokens in documents], 2048)


@pytest.fixture
def counter(minilm: EvalModel) -> EvalModel:
    """A mock encoder that counts the tokens of a text."""
    return mock_model(minilm, lambda ids: counts(ids, 5000))


def test_retrieval_ranks_documents_of_mock_encoders(counter: EvalModel) -> None:
    # Five documents with 60 tokens in common, followed by ones that no other has.
    shared = np.arange(1000, 1060)
    documents = []
    for first in range(2000, 4500, 500):
        documents.append(np.concatenate([shared, np.arange(first, first + 140)]))
    found = retrieve(replace(counter, max_len=202), 62, documents, 202)

    scores = {(score.reading, score.name): score for score in found}
    # Documents are as long as the model reads, so chunks of the same text are those of the whole.
    assert not any(select(found, reading=SAME_TEXT))
    # The first 60 tokens of all documents are equal, so each ranks last.
    start = scores[START, MRR]
    assert start.mean == pytest.approx(0.2)
    assert scores[START, "recall@1"].mean == 0.0
    for reading in (CHUNKS, ONE_PASS):
        assert scores[reading, MRR].mean == pytest.approx(1.0)
        # Queries of a document are one sample.
        assert scores[reading, "recall@1"].estimate == Estimate(1.0, 0.0, 20, 5)
        assert scores[reading, MRR].tokens == 202
    assert start.tokens == 62
