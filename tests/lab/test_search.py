"""Search sets: reading and checking them, scores against scikit-learn, runs on pico encoders."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sklearn.metrics import ndcg_score  # type: ignore[import-untyped]

import ctxextend
from ctxextend.errors import DataError
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
from tests.helpers.word_tokenizer import text_of

SEARCH = Path("sets", "words")
QRELS = "qrels/test.tsv"


def write_lines(name: str, lines: Iterable[str]) -> None:
    file = SEARCH / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


def read_lines(name: str) -> list[str]:
    return (SEARCH / name).read_text().splitlines()


def read() -> SearchSet:
    found = read_search_set(Evaluate(search=str(SEARCH)))
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def files(_empty_folder: None) -> None:
    """Write twelve documents of 8 to 41 words, and a query with the last words of the first six."""
    generator = np.random.default_rng(0)
    words = [generator.integers(0, 27, 8 + 3 * number).tolist() for number in range(12)]
    corpus = []
    for number, text in enumerate(words):
        document = {"_id": f"d{number}", "title": f"w{number}", "text": text_of(text)}
        corpus.append(json.dumps(document))
    queries = [f"q{number}\t{text_of(words[number][-6:])}" for number in range(7)]
    judgements = [f"q{number}\td{number}\t{1 + number % 3}" for number in range(6)]
    write_lines("corpus.jsonl", corpus)
    write_lines("queries.tsv", queries)
    write_lines(QRELS, ["query-id\tcorpus-id\tscore", *judgements, "q0\td9\t1", "q6\td1\t0"])


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


def test_score_rankings_equals_scikit_learn_without_ties() -> None:
    generator = np.random.default_rng(1)
    similar = generator.normal(size=(20, 30))
    gains = generator.integers(0, 4, (20, 30))
    relevant = []
    for row in gains.tolist():
        relevant.append({document: gain for document, gain in enumerate(row) if gain})

    found = score_rankings(similar, relevant)

    expected = ndcg_score(gains, similar, k=10)
    assert found["nDCG@10"].mean() == pytest.approx(expected)


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
    read = Texts(length=64, search_set=texts._replace(relevant=binary))
    scores = {score.name: score.mean for score in search.scores(reader, read)}

    queries = reference.encode_query(list(texts.queries))
    assert reader.memory["search"] == pytest.approx(queries, abs=5e-7)
    keys = {"nDCG@10": "ndcg@10", "MRR": "mrr@12", "recall@1": "recall@1", "recall@10": "recall@10"}
    assert {*scores} == {*keys}
    for name, key in keys.items():
        assert scores[name] == pytest.approx(expected[f"cosine_{key}"])


def test_read_search_set_reads_jsonl_documents_and_tsv() -> None:
    found = read()
    assert found.documents[0].startswith("w0 w")  # the title, a space and the text
    assert len(found.queries) == 6
    assert found.relevant[0] == {0: 1, 9: 1}
    assert found.relevant[2] == {2: 3}
    assert found.notes == ("1 of 7 queries have no relevant document and are left out.",)


def test_read_search_set_reads_the_same_from_every_format() -> None:
    expected = read()
    documents = ["text\t_id\ttitle"]
    for line in read_lines("corpus.jsonl"):
        document = json.loads(line)
        documents.append(f"{document['text']}\t{document['_id']}\t{document['title']}")
    write_lines("corpus.tsv", documents)
    (SEARCH / "corpus.jsonl").unlink()

    queries = []
    for line in read_lines("queries.tsv"):
        name, text = line.split("\t")
        queries.append(json.dumps({"_id": name, "text": text}))
    write_lines("queries.jsonl", ["\n\n".join(queries)])
    (SEARCH / "queries.tsv").unlink()

    judgements = []
    trec = []
    for line in read_lines(QRELS)[1:]:
        query, document, score = line.split("\t")
        judgement = {"query-id": query, "corpus-id": document, "score": int(score)}
        judgements.append(json.dumps(judgement))
        trec.append(f"{query}\t0\t{document}\t{score}")
    write_lines(QRELS, trec)
    assert read() == expected
    (SEARCH / QRELS).unlink()
    write_lines("qrels/test.jsonl", judgements)
    assert read() == expected


@pytest.mark.parametrize("place", ["qrels.tsv", "qrels/dev.tsv", "qrels.jsonl"])
def test_read_search_set_finds_judgements_that_are_not_called_test(place: str) -> None:
    expected = read()
    (SEARCH / QRELS).rename(SEARCH / "judgements")
    if place.endswith(".jsonl"):
        rows = [line.split("\t") for line in read_lines("judgements")[1:]]
        fields = ("query-id", "corpus-id", "score")
        write_lines(place, [json.dumps(dict(zip(fields, row, strict=True))) for row in rows])
    else:
        write_lines(place, read_lines("judgements"))
    assert read() == expected


def test_read_search_set_prefers_the_split_called_test() -> None:
    expected = read()
    write_lines("qrels/dev.tsv", ["q0\td1\t1"])
    write_lines("qrels.tsv", ["q0\td1\t1"])
    assert read() == expected


@pytest.mark.parametrize("missing", ["corpus.jsonl", "queries.tsv", QRELS])
def test_read_search_set_says_which_file_is_missing_where(missing: str) -> None:
    (SEARCH / missing).unlink()
    found = {"corpus.jsonl": "corpus.jsonl or corpus.tsv"}
    found["queries.tsv"] = "queries.jsonl or queries.tsv"
    message = re.escape(f"{SEARCH} has no {found.get(missing, missing)}. A search set has")
    with pytest.raises(DataError, match=message):
        read()


def test_read_search_set_lists_splits_of_which_none_is_called_test() -> None:
    (SEARCH / QRELS).rename(SEARCH / "qrels/train.tsv")
    write_lines("qrels/dev.tsv", ["q0\td1\t1"])
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


def evaluate(source: Path, **settings: Any) -> Evaluation:
    return ctxextend.evaluate(source, search=SEARCH, measure="search", **settings)


def ndcg(evaluation: Evaluation) -> dict[str, Score]:
    """Return the scores that rank models, by how documents are read."""
    found = select(evaluation.scores, measure="search", name="nDCG@10")
    return {score.reading: score for score in found}


def values_of(score: Score) -> list[float]:
    return np.concatenate(score.values).tolist()


def test_evaluate_compares_the_scores_of_a_search_set_with_the_base(
    encoder: Path, longer: Path
) -> None:
    found = ctxextend.evaluate(longer, base=encoder, search=SEARCH)

    assert found.documents == 0
    assert found.tokens == 0
    assert "1 of 7 queries have no relevant document and are left out." in found.notes
    assert {score.measure for score in found.scores} == {"search", "similarity"}
    scores = ndcg(found)
    assert {*scores} == {START, SAME_TEXT, CHUNKS, ONE_PASS}
    assert scores[ONE_PASS].samples == 6
    names = {score.name for score in select(found.scores, measure="search")}
    assert names == {"nDCG@10", "MRR", "recall@1", "recall@10"}
    # Documents have a title of one word, 8, 11, … 41 words of text, and two special tokens.
    tokens = {reading: score.tokens for reading, score in scores.items()}
    assert tokens == {START: 16, SAME_TEXT: 26, CHUNKS: 26, ONE_PASS: 26}
    (best,) = found.ranking
    assert best is scores[ONE_PASS]
    for reading in (SAME_TEXT, CHUNKS):
        change = best.minus(scores[reading]).change
        assert change.mean == pytest.approx(best.mean - scores[reading].mean)
        assert scores[reading] in found.main_references
    assert "longer" not in found.verdict
    assert "in chunks of the same text" in found.verdict
    assert "in chunks of the whole text" in found.verdict


def test_evaluate_measures_chunks_once_if_the_model_reads_whole_documents(encoder: Path) -> None:
    longest = ctxextend.resize(encoder, 48, output="longest", method="linear").output
    scores = ndcg(evaluate(longest, base=encoder))
    assert {*scores} == {START, CHUNKS, ONE_PASS}
    assert scores[CHUNKS].tokens == scores[ONE_PASS].tokens


def test_chunks_of_the_same_text_are_those_of_documents_that_are_cut(
    encoder: Path, longer: Path
) -> None:
    found = ndcg(evaluate(longer, base=encoder, length=20))
    cut = []
    for line in read_lines("corpus.jsonl"):
        document = json.loads(line)
        words = document["text"].split(" ")[:17]  # 20 tokens with a title and special tokens
        cut.append(json.dumps(document | {"text": " ".join(words)}))
    write_lines("corpus.jsonl", cut)

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


def test_methods_score_a_search_set_like_their_folders(encoder: Path, longer: Path) -> None:
    single = evaluate(longer, base=encoder)
    methods = evaluate(encoder, to=32, method=["linear", "copy"])
    assert methods.ranking[0].name == "nDCG@10"
    assert scores_json(methods, "linear") == scores_json(single, longer.name)
    (base,) = {one.base and one.base.name for one in (methods, single)}
    assert base is not None
    assert scores_json(methods, base) == scores_json(single, base)


@pytest.mark.parametrize("length", [24, 32])
def test_checkpoints_read_the_same_text_of_a_search_set(
    length: int, encoder: Path, longer: Path
) -> None:
    longest = ctxextend.resize(encoder, 48, output="longest", method="copy").output
    lengths = [] if length == 32 else [length]  # by default, that of the shorter checkpoint
    found = ctxextend.evaluate([longest, longer], length=lengths, search=SEARCH)
    for path in (longer, longest):
        by_itself = ctxextend.evaluate(path, base=encoder, length=length, search=SEARCH)
        assert scores_json(found, path.name) == scores_json(by_itself, path.name)
        assert scores_json(found, encoder.name) == scores_json(by_itself, encoder.name)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            QRELS,
            "q0\td0\t1\nq0\td77\t1\n",
            r"Line 2 of .*test.tsv has the unknown id 'd77'. Remove the line, or",
        ),
        (
            QRELS,
            "q0\td0\t1\nq0\td0\t2\n",
            r"Line 2 of .*test.tsv judges document 'd0' for query 'q0' again.",
        ),
        (
            QRELS,
            "q0\td0\t-1\n",
            r"Line 1 of .*test.tsv has the score '-1'. Use integers from 0",
        ),
        (
            QRELS,
            "q0 d0 1\n",
            r"Line 1 of .*test.tsv does not have the fields query-id, corpus-id, score. Write",
        ),
        (QRELS, "query-id\tcorpus-id\tscore\n", r"test.tsv has no rows"),
        (
            "queries.tsv",
            "q0\tw1\nq0\tw2\n",
            r"Line 2 of .*queries.tsv has the id 'q0' of an earlier line",
        ),
        ("queries.tsv", "", r"queries.tsv has no rows"),
        (
            "corpus.jsonl",
            '{"_id": "d0", "text": 3}\n',
            r"Line 1 of .*corpus.jsonl has an _id, title or text that is not",
        ),
    ],
)
def test_evaluate_rejects_a_search_set_before_loading_the_model(
    file: str, text: str, message: str
) -> None:
    (SEARCH / file).write_text(text)
    with pytest.raises(DataError, match=message):
        evaluate("tiny-gpt2")


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
