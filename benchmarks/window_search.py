"""What a sentence encoder finds that reads whole documents in attention windows.

    python -m benchmarks.window_search BASE QMSUM [--window 256] [--trained NAME=FOLDER ...]

BASE is the folder of a sentence encoder, QMSUM the search set of `benchmarks.qmsum`. Its twin with
windows (`convert --scheme window --to 8192`), and trained ones, read up to 8,192 tokens in one
pass; the base reads the same tokens in chunks, or whole documents. The window and the training
were chosen on the first half of the documents; the others judge, and all are shown too. Queries
are embedded by the base, for trained models also by themselves. Embeddings are kept in the
folder --out, so a second run reuses them.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.minute_search import queries_about, token_ids
from benchmarks.shown import mean_text, point
from ctxextend import convert
from ctxextend.held_out import Ids
from ctxextend.lab.documents import MRR, NDCG_AT_10, score_rankings
from ctxextend.lab.embedding import Embedder, embed_chunks, mean_embeddings, open_embedder
from ctxextend.lab.eval_model import open_eval_model
from ctxextend.lab.search_set import SearchSet, read_search_set
from ctxextend.lab.statistics import Estimate, estimate
from ctxextend.settings import CheckpointRef, Evaluate

__all__ = ["page"]

Vectors = NDArray[np.float32]
Scores = Mapping[str, NDArray[np.float64]]  # of queries, by name

LENGTHS = (512, 2048, 4096, 8192)
LIMIT_FILE = "sentence_bert_config.json"
NAMES = (NDCG_AT_10, MRR, "recall@1", "recall@10")
UNTRAINED = "windows, not trained"


@dataclass(frozen=True)
class Half:
    """Some of the documents, and the queries about them."""

    name: str
    documents: slice

    def score(self, queries: Vectors, documents: Vectors, texts: SearchSet) -> Scores:
        """Return the scores of the queries about these documents, among these."""
        relevant = queries_about(texts, range(len(texts.documents))[self.documents])
        exact = documents[self.documents].astype(np.float64)
        similar = queries[[*relevant]].astype(np.float64) @ exact.T
        return score_rankings(similar, [*relevant.values()])


@dataclass(frozen=True)
class Encoders:
    """Embeds a search set with several encoders, and keeps the vectors in a folder."""

    base: Embedder
    folder: Path
    texts: SearchSet
    shipped: int  # tokens that the base reads before its limit is raised

    @cached_property
    def documents(self) -> list[Ids]:
        """The documents as tokens, without special ones."""
        encode = self.base.model.tokenizer.encode
        return [encode(text) for text in self.texts.documents]

    def embed_queries(self, name: str, embedder: Embedder) -> Vectors:
        """Return the vectors of the queries, cut as the base cuts them."""
        return self._kept(f"{name}-queries", lambda: embedder.embed(self.queries))

    @cached_property
    def queries(self) -> list[Ids]:
        """The queries as tokens."""
        return token_ids(self.base, self.texts.queries)

    def embed_documents(self, name: str, embedder: Embedder, length: int) -> Vectors:
        """Return the vectors of documents, of which an encoder reads so many tokens."""
        return self._kept(f"{name}-{length}", lambda: embedder.embed(self.read(length, embedder)))

    def read(self, length: int, embedder: Embedder) -> list[Ids]:
        """Return as much of each document as fits a length with special tokens."""
        size = length - embedder.model.tokenizer.num_special
        return [document[:size] for document in self.documents]

    def embed_chunks(self, length: int | None) -> Vectors:
        """Return the base's mean vectors of chunks; of whole documents without a length."""
        documents = self.documents
        if length is not None:
            documents = self.read(length, self.base)
        size = self.base.model.max_text

        def compute() -> Vectors:
            chunks = embed_chunks(self.base.embed, documents, size)
            return mean_embeddings(chunks, documents, size)

        return self._kept(f"chunks-{length or 'all'}", compute)

    def _kept(self, name: str, compute: Any) -> Vectors:
        path = self.folder / f"{name}.npy"
        if not path.exists():
            np.save(path, compute())
        vectors: Vectors = np.load(path)
        return vectors


def measure(encoders: Encoders, models: Mapping[str, Embedder]) -> dict[str, Any]:
    """Return the scores of queries by half, reader of the documents and score."""
    middle = len(encoders.texts.documents) // 2
    halves = (
        Half("choosing", slice(0, middle)),
        Half("judging", slice(middle, None)),
        Half("all", slice(None)),
    )
    by_base = encoders.embed_queries("base", encoders.base)
    readers: dict[str, tuple[Vectors, Vectors]] = {
        "chunks of the whole document": (by_base, encoders.embed_chunks(None)),
        "as shipped": (by_base, encoders.embed_chunks(encoders.shipped)),
    }
    for length in LENGTHS:
        readers[f"chunks of the same text, {length}"] = (by_base, encoders.embed_chunks(length))
        for name, model in models.items():
            vectors = encoders.embed_documents(name, model, length)
            readers[f"{name}, {length}"] = (by_base, vectors)
            if name != UNTRAINED:
                by_model = encoders.embed_queries(name, model)
                readers[f"{name}, queries too, {length}"] = (by_model, vectors)
    return {
        half.name: {
            reader: half.score(queries, documents, encoders.texts)
            for reader, (queries, documents) in readers.items()
        }
        for half in halves
    }


def page(
    found: Mapping[str, Mapping[str, Scores]], names: Sequence[str], shipped: int
) -> Iterator[str]:
    """Yield a table for each half."""
    for half, readers in found.items():
        whole = readers["chunks of the whole document"]
        yield (
            f"\n| {half}: documents are read by | tokens | nDCG@10 | MRR | recall@10 | "
            "nDCG@10 against chunks of the same text | against chunks of the whole document |"
        )
        yield "|---|---:|---:|---:|---:|---:|---:|"
        yield row("chunks of the whole document", "all", whole, None, None)
        yield row("as shipped", f"{shipped:,}", readers["as shipped"], None, whole)
        for length in LENGTHS:
            same = readers[f"chunks of the same text, {length}"]
            tokens = f"{length:,}"
            yield row("chunks of the same text", tokens, same, None, whole)
            for name in names:
                for reader in (name, f"{name}, queries too"):
                    scores = readers.get(f"{reader}, {length}")
                    if scores is not None:
                        yield row(reader, tokens, scores, same, whole)


def row(name: str, tokens: str, scores: Scores, same: Scores | None, whole: Scores | None) -> str:
    """Return the row of a reader."""
    cells = [name, tokens]
    for score in (NDCG_AT_10, MRR, "recall@10"):
        cells.append(mean_text(mean(scores[score])))
    for other in (same, whole):
        change = ""
        if other is not None:
            change = mean_text(mean(scores[NDCG_AT_10] - other[NDCG_AT_10]), signed=True)
        cells.append(change)
    return f"| {' | '.join(cells)} |"


def mean(scores: NDArray[np.float64]) -> Estimate:
    """Return the mean over queries, with its interval."""
    return estimate([*scores.reshape(-1, 1)])


def main() -> None:
    """Measure all models, and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base")
    parser.add_argument("qmsum", type=Path)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--trained", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, default=Path("build/window-search"))
    arguments = parser.parse_args()
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    twin = folder / "twin"
    if not twin.exists():
        window = arguments.window
        convert(arguments.base, "window", max(LENGTHS), output=twin, attention_window=window)
    folders = {UNTRAINED: twin} | dict(item.split("=", 1) for item in arguments.trained)
    texts = read_search_set(Evaluate(search=str(arguments.qmsum)))
    assert texts is not None
    limit = json.loads((Path(arguments.base) / LIMIT_FILE).read_text("utf-8"))
    encoders = Encoders(
        base=opened(arguments.base),
        folder=folder,
        texts=texts,
        shipped=limit["max_seq_length"],
    )
    models = {name: opened(str(path)) for name, path in folders.items()}
    found = measure(encoders, models)
    text = "\n".join(page(found, list(models), encoders.shipped))
    (folder / "window-search.md").write_text(f"{text}\n", "utf-8")
    points = {
        half: {
            reader: {name: point(mean(scores[name])) for name in NAMES}
            for reader, scores in readers.items()
        }
        for half, readers in found.items()
    }
    (folder / "window-search.json").write_text(f"{json.dumps(points, indent=1)}\n", "utf-8")
    print(text)


def opened(folder: str) -> Embedder:
    """Return an encoder in float32."""
    return open_embedder(open_eval_model(CheckpointRef(folder), "fp32"))


if __name__ == "__main__":
    main()
