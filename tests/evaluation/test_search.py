"""Search sets: reading and checking them, scores against manual values and scikit-learn, and runs
on pico encoders.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sklearn.metrics import ndcg_score  # type: ignore[import-untyped]

import ctxextend
from ctxextend.errors import DataError, ResizeError
from ctxextend.evaluation.embedding import open_embedder
from ctxextend.evaluation.eval_model import EvalModel
from ctxextend.evaluation.retrieval import score_rankings
from ctxextend.evaluation.search import plan_search, read_search_set
from ctxextend.recipe import Evaluate
from tests.helpers.trainings import invoke, make_encoder, make_source
from tests.helpers.word_tokenizer import text_of

FILES: dict[str, Any] = {"corpus": "corpus.jsonl", "queries": "queries.tsv", "qrels": "qrels.tsv"}
FLAGS = [word for name, file in FILES.items() for word in (f"--{name}", file)]


@pytest.fixture(autouse=True)
def files(_empty_folder: None) -> None:
    """Write twelve documents with 8 to 41 words, and a query with the words at the end of each of
    the first six.
    """
    generator = np.random.default_rng(0)
    words = [generator.integers(0, 27, 8 + 3 * number).tolist() for number in range(12)]
    corpus = [
        {"_id": f"d{number}", "title": f"w{number}", "text": text_of(text)}
        for number, text in enumerate(words)
    ]
    Path("corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in corpus))
    Path("queries.tsv").write_text("".join(f"q{i}\t{text_of(words[i][-6:])}\n" for i in range(7)))
    judgements = [f"q{i}\td{i}\t{1 + i % 3}\n" for i in range(6)] + ["q0\td9\t1\n", "q6\td1\t0\n"]
    Path("qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judgements))


def test_score_rankings_equals_manual_values() -> None:
    # Ranked: relevance 0, 2, 0, 1, then 3 after the tenth place.
    similar = np.arange(12, 0, -1.0)
    found = score_rankings([similar], [{1: 2, 3: 1, 10: 3}])
    ideal = 3 + 2 / np.log2(3) + 1 / 2
    assert found["nDCG@10"] == pytest.approx([(2 / np.log2(3) + 1 / np.log2(5)) / ideal])
    assert {name: values.tolist() for name, values in found.items() if name != "nDCG@10"} == {
        "MRR": [0.5],
        "recall@1": [0.0],
        "recall@10": [pytest.approx(2 / 3)],
    }


def test_score_rankings_equals_scikit_learn_without_ties() -> None:
    generator = np.random.default_rng(1)
    similar, gain = generator.normal(size=(20, 30)), generator.integers(0, 4, (20, 30))
    found = score_rankings(
        similar, [{i: value for i, value in enumerate(row) if value} for row in gain.tolist()]
    )
    assert found["nDCG@10"].mean() == pytest.approx(ndcg_score(gain, similar, k=10))


def test_score_rankings_counts_ties_and_nan_against_the_relevant_document() -> None:
    for similar in (np.ones(12), np.full(12, np.nan), np.where(np.arange(12) == 3, 0.9, np.nan)):
        assert score_rankings([similar], [{3: 1}])["MRR"].tolist() == [1 / 12]
    best = score_rankings([np.array([1, 1, 0, 0])], [{0: 1, 1: 2}])
    assert best["nDCG@10"] == pytest.approx([(1 + 2 / np.log2(3)) / (2 + 1 / np.log2(3))])
    assert list(best) == ["nDCG@10", "MRR", "recall@1"]  # no recall@10 among four documents


def test_search_equals_sentence_transformers_with_prompts(
    minilm: EvalModel, tmp_path: Path
) -> None:
    prompts = {"query": "find: ", "document": "text: ", "other": "no: "}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    texts = read_search_set(Evaluate(**FILES))
    assert texts is not None
    embedder = replace(open_embedder(minilm), model=replace(minilm, root=tmp_path))
    task = plan_search(embedder, None, texts, 64)
    progress: list[int] = []
    task.measure(progress.append)
    assert sum(progress) == task.tokens
    reference = SentenceTransformer(str(minilm.root), device="cpu", prompts=prompts)
    reference.max_seq_length = 64
    expected = InformationRetrievalEvaluator(
        {str(i): text for i, text in enumerate(texts.queries)},
        {str(i): text for i, text in enumerate(texts.documents)},
        {str(i): set(map(str, relevant)) for i, relevant in enumerate(texts.relevant)},
        mrr_at_k=[12],
        ndcg_at_k=[10],
        precision_recall_at_k=[1, 10],
    )(reference)
    assert task.embedded == pytest.approx(reference.encode_query(list(texts.queries)), abs=5e-7)
    binary = [dict.fromkeys(relevant, 1) for relevant in texts.relevant]
    task = replace(task, relevant=tuple(binary))
    task.measure(progress.append)
    for name, value in task.report()["search"].scores["model"].items():
        key = "MRR@12" if name == "MRR" else name
        assert value.mean == pytest.approx(expected[f"cosine_{key.lower()}"])


def test_read_search_set_reads_every_format() -> None:
    jsonl = read_search_set(Evaluate(**FILES))
    assert jsonl is not None
    assert jsonl.documents[0].startswith("w0 w")  # the title, a space and the text
    assert (len(jsonl.queries), jsonl.relevant[0], jsonl.relevant[2]) == (6, {0: 1, 9: 1}, {2: 3})
    assert jsonl.notes == ("1 of 7 queries have no relevant document and are left out.",)
    corpus = [json.loads(line) for line in Path("corpus.jsonl").read_text().splitlines()]
    rows = (f"{item['text']}\t{item['_id']}\t{item['title']}\n" for item in corpus)
    Path("corpus.tsv").write_text("text\t_id\ttitle\n" + "".join(rows))
    texts = [line.split("\t") for line in Path("queries.tsv").read_text().splitlines()]
    Path("queries.jsonl").write_text(
        "\n\n".join(json.dumps({"_id": name, "text": text}) for name, text in texts)
    )
    judged = [line.split("\t") for line in Path("qrels.tsv").read_text().splitlines()[1:]]
    Path("qrels.jsonl").write_text(
        "\n".join(
            json.dumps({"query-id": q, "corpus-id": d, "score": int(score)})
            for q, d, score in judged
        )
    )
    Path("trec.tsv").write_text("".join(f"{q}\t0\t{d}\t{score}\n" for q, d, score in judged))
    for qrels in ("qrels.jsonl", "trec.tsv"):
        assert (
            read_search_set(Evaluate(corpus="corpus.tsv", queries="queries.jsonl", qrels=qrels))
            == jsonl
        )


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "qrels.tsv",
            "q0\td0\t1\nq0\td77\t1\n",
            r"Line 2 of qrels.tsv has the unknown id 'd77'. Remove the line, or",
        ),
        (
            "qrels.tsv",
            "q99\td0\t1\n",
            r"Line 1 of qrels.tsv has the unknown id 'q99'. .* add it to queries.tsv.",
        ),
        (
            "qrels.tsv",
            "q0\td0\t1\nq0\td0\t2\n",
            r"Line 2 of qrels.tsv judges document 'd0' for query 'q0' again.",
        ),
        (
            "qrels.tsv",
            "q0\td0\t-1\n",
            r"Line 1 of qrels.tsv has the score '-1'. Use integers from 0",
        ),
        (
            "qrels.tsv",
            "q0 d0 1\n",
            r"Line 1 of qrels.tsv does not have the fields query-id, corpus-id, score. Write",
        ),
        (
            "qrels.tsv",
            "q0\td0\t0\n",
            r"qrels.tsv has no score above 0. Give each query a relevant document",
        ),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\n", r"qrels.tsv has no rows"),
        (
            "queries.tsv",
            "q0\tw1\nq0\tw2\n",
            r"Line 2 of queries.tsv has the id 'q0' of an earlier line",
        ),
        ("queries.tsv", "", r"queries.tsv has no rows"),
        ("queries.tsv", "q0\t\n", r"Line 1 of queries.tsv has no text"),
        (
            "corpus.jsonl",
            '{"_id": "d0", "text": 3}\n',
            r"Line 1 of corpus.jsonl has an _id, title or text that is not",
        ),
        (
            "corpus.jsonl",
            '{"_id": "d0"}\n',
            r"Line 1 of corpus.jsonl does not have the fields _id, text",
        ),
        ("corpus.jsonl", '{"_id": \n', r"Line 1 of corpus.jsonl is not valid JSON"),
        ("corpus.jsonl", None, r"corpus.jsonl cannot be read: .*No such file"),
    ],
)
def test_evaluate_rejects_a_search_set_before_loading_the_model(
    file: str, text: str | None, message: str
) -> None:
    Path(file).unlink()
    if text is not None:
        Path(file).write_text(text)
    with pytest.raises(DataError, match=message):
        ctxextend.evaluate("tiny-gpt2", **FILES)


def test_evaluate_and_compare_score_a_search_set(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    ctxextend.resize(source, 32, output=tmp_path / "long", method="linear")
    done = invoke("evaluate", tmp_path / "long", "--base", source, *FLAGS, "--report", "page.html")
    assert done.exit_code == 0, done.output
    assert "6 queries, 12 documents" in done.stdout
    assert "base, in chunks" in done.stdout
    assert "nDCG@10" in Path("page.html").read_text()
    found = ctxextend.evaluate(tmp_path / "long", base=source, **FILES)
    search = found.search
    assert search is not None
    assert (
        search.documents,
        search.queries,
        search.longer_than_base,
        search.longer_than_model,
    ) == (12, 6, 10, 4)
    scores = {mode: values["nDCG@10"] for mode, values in search.scores.items()}
    for mode in ("chunks", "model"):
        assert search.changes[mode].mean == pytest.approx(
            scores[mode].mean - scores["truncated"].mean
        )
    assert (found.documents, found.retrieval) == (0, None)
    compared = ctxextend.compare(source, 32, methods=["linear", "copy"], **FILES)
    assert (compared.metric, compared.base) == ("ndcg@10", scores["chunks"])
    (linear,) = (row for row in compared.rows if row.method == "linear")
    assert linear.final.evaluation.search == search
    assert linear.final.score == scores["model"]
    without_base = ctxextend.evaluate(source, **FILES).search
    assert without_base is not None
    assert (without_base.scores, without_base.changes) == (
        {"model": search.scores["truncated"]},
        {},
    )


def test_compare_trains_on_data_and_evaluates_on_a_search_set(tmp_path: Path) -> None:
    Path("texts.txt").write_text(text_of([number * 7 % 27 for number in range(900)]))
    source = make_encoder(tmp_path / "encoder")
    done = invoke(
        "compare",
        source,
        "--to",
        32,
        *FLAGS,
        "--data",
        "texts.txt",
        "--steps",
        1,
        "--method",
        "copy",
        "--json",
    )
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    assert (
        values["metric"],
        values["documents"],
        values["rows"][0]["trained"]["score"]["samples"],
    ) == (
        "ndcg@10",
        0,
        6,
    )


def test_search_set_needs_all_files_and_an_encoder(tmp_path: Path) -> None:
    done = invoke("evaluate", "tiny-gpt2", *FLAGS[:4])
    assert done.exit_code == 2
    assert "--corpus, --queries and --qrels belong together" in " ".join(done.stderr.split())
    assert invoke("compare", "tiny-gpt2", "--to", 512).exit_code == 2  # no text
    with pytest.raises(
        ResizeError, match="does not apply to .*, a causal language model. Pass text with --data"
    ):
        ctxextend.evaluate(make_source(tmp_path / "gpt2", "gpt2"), **FILES)


def test_run_reads_a_search_set_relative_to_the_recipe(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    recipe = tmp_path / "recipe.yaml"
    names = "".join(f"  {name}: {file}\n" for name, file in FILES.items())
    recipe.write_text(f"source: {source}\nevaluate:\n{names}")
    with pytest.raises(DataError, match="corpus.jsonl cannot be read"):
        ctxextend.run(recipe)
    for file in FILES.values():
        Path(file).rename(tmp_path / file)
    evaluation = ctxextend.run(recipe).evaluation
    assert evaluation is not None
    assert evaluation.search is not None
