"""Judge a small Llama without positions, recalibrated at its own length, at up to 4 times of it.

    python recipes/from_scratch/rotary_lm.py MODEL --seed 52
    python -m benchmarks.without_positions MODEL [--steps 200] [--out DIR]

Removes the positions (`convert --scheme none`), trains at the old length as in DroPE
(arXiv:2512.12167), and compares perplexity with that of `yarn`, before and after as many steps on
as many tokens, on code that was held out of all trainings, and how well each finds a passage again.
Writes a JSON file per row, which a second run reuses, and without-positions.md, the page of
benchmarks/results.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.long_inputs import Ids
from benchmarks.long_range import write
from benchmarks.machine import find_versions
from benchmarks.passages import CUE, INPUTS, PASSAGE, passage_gain
from benchmarks.shown import against_text, mean_text, perplexity_text
from ctxextend import convert, evaluate, resize, train
from ctxextend.opening.opened_model import open_model
from ctxextend.settings import CheckpointRef

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "from_scratch"))

__all__ = ["page"]

TIMES = (1, 2, 4)
EVALUATED = 16_384  # tokens
BATCH_TOKENS = 2048
AS_IT_IS = "as it is"


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
The small Llama of rotary.md, with a trained length of {before} tokens. `none` is
`convert --scheme none`, the start of DroPE (Gelberg et al. 2025, arXiv:2512.12167). Perplexity
(95 % interval) on code that was held out of all trainings, and its ratio to that of the model as it
is in sliding windows of {before} tokens, paired by token. Training: {steps} steps of {tokens:,}
tokens, all weights, in windows of {before} tokens (1 x) or {after} (4 x). `none` is trained at
{before} tokens only, as in the paper; distilled: also on the hidden states of the model as it is.
Read: {evaluated:,} tokens of one document."""
READING = """\
Without positions, the perplexity is the same at every length, as the paper says, but at this size
it does not come back: {steps} steps are 5 % of the training of the model, and four times as many
steps gain little. With a learning rate of 3e-3 instead of the default of 7.35e-4, 200 steps give
x 3.15 at 1,024. The models of the paper have 360 million parameters or more."""
PASSAGES = """\
What a model gains from a passage of {passage} tokens that its input has read before, three quarters
of the input earlier: loss per token (95 % interval) over {inputs} inputs, on the last {scored}
tokens of the passage. More is better; sliding windows of {before} tokens no longer have the passage
in longer inputs. `none` gains a fifth to two fifths of what `yarn` does, trained or not."""


def prepare(model: Path, out: Path, before: int) -> None:
    """Write the untrained checkpoints, each with limits of the longest context."""
    longest = TIMES[-1] * before
    resize(model, longest, "yarn", output=out / "yarn", force=True)
    convert(model, "none", longest, output=out / "none", force=True)


def measure(row: Row, model: Path, out: Path, before: int, steps: int) -> dict[str, Any]:
    """Train a row if it asks for that and has not been trained, and measure it at all lengths."""
    folder = out / row.folder
    if row.trained_at:
        folder = train_row(row, folder, out, before, steps)
    lengths = [times * before for times in TIMES]
    points = [losses(folder, model, out, length) for length in lengths]
    return {"name": row.name, "points": points, **find_passages(folder, model, out, lengths)}


def find_passages(folder: Path, model: Path, out: Path, lengths: Sequence[int]) -> dict[str, Any]:
    """Return what a checkpoint gains from passages that it has read before, at all lengths."""
    ids = held_out_ids(model, out)
    return {"gains": [vars(passage_gain(folder, ids, length)) for length in lengths]}


def held_out_ids(model: Path, out: Path) -> Ids:
    """Return the tokens of the held-out code."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = (out / "test.jsonl").read_text("utf-8").splitlines()
    text = "\n\n".join(json.loads(line)["text"] for line in lines)
    return np.array(tokenizer(text, verbose=False)["input_ids"])


def train_row(row: Row, folder: Path, out: Path, before: int, steps: int) -> Path:
    """Return a checkpoint with all weights trained, in windows of a multiple of the old length."""
    window = row.trained_at * before
    steps *= row.times_steps
    output = out / f"{row.folder}-trained-{row.distill:g}-{steps}"
    if output.exists():
        return output
    return train(
        folder,
        out / "train.jsonl",
        steps,
        output=output,
        seq_len=window,
        batch_size=BATCH_TOKENS // window,
        trainable="all",
        distill=row.distill,
        save="last",
        eval_every=steps,
    ).output


def losses(folder: Path, model: Path, out: Path, length: int) -> dict[str, Any]:
    """Return the loss in windows of a length, and its change against the model as it is."""
    evaluation = evaluate(
        folder,
        out / "test.jsonl",
        base=model,
        measure="position",
        tokens=EVALUATED,
        length=length,
    )
    (own,) = evaluation.ranking
    (base,) = evaluation.main_references
    return {
        "length": length,
        "own": vars(own.estimate),
        "base": vars(base.estimate),
        "change": vars(own.minus(base).change),
    }


def page(
    results: Sequence[Mapping[str, Any]], base: Mapping[str, Any], before: int, steps: int
) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    yield "# Without positions\n\n    python -m benchmarks.without_positions MODEL"
    yield f"\n{versions}\n"
    yield INTRODUCTION.format(
        before=before,
        after=TIMES[-1] * before,
        steps=steps,
        tokens=BATCH_TOKENS,
        evaluated=EVALUATED,
    )
    yield from _head(before)
    sliding = [perplexity_text(point["base"]) for point in results[0]["points"]]
    yield f"| {AS_IT_IS}, in sliding windows | {' | '.join(sliding)} |"
    for result in results:
        cells = [against_text(point["own"], point["change"]) for point in result["points"]]
        yield f"| {result['name']} | {' | '.join(cells)} |"
    yield f"\n{READING.format(steps=steps)}"
    scored = PASSAGE - CUE
    yield f"\n{PASSAGES.format(passage=PASSAGE, scored=scored, inputs=INPUTS, before=before)}"
    yield from _head(before)
    (own_length,) = base["gains"]
    yield f"| {AS_IT_IS} | {mean_text(own_length, signed=True)} | 0 | 0 |"
    for result in results:
        gains = [mean_text(gain, signed=True) for gain in result["gains"]]
        yield f"| {result['name']} | {' | '.join(gains)} |"


def _head(before: int) -> Iterator[str]:
    """Yield the head of a table by length."""
    heads = [f"at {times * before}" for times in TIMES]
    yield f"\n| | {' | '.join(heads)} |"
    yield f"|---|{'---:|' * len(heads)}"


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
    model: Path = arguments.model
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    before = open_model(CheckpointRef(str(model))).tables[0].length()
    trained, held_out = corpus.split(corpus.programs())
    write(out / "train.jsonl", trained)
    write(out / "test.jsonl", held_out)
    prepare(model, out, before)
    base = kept(out / "base.json", lambda: find_passages(model, model, out, [before]))
    results: list[dict[str, Any]] = []
    for number, row in enumerate(ROWS):
        print(row.name, file=sys.stderr, flush=True)
        judge = partial(measure, row, model, out, before, arguments.steps)
        results.append(kept(out / f"row-{number}.json", judge))
    text = "\n".join(page(results, base, before, arguments.steps)) + "\n"
    (out / "without-positions.md").write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
