"""Write QMSum as a retrieval set: corpus.jsonl, queries.jsonl and qrels.tsv, as BEIR names them.

pairs.jsonl has the same queries with their documents, for `ctxextend train --contrastive pairs`.

    git clone https://github.com/Yale-LILY/QMSum
    python -m benchmarks.qmsum QMSum/data/ALL OUTPUT [--splits train val]

A document is the transcript of a meeting, a query the text of an answer about it. Source: Zhong et
al. 2021, arXiv:2104.05938; as a retrieval set of train and val, LongEmbed, Zhu et al. 2024,
arXiv:2404.12096.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

__all__ = ["write_qmsum"]


def write_qmsum(data: Path, output: Path, splits: list[str]) -> None:
    """Write the files of these splits; an answer that occurs twice is one query, of its first
    meeting.
    """
    paths: list[Path] = []
    for split in splits:
        paths += sorted((data / split).glob("*.json"))
    corpus: list[dict[str, str]] = []
    queries: list[dict[str, str]] = []
    pairs: list[dict[str, str]] = []
    relevant = ["query-id\tcorpus-id\tscore"]
    seen = set[str]()
    for number, path in enumerate(paths):
        meeting = json.loads(path.read_text("utf-8"))
        turns = [f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"]]
        document = f"m{number}"
        text = "\n".join(turns)
        corpus.append({"_id": document, "text": text})
        for query in (*meeting["general_query_list"], *meeting["specific_query_list"]):
            answer = query["answer"]
            if answer not in seen:
                seen.add(answer)
                name = f"q{len(queries)}"
                queries.append({"_id": name, "text": answer})
                relevant.append(f"{name}\t{document}\t1")
                pairs.append({"anchor": answer, "positive": text})
    output.mkdir(parents=True, exist_ok=True)
    write_lines(output / "corpus.jsonl", map(json.dumps, corpus))
    write_lines(output / "queries.jsonl", map(json.dumps, queries))
    write_lines(output / "qrels.tsv", relevant)
    write_lines(output / "pairs.jsonl", map(json.dumps, pairs))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--splits", nargs="+", default=["train", "val"])
    arguments = parser.parse_args()
    write_qmsum(arguments.data, arguments.output, arguments.splits)
