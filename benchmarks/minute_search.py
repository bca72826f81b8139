"""What tuning on documents is worth to a sentence encoder in search.

The table is tuned on the first half of the documents of a search set; queries about the other half
judge. Documents are read at the new length.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.long_range import write
from benchmarks.minute import tune
from benchmarks.shown import mean_text
from ctxextend import resize
from ctxextend.lab.documents import NDCG_AT_10, score_rankings
from ctxextend.lab.embedding import Embedder, open_embedder
from ctxextend.lab.eval_model import open_eval_model
from ctxextend.lab.search_set import SearchSet, read_search_set
from ctxextend.lab.statistics import estimate
from ctxextend.settings import CheckpointRef, Evaluate

__all__ = ["TOKENS_HEAD", "MinuteSearch", "measure_minute_search", "search_lines"]

COPY = "copy"
TOKENS_HEAD = "tokens of each document, median"


@dataclass(frozen=True)
class MinuteSearch:
    """A sentence encoder that is tuned on documents, and searches in others."""

    model: str
    before: int
    to: int
    budget: int  # seconds of tuning
    text: str = "qmsum"

    @property
    def name(self) -> str:
        """The name of its file, and in --only."""
        return f"minute-{self.model}-{self.before}-{self.to}".lower()


def measure_minute_search(
    part: MinuteSearch, source: str, search: str, folder: Path
) -> dict[str, Any]:
    """Return the nDCG@10 of each mode of reading the judging half, and its lead over `copy`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = read_search_set(Evaluate(search=search))
    assert texts is not None
    tuning = len(texts.documents) // 2
    text = write(folder / f"{part.name}-tuning.jsonl", texts.documents[:tuning])
    judging = documents_from(texts, tuning)
    models = {name: folder / f"{part.name}-{name}" for name in (COPY, "tuned")}
    resize(source, part.to, COPY, output=models[COPY], force=True)
    run = tune(source, part.to, COPY, text, part.budget, models["tuned"])

    embedders = {
        name: open_embedder(open_eval_model(CheckpointRef(str(path)), "fp32"))
        for name, path in models.items()
    }
    embedders["base"] = open_embedder(open_eval_model(CheckpointRef(source), "fp32"))
    modes = {
        f"as it is, cut at {part.before}": "base",
        COPY: COPY,
        f"copy, tuned for {part.budget} s": "tuned",
    }
    rankings = {mode: ndcg(embedders[name], judging) for mode, name in modes.items()}
    rows = {}
    for mode, scores in rankings.items():
        change = estimate([*(scores - rankings[COPY]).reshape(-1, 1)])
        rows[mode] = {
            "ndcg": estimate([*scores.reshape(-1, 1)]),
            "change": change,
            "tokens": median_tokens(embedders[modes[mode]], judging.documents),
        }
    return {**run, "rows": rows}


def documents_from(texts: SearchSet, first: int) -> SearchSet:
    """Return the documents from a number on, and the queries about them."""
    documents = range(first, len(texts.documents))
    relevant = queries_about(texts, documents)
    return SearchSet(
        documents=texts.documents[first:],
        queries=tuple(texts.queries[number] for number in relevant),
        relevant=tuple(relevant.values()),
        notes=(),
    )


def queries_about(texts: SearchSet, documents: range) -> dict[int, dict[int, int]]:
    """Return the relevance of documents, counted from the first, by the number of each query.

    Queries about other documents are left out.
    """
    found = dict[int, dict[int, int]]()
    for number, gains in enumerate(texts.relevant):
        kept = {
            document - documents.start: gain
            for document, gain in gains.items()
            if document in documents
        }
        if kept:
            found[number] = kept
    return found


def ndcg(embedder: Embedder, texts: SearchSet) -> Any:
    """Return the nDCG@10 of each query, shape (queries,)."""
    queries = embedder.embed(token_ids(embedder, texts.queries))
    documents = embedder.embed(token_ids(embedder, texts.documents))
    cosines = queries.astype("float64") @ documents.astype("float64").T
    return score_rankings(cosines, texts.relevant)[NDCG_AT_10]


def token_ids(embedder: Embedder, texts: tuple[str, ...]) -> list[Any]:
    """Return the tokens of texts that an encoder reads."""
    model = embedder.model
    return [model.tokenizer.encode(text)[: model.max_text] for text in texts]


def median_tokens(embedder: Embedder, texts: tuple[str, ...]) -> int:
    """Return the median of the tokens of texts that an encoder reads, special tokens included."""
    special = embedder.model.tokenizer.num_special
    return statistics.median_low(len(ids) + special for ids in token_ids(embedder, texts))


def search_lines(part: MinuteSearch, result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of a part."""
    tuning = result["tuning"]
    yield (
        f"\n{part.model} {part.before} → {part.to}, tuned in {tuning['seconds']:.0f} s "
        f"({tuning['steps']} steps) on the first half of the meetings, judged on the others.\n"
    )
    yield (
        f"| documents are read by | {TOKENS_HEAD} | nDCG@10 | against copy |\n|---|---:|---:|---:|"
    )
    for mode, row in result["rows"].items():
        change = ""
        if mode != COPY:
            change = mean_text(row["change"], signed=True)
        yield f"| {mode} | {row['tokens']:,} | {mean_text(row['ndcg'])} | {change} |"
