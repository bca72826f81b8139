"""Judge rotary methods at 2 and 4 times the trained length of a small Llama, before and after 100
training steps.

    python recipes/from_scratch/rotary_lm.py MODEL --seed 52
    python -m benchmarks.rotary MODEL [--out DIR]

Trains and scores on the code of Python's standard library, split by document as in the training of
the model. Writes one JSON file per length, which a second run reuses, and rotary.md, the page
of benchmarks/results.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.long_range import write
from benchmarks.machine import find_versions
from benchmarks.shown import against_text, perplexity_text, ratio_text
from ctxextend import evaluate, resize, train
from ctxextend.lab.scores import SEPARATE, SLIDING, Score, curves, select

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "from_scratch"))

__all__ = ["BASES", "METHODS", "STAGES", "page"]

UNSCALED = "limits"  # the base as it is
METHODS = {
    UNSCALED: "limits raised only",
    "yarn": "yarn",
    "linear": "linear",
    "dynamic": "dynamic",
    "theta": "theta",
}
TIMES = (2, 4)
STAGES = (0, 100)
TOKENS = 98_304
BASES = {SLIDING: "as it is, in sliding windows", SEPARATE: "as it is, truncated"}

INTRODUCTION = """\
A small Llama with a trained length of {before} tokens (`recipes/from_scratch/rotary_lm.py --seed
52`, a seed that was fixed before any model was scored), on code held out of its training:
perplexity (95 % interval), and its ratio to that of the model as it is in sliding windows of
{before} tokens, paired by token. Truncated: each {before} tokens are read by themselves. Limits
raised only: frequencies do not change. Training is {steps} steps of 8 windows of the new length, of
all weights."""
YARN = "Without training, the perplexity of yarn is that of linear"
THETA = """\
`theta` divides the lowest frequency by the whole factor and those above it by less, so at long
positions their angles are beyond those of training (Peng et al. 2023, YaRN, arXiv:2309.00071):
it needs training, or a larger factor."""
SHORT = (
    "On texts of {before} tokens: perplexity, as a ratio to that of the model as it is, paired "
    "by token:"
)


def write_texts(folder: Path) -> list[tuple[str, ...]]:
    """Write the training and the held-out text, one document per line; return the file of each."""
    import corpus

    trained, held_out = corpus.split(corpus.programs())
    data = write(folder / "train.jsonl", trained)
    unseen = write(folder / "held-out.jsonl", held_out)
    return [(str(data),), (str(unseen),)]


def measure(
    times: int, model: str, data: tuple[str, ...], held_out: tuple[str, ...], out: Path
) -> dict[str, Any]:
    """Compare the methods at a multiple of the trained length, before and after a training."""
    rows: list[dict[str, Any]] = []
    before = 0
    for steps in STAGES:
        folders = write_models(times, steps, model, data, out)
        evaluation = evaluate(
            folders, held_out, base=model, tokens=TOKENS, measure=("position", "context")
        )
        assert evaluation.base is not None
        before = evaluation.base.max_len
        bands = curves(select(evaluation.scores, measure="position"), times)
        own = {score.model: score for score in evaluation.ranking}
        base = {score.reading: score for score in evaluation.references}
        names = dict(zip(METHODS, evaluation.names, strict=True))
        if not steps:
            yarn = own[names["yarn"]].minus(own[names["linear"]])
            for reading, label_of_base in BASES.items():
                rows.append(scores(label_of_base, 0, base[reading], base[SLIDING], bands))
        for method, name in names.items():
            row = scores(METHODS[method], steps, own[name], base[SLIDING], bands)
            short = evaluation.of_short(name)
            assert short is not None
            row["short"] = short.change
            rows.append(row)
    return {
        "before": before,
        "to": times * before,
        "rows": rows,
        "yarn against linear": yarn.change,
    }


def write_models(
    times: int,
    steps: int,
    model: str,
    data: tuple[str, ...],
    out: Path,
) -> list[Path]:
    """Write a checkpoint by each method, trained for so many steps."""
    folders: list[Path] = []
    for name in METHODS:
        folder = out / f"{times}x-{name.partition(':')[0]}"
        if not steps:
            resize(model, f"{times}x", name, output=folder, force=True)
        else:
            trained = folder.with_name(f"{folder.name}-{steps}")
            train(
                folder,
                data,
                steps,
                trainable="all",
                save="last",
                output=trained,
                force=True,
            )
            folder = trained
        folders.append(folder)
    return folders


def scores(
    method: str, steps: int, own: Score, base: Score, bands: Mapping[str, Sequence[Score]]
) -> dict[str, Any]:
    """Return losses, and minus those of the base: over all positions, and in each band of them."""
    pairs = zip(bands[own.label], bands[base.label], strict=True)
    return {
        "method": method,
        "steps": steps,
        "all": [own.estimate, own.minus(base).change],
        "bands": [[one.estimate, one.minus(other).change] for one, other in pairs],
    }


def label(row: Mapping[str, Any]) -> str:
    if row["steps"]:
        return f"{row['method']}, {row['steps']} steps"
    return str(row["method"])


def score_text(row: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> str:
    """Return a perplexity and its ratio to that of the base, which has none itself."""
    own, change = values
    if row["method"] == BASES[SLIDING]:
        return perplexity_text(own)
    return against_text(own, change)


def table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table; the first column is text, the others are numbers."""
    columns = ["method", *heads]
    yield f"\n| {' | '.join(columns)} |"
    yield f"|---|{'---:|' * (len(columns) - 1)}"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"


def page(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the page from the results at each length, shortest first."""
    before = results[0]["before"]
    lengths = [f"{result['before']} → {result['to']}" for result in results]
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    yield f"# Rotary models\n\n    python -m benchmarks.rotary MODEL\n\n{versions}\n"
    yield INTRODUCTION.format(before=before, steps=STAGES[1])

    all_cells: list[list[str]] = []
    short_cells: list[list[str]] = []
    rows_of_lengths = [result["rows"] for result in results]
    for rows in zip(*rows_of_lengths, strict=True):  # of a method, one at each length
        name = label(rows[0])
        all_cells.append([name, *(score_text(row, row["all"]) for row in rows)])
        if "short" in rows[0]:
            short_cells.append([name, *(ratio_text(row["short"]) for row in rows)])

    yield from table(lengths, all_cells)
    ratios: list[str] = []
    for result in results:
        yarn = ratio_text(result["yarn against linear"])
        ratios.append(f"{yarn} at {result['to']} tokens")
    yield f"\n{YARN} {', and '.join(ratios)}.\n\n{THETA}"
    for result in results:
        yield f"\nBy position, {before} → {result['to']}:"
        yield from table_by_position(result)
    yield f"\n{SHORT.format(before=before)}"
    yield from table(lengths, short_cells)


def table_by_position(result: Mapping[str, Any]) -> Iterator[str]:
    before = result["before"]
    starts = range(0, result["to"], before)
    heads = [f"{start} to {start + before - 1}" for start in starts]
    cells: list[list[str]] = []
    for row in result["rows"]:
        cells.append([label(row), *(score_text(row, band) for band in row["bands"])])
    yield from table(heads, cells)


def main() -> None:
    """Measure the lengths that have no file yet, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rotary",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--out", type=Path, default=Path("build/rotary"), metavar="DIR")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    files = {times: out / f"{times}x.json" for times in TIMES}
    for times, path in files.items():
        if path.exists():
            continue
        print(f"{times}x", file=sys.stderr, flush=True)
        data, held_out = write_texts(out)
        result = measure(times, arguments.model, data, held_out, out)
        path.write_text(json.dumps(result, indent=1, default=vars) + "\n", "utf-8")
    results = [json.loads(path.read_text("utf-8")) for path in files.values()]
    text = "\n".join(page(results)) + "\n"
    (out / "rotary.md").write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
