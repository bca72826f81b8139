"""Judge a small Llama without positions, recalibrated at its own length, at up to 4 times of it.

    python recipes/from_scratch/rotary_lm.py MODEL --seed 52
    python -m benchmarks.without_positions MODEL [--steps 200] [--out DIR]

Removes the positions (`convert --scheme none`), trains at the old length as in DroPE
(arXiv:2512.12167), and compares perplexity with that of `yarn`, before and after as many steps on
as many tokens, on code that was held out of all trainings. Says whether the model as it is finds
hidden words, without which retrieval compares nothing. Writes a JSON file per row, which a second
run reuses, and the page without-positions.md, a section of docs/results.md.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.long_range import write
from benchmarks.machine import find_versions
from ctxextend import convert, evaluate, resize, train
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, TRUNCATED, Estimate
from ctxextend.plan.found_table import context_length
from ctxextend.plan.opened_model import open_model
from ctxextend.recipe import CheckpointRef
from ctxextend.report.numbers import NumberFormat

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "from_scratch"))

__all__ = ["page"]

NUMBERS = NumberFormat()
TIMES = (1, 2, 4)
EVALUATED = 16_384  # tokens
BATCH_TOKENS = 2048
RETRIEVAL_SECONDS = 20
RETRIEVAL_TASK = "needle"
AS_IT_IS = "as it is, in sliding windows"


class Row(NamedTuple):
    """A model to judge."""

    name: str  # in the table
    folder: str  # of the untrained checkpoint, in the folder of the benchmark
    trained_at: int = 0  # of the old length, such as 4; 0: not trained
    distill: float = 0.0
    times_steps: int = 1  # how many times the steps of the others


ROWS = (
    Row("yarn", folder="yarn"),
    Row("none", folder="none"),
    Row("yarn, trained at 4 x", folder="yarn", trained_at=4),
    Row("none, trained at 1 x", folder="none", trained_at=1),
    Row("none, trained at 1 x, distilled", folder="none", trained_at=1, distill=4.0),
    Row("none, trained at 1 x, 4 times as long", folder="none", trained_at=1, times_steps=4),
)

INTRODUCTION = """\
The small Llama of the section above, with a trained length of {before} tokens. `none` is
`convert --scheme none`, the start of DroPE (Gelberg et al. 2025, arXiv:2512.12167). Perplexity ±
95 % on code that was held out of all trainings, and its ratio to that of the model as it is in
sliding windows of {before} tokens, paired by token. Training: {steps} steps of {tokens:,} tokens,
all weights, in windows of {before} tokens (1 x) or {after} (4 x). `none` is trained at {before}
tokens only, as in the paper; distilled: also on the hidden states of the model as it is. Read:
{evaluated:,} tokens of one document."""
READING = """\
Without positions, the perplexity is the same at every length, as the paper says, but at this size
it does not come back: {steps} steps are 5 % of the training of the model, and four times as many
steps gain little. With a learning rate of 3e-3 instead of the default of 7.35e-4, 200 steps give
x 3.15 at 1,024. The models of the paper have 360 million parameters or more."""
RETRIEVAL = """\
Retrieval cannot be judged at this size: of words that texts of {length} tokens hide, the model as
it is finds {accuracy:.0f} % (95 %: {low:.0f} to {high:.0f} %), where guessing finds {chance:.0f} %
(`ctxextend evaluate --measure effective --budget {seconds}`)."""


def prepare(model: Path, out: Path, before: int) -> None:
    """Write the untrained checkpoints, each with limits of the longest context."""
    longest = TIMES[-1] * before
    resize(model, longest, "yarn", output=out / "yarn", force=True)
    convert(model, "none", longest, output=out / "none", force=True)


def measure(row: Row, model: Path, out: Path, before: int, steps: int) -> dict[str, Any]:
    """Train a row if it asks for that, and measure it at all lengths."""
    folder = out / row.folder
    if row.trained_at:
        folder = train_row(row, folder, out, before, steps)
    points = [losses(folder, model, out, times * before) for times in TIMES]
    return {"name": row.name, "points": points}


def find_words(model: Path, out: Path) -> dict[str, Any]:
    """Return how many hidden words a model finds in the shortest texts, in percent."""
    flags: dict[str, Any] = {"measure": "effective", "budget": RETRIEVAL_SECONDS}
    effective = evaluate(model, out / "test.jsonl", **flags).effective
    assert effective is not None
    task = effective.tasks[RETRIEVAL_TASK]
    shortest = task.lengths[0]
    low, high = shortest.interval
    return {
        "length": shortest.length,
        "accuracy": 100 * shortest.accuracy,
        "low": 100 * low,
        "high": 100 * high,
        "chance": 100 * task.chance,
    }


def train_row(row: Row, folder: Path, out: Path, before: int, steps: int) -> Path:
    """Train all weights of a checkpoint, in windows of a multiple of the old length."""
    window = row.trained_at * before
    steps *= row.times_steps
    name = f"{row.folder}-trained-{row.distill:g}-{steps}"
    return train(
        folder,
        out / "train.jsonl",
        steps,
        output=out / name,
        seq_len=window,
        batch_size=BATCH_TOKENS // window,
        trainable="all",
        distill=row.distill,
        save="last",
        eval_every=steps,
        force=True,
    ).output


def losses(folder: Path, model: Path, out: Path, length: int) -> dict[str, Any]:
    """Return the loss in windows of a length, and its change against the model as it is."""
    positions = evaluate(
        folder,
        out / "test.jsonl",
        base=str(model),
        measure="position",
        tokens=EVALUATED,
        length=length,
    ).positions
    assert positions is not None
    read = SLIDING if SLIDING in positions.losses else TRUNCATED
    return {
        "length": length,
        "own": vars(positions.losses[MODEL]),
        "base": vars(positions.losses[read]),
        "change": vars(positions.changes[read]),
    }


def page(
    results: Sequence[Mapping[str, Any]], found: Mapping[str, Any], before: int, steps: int
) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    yield "## Without positions\n\n    python -m benchmarks.without_positions MODEL"
    yield f"\n{versions}\n"
    yield INTRODUCTION.format(
        before=before,
        after=TIMES[-1] * before,
        steps=steps,
        tokens=BATCH_TOKENS,
        evaluated=EVALUATED,
    )
    heads = [f"at {times * before}" for times in TIMES]
    yield f"\n| | {' | '.join(heads)} |"
    yield f"|---|{'---:|' * len(heads)}"
    base = [NUMBERS.perplexity(Estimate(**point["base"])) for point in results[0]["points"]]
    yield f"| {AS_IT_IS} | {' | '.join(base)} |"
    for result in results:
        cells = [cell(point) for point in result["points"]]
        yield f"| {result['name']} | {' | '.join(cells)} |"
    yield f"\n{READING.format(steps=steps)}"
    yield f"\n{RETRIEVAL.format(seconds=RETRIEVAL_SECONDS, **found)}"


def cell(point: Mapping[str, Any]) -> str:
    """Return a perplexity, and its ratio to that of the model as it is."""
    own = Estimate(**point["own"])
    return f"{own.perplexity:.4g} (x {NUMBERS.perplexity(Estimate(**point['change']))})"


def kept(path: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return values from a file, which is written if it does not exist."""
    if not path.exists():
        path.write_text(json.dumps(compute(), indent=1, default=vars) + "\n", "utf-8")
    values: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return values


def main() -> None:
    """Measure the rows that have no file yet, and write the page."""
    import corpus

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.without_positions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--steps", type=int, default=200, metavar="K")
    parser.add_argument("--out", type=Path, default=Path("build/without-positions"), metavar="DIR")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    before = context_length(open_model(CheckpointRef(str(arguments.model))).tables[0])
    trained, held_out = corpus.split(corpus.programs())
    write(out / "train.jsonl", trained)
    write(out / "test.jsonl", held_out)
    prepare(arguments.model, out, before)
    found = kept(out / "words.json", lambda: find_words(arguments.model, out))
    results: list[dict[str, Any]] = []
    for number, row in enumerate(ROWS):
        print(row.name, file=sys.stderr, flush=True)
        judge = partial(measure, row, arguments.model, out, before, arguments.steps)
        results.append(kept(out / f"row-{number}.json", judge))
    text = "\n".join(page(results, found, before, arguments.steps)) + "\n"
    (out / "without-positions.md").write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
