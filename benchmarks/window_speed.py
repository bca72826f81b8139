"""Measure what a window twin costs on long texts, next to its base in chunks and full attention.

    python -m benchmarks.window_speed BASE TWIN [--threads 1 2] [--rounds 3] [--out DIR]

BASE is a BERT-like encoder, TWIN the result of `convert BASE --scheme window --to N`. Full
attention is BASE after `resize --method copy` to the longest measured text, in the attention that
transformers picks. Every measurement is a separate process that embeds one text of random tokens:
once to warm up, and once more for the time. Peak memory is that of the whole process. Writes
window_speed.md, and exits with 1 if a target is missed.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.__main__ import spread
from benchmarks.files import clear_output
from benchmarks.machine import find_versions
from benchmarks.measure import CTXEXTEND, Cost, Row, alternate, measure, measure_json, python

__all__ = ["LENGTHS", "READERS", "page", "target_rows"]

LENGTHS = (512, 2048, 4096, 8192)  # tokens of a text, special tokens included
LONGEST = LENGTHS[-1]
TWIN = "window twin"
CHUNKS = "base, in chunks"
FULL = "full attention"
READERS = (TWIN, CHUNKS, FULL)

# Arguments: folder, tokens of the text, threads, and whether it is read in chunks.
EMBED = """
import json, sys, time
import numpy as np
import torch
from ctxextend.lab.embedding import embed_chunks, open_embedder
from ctxextend.lab.eval_model import open_eval_model
from ctxextend.settings import CheckpointRef
torch.set_num_threads(int(sys.argv[3]))
embedder = open_embedder(open_eval_model(CheckpointRef(sys.argv[1]), "fp32"))
model = embedder.model
count = int(sys.argv[2]) - model.tokenizer.num_special
first = 1000  # after the special tokens of BERT's vocabulary
text = first + np.random.default_rng(0).integers(len(model.tokenizer.tokenizer) - first, size=count)
size = model.max_text if sys.argv[4] == "chunks" else count
for _ in range(2):
    start = time.perf_counter()
    embed_chunks(embedder.embed, [text], size)
    seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds}))
"""

# By the reader and the tokens of a text, one a round.
Costs = Mapping[tuple[str, int], Sequence[Cost]]


def embed(folder: Path, tokens: int, threads: int, how: str) -> Cost:
    """Embed a text in a new process; return the peak of the process and the seconds it reports."""
    cost, reported = measure_json(python(EMBED, folder, tokens, threads, how))
    return Cost(seconds=reported["seconds"], megabytes=cost.megabytes)


def measure_all(folders: Mapping[str, Path], threads: int, rounds: int) -> Costs:
    """Return the costs of all readers at all lengths."""
    costs: dict[tuple[str, int], list[Cost]] = {}
    for tokens in LENGTHS:
        print(f"{tokens} tokens, {threads} threads", file=sys.stderr, flush=True)
        routes = {}
        for name in READERS:
            how = "chunks" if name == CHUNKS else "whole"
            routes[name] = partial(embed, folders[name], tokens, threads, how)
        for name, measured in zip(routes, alternate(routes, rounds), strict=True):
            costs[name, tokens] = measured
    return costs


def target_rows(costs: Costs) -> Iterator[Row]:
    """Yield what is promised of a twin: memory linear in the text, and less time than attention."""
    yield Row(
        measure=f"peak memory, {LONGEST:,} tokens",
        unit="MB",
        values=megabytes(costs[TWIN, LONGEST]),
        baseline=f"the same, {LONGEST // 2:,} tokens",
        baseline_values=megabytes(costs[TWIN, LONGEST // 2]),
        maximum=2.5,
    )
    yield Row(
        measure=f"time, {LONGEST:,} tokens",
        unit="s",
        values=seconds(costs[TWIN, LONGEST]),
        baseline=FULL,
        baseline_values=seconds(costs[FULL, LONGEST]),
        maximum=1.0,
    )


def megabytes(costs: Sequence[Cost]) -> list[float]:
    """Return the peak memory of runs."""
    return [cost.megabytes for cost in costs]


def seconds(costs: Sequence[Cost]) -> list[float]:
    """Return the time of runs."""
    return [cost.seconds for cost in costs]


def page(by_threads: Mapping[int, Costs]) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    yield f"# Speed and memory of a window twin\n\n{versions}"
    for threads, costs in by_threads.items():
        yield f"\n## Threads: {threads}\n"
        yield f"| tokens of a document | {' | '.join(READERS)} |"
        yield f"|---:|{'---:|' * len(READERS)}"
        for tokens in LENGTHS:
            cells = [cell(costs[name, tokens]) for name in READERS]
            yield f"| {tokens:,} | {' | '.join(cells)} |"
        yield "\nDocuments per second; peak memory of the process.\n"
        yield "| measure | window twin | baseline | baseline | target | ratio | |"
        yield "|---|---:|---|---:|---:|---:|---|"
        for row in target_rows(costs):
            yield target_line(row)


def cell(costs: Sequence[Cost]) -> str:
    """Return the medians of documents per second and of peak memory."""
    rate = 1 / statistics.median(seconds(costs))
    peak = statistics.median(megabytes(costs))
    return f"{rate:.3g}/s; {peak:,.0f} MB"


def target_line(row: Row) -> str:
    """Return a line on a target."""
    cells = [
        row.measure,
        spread(row.values, row.unit),
        row.baseline,
        spread(row.baseline_values, row.unit),
        row.target,
        f"{row.ratio:.2f} x",
        "met" if row.is_met else "**missed**",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure all readers, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.window_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("base", type=Path, metavar="BASE")
    parser.add_argument("twin", type=Path, metavar="TWIN")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each reader")
    parser.add_argument("--out", type=Path, default=Path("build/window-speed"), metavar="DIR")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    full = out / "full-attention"
    clear_output(full)()
    resize = ["resize", arguments.base, "--to", LONGEST, "--method", "copy", "--output", full]
    measure([*CTXEXTEND, *resize, "--quiet"])
    folders = {TWIN: arguments.twin, CHUNKS: arguments.base, FULL: full}
    by_threads: dict[int, Costs] = {}
    for threads in arguments.threads:
        by_threads[threads] = measure_all(folders, threads, arguments.rounds)
    text = "\n".join(page(by_threads)) + "\n"
    (out / "window_speed.md").write_text(text, "utf-8")
    print(text, end="")
    rows = [row for costs in by_threads.values() for row in target_rows(costs)]
    sys.exit(not all(row.is_met for row in rows))


if __name__ == "__main__":
    main()
