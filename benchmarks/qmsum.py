"""Write QMSum as a retrieval set: corpus.jsonl, queries.jsonl and qrels.tsv, as BEIR names them.

    git clone https://github.com/Yale-LILY/QMSum
    python -m benchmarks.qmsum QMSum/data/ALL OUTPUT [--splits train val]

A document is the transcript of a meeting, a query the text of an answer about it. Source: Zhong et
al. 2021, arXiv:2104.05938; as a retrieval set of train and val, LongEmbed, Zhu et al. 2024,
arXiv:2404.12096.
"""

import argparse
import json
from pathlib import Path

__all__ = ["write_qmsum"]


def write_qmsum(data: Path, output: Path, splits: list[str]) -> None:
    """Write the three files of these splits; an answer that occurs twice is one query, of its first
    meeting.
    """
    corpus, queries = list[dict[str, str]](), dict[str, tuple[str, str]]()
    for path in (path for split in splits for path in sorted((data / split).glob("*.json"))):
        meeting = json.loads(path.read_text("utf-8"))
        turns = (f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"])
        corpus.append({"_id": f"m{len(corpus)}", "text": "\n".join(turns)})
        for query in (*meeting["general_query_list"], *meeting["specific_query_list"]):
            queries.setdefault(query["answer"], (f"q{len(queries)}", corpus[-1]["_id"]))
    output.mkdir(parents=True, exist_ok=True)
    texts = [{"_id": name, "text": text} for text, (name, _) in queries.items()]
    for name, lines in (("corpus", corpus), ("queries", texts)):
        (output / f"{name}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines), "utf-8"
        )
    pairs = [
        "query-id\tcorpus-id\tscore",
        *(f"{query}\t{document}\t1" for query, document in queries.values()),
    ]
    (output / "qrels.tsv").write_text("\n".join(pairs) + "\n", "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--splits", nargs="+", default=["train", "val"])
    arguments = parser.parse_args()
    write_qmsum(arguments.data, arguments.output, arguments.splits)
