"""Search sets: reading and checking them, scores by hand and of others, runs on pico encoders."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

import ctxextend
from ctxextend.errors import CheckpointError, DataError
from ctxextend.lab.documents import score_rankings
from ctxextend.lab.eval_model import EvalModel
from ctxextend.lab.evaluation import Evaluation
from ctxextend.lab.measures.search import search
from ctxextend.lab.reader import Reader
from ctxextend.lab.scores import CHUNKS, ONE_PASS, SAME_TEXT, START, Score, select
from ctxextend.lab.search_set import SearchSet, read_search_set
from ctxextend.lab.texts import Texts
from ctxextend.settings import Evaluate
from tests.helpers.scores import scores_json
from tests.helpers.trainings import make_encoder
from tests.helpers.word_tokenizer import add_tokenizer, text_of

SEARCH = Path("sets", "words")
QRELS = "qrels/test.tsv"


QUERY = '{"_id": "q", "text": "w3"}\n'
SMALL = {
    "corpus.jsonl": '{"_id": "a", "title": "w1", "text": "w2 w3"}\n\n{"_id": 7, "text": "w4"}\n',
    "queries.jsonl": QUERY + '\n\n{"_id": "none", "text": "w4"}',
    QRELS: "q\ta\t2\n",
}


def write(name: str, text: str) -> None:
    file = SEARCH / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def write_small(without: str = "-") -> None:
    """Write two documents and queries instead, but for the files that start with these letters."""
    shutil.rmtree(SEARCH)
    for name, text in SMALL.items():
        if not name.startswith(without):
            write(name, text)


def read() -> SearchSet:
    found = read_search_set(Evaluate(search=str(SEARCH)))
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def files(_empty_folder: None) -> None:
    """Write twelve documents of 8 to 41 words, and a query with the last words of the first six."""
    generator = np.random.default_rng(0)
    corpus = ""
    queries = ""
    judgements = "q0\td9\t1\nq6\td1\t0\n"
    for number in range(12):
        words = generator.integers(0, 27, 8 + 3 * number).tolist()
        document = {"_id": f"d{number}", "title": f"w{number}", "text": text_of(words)}
        corpus += f"{json.dumps(document)}\n"
        if number < 7:
            query = {"_id": f"q{number}", "text": text_of(words[-6:])}
            queries += f"{json.dumps(query)}\n"
        if number < 6:
            judgements += f"q{number}\td{number}\t{1 + number % 3}\n"
    write("corpus.jsonl", corpus)
    write("queries.jsonl", queries)
    write(QRELS, judgements)


def test_score_rankings_equals_manual_values() -> None:
    # Ranked: relevance 0, 2, 0, 1, then 3 after the tenth place.
    similar = np.arange(12, 0, -1.0)
    gain = 2 / np.log2(3) + 1 / np.log2(5)
    ideal_gain = 3 + 2 / np.log2(3) + 1 / 2

    found = score_rankings([similar], [{1: 2, 3: 1, 10: 3}])

    assert {*found} == {"nDCG@10", "MRR", "recall@1", "recall@10"}
    assert found["nDCG@10"] == pytest.approx([gain / ideal_gain])
    assert found["MRR"].tolist() == [0.5]
    assert found["recall@1"].tolist() == [0.0]
    assert found["recall@10"] == pytest.approx([2 / 3])


@pytest.mark.parametrize(
    "similar",
    [np.ones(12), np.full(12, np.nan), np.where(np.arange(12) == 3, 0.9, np.nan)],
    ids=["ties", "nan", "nan but one"],
)
def test_score_rankings_counts_ties_and_nan_against_the_relevant_document(similar: Any) -> None:
    found = score_rankings([similar], [{3: 1}])
    assert found["MRR"].tolist() == [1 / 12]


def test_score_rankings_counts_ties_against_the_more_relevant_document() -> None:
    gain = 1 + 2 / np.log2(3)
    ideal_gain = 2 + 1 / np.log2(3)
    found = score_rankings([np.array([1, 1, 0, 0])], [{0: 1, 1: 2}])
    assert found["nDCG@10"] == pytest.approx([gain / ideal_gain])
    assert list(found) == ["nDCG@10", "MRR", "recall@1"]  # no recall@10 among four documents


def numbered(texts: Iterable[str]) -> dict[str, Any]:
    return {str(number): text for number, text in enumerate(texts)}


def test_search_equals_sentence_transformers_with_prompts(
    minilm: EvalModel, tmp_path: Path
) -> None:
    prompts = {"query": "find: ", "document": "text: ", "other": "no: "}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    texts = read()
    reference = SentenceTransformer(str(minilm.root), device="cpu", prompts=prompts)
    reference.max_seq_length = 64
    relevant = {
        str(number): set(map(str, documents)) for number, documents in enumerate(texts.relevant)
    }
    evaluator = InformationRetrievalEvaluator(
        numbered(texts.queries),
        numbered(texts.documents),
        relevant,
        mrr_at_k=[12],
        ndcg_at_k=[10],
        precision_recall_at_k=[1, 10],
    )
    expected = evaluator(reference)

    binary = tuple(dict.fromkeys(documents, 1) for documents in texts.relevant)
    reader = Reader("model", replace(minilm, root=tmp_path))
    judged = Texts(length=64, search_set=texts._replace(relevant=binary))
    scores = {score.name: score.mean for score in search.scores(reader, judged)}

    queries = reference.encode_query(list(texts.queries))
    assert reader.memory["search"] == pytest.approx(queries, abs=5e-7)
    keys = {"nDCG@10": "ndcg@10", "MRR": "mrr@12", "recall@1": "recall@1", "recall@10": "recall@10"}
    assert {*scores} == {*keys}
    for name, key in keys.items():
        assert scores[name] == pytest.approx(expected[f"cosine_{key}"])


JUDGED = "q\ta\t2\nq\t7\t0\n"
HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qrels/test.tsv", HEADER + JUDGED),
        ("qrels/dev.tsv", JUDGED),  # the only one
        ("qrels.tsv", JUDGED),
        ("qrels/test.tsv qrels/dev.tsv", JUDGED),
        ("qrels/test.tsv qrels.tsv", JUDGED),
    ],
)
def test_read_search_set_reads_the_same_from_every_format(name: str, text: str) -> None:
    write_small(name.partition("/")[0].partition(".")[0])
    first, *others = name.split()
    write(first, text)
    for other in others:  # of another split
        write(other, "q\t7\t1\n")
    found = read()
    assert found.documents == ("w1 w2 w3", "w4")  # a title, a space and a text
    assert found.queries == ("w3",)
    assert found.relevant == ({0: 2},)
    assert found.notes == ("1 of 2 queries have no relevant document and are left out.",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("corpus.jsonl", None, "words has no corpus.jsonl. A search set has"),
        (QRELS, None, "words has no qrels/test.tsv. A search set has"),
        (QRELS, "q\ta\t1\nq\td77\t1\n", "Line 2 of .*tsv has the unknown id 'd77'. Remove the"),
        (QRELS, "q\ta\t-1\n", "Line 1 of .*tsv has the score '-1'. Use integers from 0"),
        (QRELS, "q a 1\n", "Line 1 of .*tsv does not have the fields query-id, corpus-id, score."),
        (QRELS, HEADER, "test.tsv has no rows"),
        ("queries.jsonl", QUERY + QUERY, "Line 2 of .*jsonl has the id 'q' of an earlier line"),
        ("corpus.jsonl", '{"_id": "a", "text": 3}', "Line 1 of .* has an _id, title or text that"),
    ],
)
def test_evaluate_rejects_a_search_set_before_loading_the_model(
    name: str, text: str | None, message: str
) -> None:
    write_small()
    (SEARCH / name).unlink()
    if text is not None:
        write(name, text)
    with pytest.raises(DataError, match=message):
        evaluate("tiny-gpt2")


def test_read_search_set_lists_splits_of_which_none_is_called_test() -> None:
    write_small("qrels")
    write("qrels/train.tsv", JUDGED)
    write("qrels/dev.tsv", JUDGED)
    message = "qrels has dev.tsv, train.tsv, and none of them is called test. Keep one"
    with pytest.raises(DataError, match=message):
        read()


@pytest.mark.parametrize("path", ["nowhere", "sets/words/corpus.jsonl"])
def test_read_search_set_needs_a_folder(path: str) -> None:
    with pytest.raises(DataError, match=f"--search {path} is not a folder. A search set has"):
        read_search_set(Evaluate(search=path))


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return make_encoder(tmp_path / "encoder")


@pytest.fixture
def longer(encoder: Path, tmp_path: Path) -> Path:
    """The encoder, resized to 32 tokens."""
    return ctxextend.resize(encoder, 32, output=tmp_path / "long", method="linear").output


def evaluate(source: Any, **settings: Any) -> Evaluation:
    return ctxextend.evaluate(source, search=SEARCH, measure="search", **settings)


def ndcg(evaluation: Evaluation) -> dict[str, Score]:
    """Return the scores that rank models, by how documents are read."""
    found = select(evaluation.scores, measure="search", name="nDCG@10")
    return {score.reading: score for score in found}


def values_of(score: Score) -> Any:
    return np.concatenate(score.values).tolist()


def test_evaluate_compares_the_scores_of_a_search_set_with_the_base(
    encoder: Path, longer: Path
) -> None:
    found = ctxextend.evaluate(longer, base=encoder, search=SEARCH)

    assert found.documents == 0
    assert found.tokens == 0
    assert "1 of 7 queries have no relevant document and are left out." in found.notes
    assert {score.measure for score in found.scores} == {"search"}
    scores = ndcg(found)
    assert {*scores} == {START, SAME_TEXT, CHUNKS, ONE_PASS}
    assert scores[ONE_PASS].samples == 6
    names = {score.name for score in select(found.scores, measure="search")}
    assert names == {"nDCG@10", "MRR", "recall@1", "recall@10"}
    # Documents have a title of one word, 8, 11, … 41 words of text, and two special tokens.
    tokens = {reading: score.tokens for reading, score in scores.items()}
    assert tokens == {START: 16, SAME_TEXT: 26, CHUNKS: 26, ONE_PASS: 26}
    assert found.ranking == [scores[ONE_PASS]]
    assert found.references == [scores[START], scores[CHUNKS], scores[SAME_TEXT]]
    assert found.main_references == found.references[1:]


def test_evaluate_measures_chunks_once_if_the_model_reads_whole_documents(encoder: Path) -> None:
    longest = ctxextend.resize(encoder, 48, output="longest", method="linear").output
    scores = ndcg(evaluate(longest, base=encoder))
    assert {*scores} == {START, CHUNKS, ONE_PASS}
    assert scores[CHUNKS].tokens == scores[ONE_PASS].tokens


def test_chunks_of_the_same_text_are_those_of_documents_that_are_cut(
    encoder: Path, longer: Path
) -> None:
    found = ndcg(evaluate(longer, base=encoder, length=20))
    cut = ""
    for line in (SEARCH / "corpus.jsonl").read_text().splitlines():
        document = json.loads(line)
        words = document["text"].split(" ")[:17]  # 20 tokens with a title and special tokens
        cut += f"{json.dumps(document | {'text': ' '.join(words)})}\n"
    write("corpus.jsonl", cut)

    of_cut = ndcg(evaluate(longer, base=encoder, length=20))

    assert values_of(found[SAME_TEXT]) == values_of(of_cut[CHUNKS])
    assert values_of(found[CHUNKS]) != values_of(of_cut[CHUNKS])
    assert values_of(found[ONE_PASS]) == values_of(of_cut[ONE_PASS])


def test_evaluate_without_a_base_scores_a_search_set_as_its_first_tokens(
    encoder: Path, longer: Path
) -> None:
    with_base = ndcg(evaluate(longer, base=encoder))
    without_base = ndcg(evaluate(encoder, base="none"))
    assert {*without_base} == {ONE_PASS}
    assert values_of(without_base[ONE_PASS]) == values_of(with_base[START])


@pytest.mark.parametrize("length", [24, 32])
def test_checkpoints_and_methods_score_a_search_set_like_one_model(
    length: int, encoder: Path, longer: Path
) -> None:
    single = evaluate(longer, base=encoder, length=length)
    longest = ctxextend.resize(encoder, 48, output="longest", method="copy").output
    lengths = [] if length == 32 else [length]  # by default, that of the shorter checkpoint
    several = evaluate([longest, longer], length=lengths)
    methods = evaluate(encoder, to=length, method=["copy", "linear"])
    for name in (longer.name, encoder.name):
        assert scores_json(several, name) == scores_json(single, name)
    assert scores_json(methods, encoder.name) == scores_json(single, encoder.name)
    if length == 32:
        assert scores_json(methods, "linear") == scores_json(single, longer.name)


def test_evaluate_rejects_a_base_or_model_that_cuts_a_search_set_differently(
    encoder: Path, longer: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(encoder, tmp_path / "other")
    add_tokenizer(next(other.rglob("tokenizer.json")).parent, special_tokens=False)
    message = "cut the text into different tokens"
    with pytest.raises(CheckpointError, match=message):
        evaluate(longer, base=other)
    with pytest.raises(CheckpointError, match=message):
        evaluate([longer, other], base="none")


def test_run_reads_a_search_set_relative_to_the_recipe(encoder: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    settings = {"source": str(encoder), "evaluate": {"search": "judged"}}
    recipe.write_text(yaml.safe_dump(settings))
    with pytest.raises(DataError, match="judged is not a folder"):
        ctxextend.run(recipe)
    SEARCH.rename(tmp_path / "judged")
    evaluation = ctxextend.run(recipe).evaluate
    assert isinstance(evaluation, Evaluation)
    assert evaluation.ranking[0].measure == "search"
