"""Compare position schemes on the weights of one language model: learned, sinusoidal, rotary, ALiBi
and none.

    python -m benchmarks.convert MODEL [TEXT HELD_OUT] [--to 4x] [--steps 200] [--lr X] [--distill
    X] [--out DIR]

Gives MODEL, which has learned positions, each scheme at a longer context, trains all weights on
TEXT with the same settings, and compares the results on HELD_OUT, before and after training. By
default, both are Python's documentation, split as in the training of the models in
recipes/from_scratch. Sinusoids and the row without positions stay as they are in training. Writes
one folder per scheme, which a second run reuses, and the page convert.md.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ctxextend.comparison.comparison_result import Comparison, Row
from ctxextend.lab.evaluation_result import Estimate
from numpy.typing import NDArray

from benchmarks.long_range import write
from benchmarks.machine import find_versions
from ctxextend import compare_checkpoints, convert, register_method, resize, train
from ctxextend.errors import UnsupportedModelError
from ctxextend.report.numbers import NumberFormat

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "from_scratch"))

__all__ = ["SCHEMES", "page", "without_positions"]

NUMBERS = NumberFormat()
BANDS = "learned (bands)"
# How the checkpoint of each scheme is written from a model, a length and an output, and which
# weights are trained.
SCHEMES: dict[str, tuple[Callable[..., Any], str]] = {
    BANDS: (partial(resize, method="bands"), "all"),
    "sinusoidal": (partial(resize, method="sinusoidal:scope=all"), "all-but-positions"),
    "rotary": (partial(convert, scheme="rotary"), "all"),
    "ALiBi": (partial(convert, scheme="alibi"), "all"),
    "none": (partial(resize, method="without-positions"), "all-but-positions"),
}
INTRODUCTION = """\
Perplexity ± 95 % at {to} tokens of text that is held out of the training, and its ratio to that
of the best scheme, paired by window. Training is {steps} steps of {batch} windows of {to}
tokens{distilled}, with the same order, seed and learning rate for all. None: all rows are the
mean row."""


def without_positions(table: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """Give every position the mean of the learned rows: what the converted models start with,
    too.
    """
    return np.tile(table.mean(axis=0), (rows, 1))


def write_schemes(
    model: str, to: str, text: str, settings: dict[str, Any], out: Path
) -> Iterator[tuple[Path, Path]]:
    """Yield the folder of each scheme that the model can have, before and after training."""
    for name, (create, trainable) in SCHEMES.items():
        folder = out / name.split()[0].lower()
        trained = folder.with_name(f"{folder.name}-trained")
        try:
            if not folder.exists():
                create(model, to=to, output=folder)
        except UnsupportedModelError as error:
            print(f"{name}: {error.message}", file=sys.stderr)
            continue
        if not trained.exists():
            print(name, file=sys.stderr, flush=True)
            train(folder, text, trainable=trainable, save="last", output=trained, **settings)
        yield folder, trained


def write_documentation(out: Path) -> tuple[str, str]:
    """Write Python's documentation as JSONL, and return the files for training and held out
    of it.
    """
    import corpus

    trained, held_out = corpus.split(corpus.documents())
    return str(write(out / "train.jsonl", trained)), str(write(out / "held_out.jsonl", held_out))


def label(row: Row) -> str:
    """Return the scheme of a checkpoint, by the name of its folder."""
    stem = row.method.removesuffix("-trained")
    return next(name for name in SCHEMES if name.split()[0].lower() == stem)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table; the first column is text, the others are numbers."""
    yield f"\n| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}"
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def page(
    untrained: Comparison, trained: Comparison, steps: int, batch: int, distill: float
) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    distilled = ""
    if distill:
        distilled = f" with distillation of weight {distill:g}"
    yield (
        "# Position schemes after a conversion\n\n    python -m benchmarks.convert "
        f"MODEL\n\n{versions}\n"
    )
    yield INTRODUCTION.format(
        to=trained.max_len_after, steps=steps, batch=batch, distilled=distilled
    )
    before = {label(row): _loss(row.score) for row in untrained.rows}
    rows = list[list[str]]()
    for row in trained.rows:
        scheme = label(row)
        parameters = ""
        if row.checkpoint:
            parameters = f"{row.checkpoint.parameters:,}"
        rows.append(
            [
                scheme,
                parameters,
                before[scheme],
                _loss(row.score),
                _ratio(row.delta),
                _ratio(row.short_inputs),
            ]
        )
    rows.append(["as it is, in sliding windows", "", "", _loss(trained.base), "", ""])
    short = f"on {trained.max_len_before} tokens, against the base"
    yield from table(
        ["scheme", "parameters", "untrained", f"{steps} steps", "against the best", short], rows
    )
    schemes = [label(row) for row in trained.rows]
    found = [row.evaluation for row in trained.rows]
    buckets = zip(*(one.positions.buckets for one in found if one.positions), strict=True)
    cells: list[list[str]] = []
    for own in buckets:
        positions = f"{own[0].start} to {own[0].stop - 1}"
        cells.append([positions, *(_loss(bucket.losses["model"]) for bucket in own)])
    yield f"\nBy position, after {steps} steps:"
    yield from table(["positions", *schemes], cells)
    points = zip(*(one.contexts.points for one in found if one.contexts), strict=True)
    cells = [[f"{own[0].context}", *(_loss(point.loss) for point in own)] for own in points]
    yield f"\nBy context in tokens, with the same target tokens, after {steps} steps:"
    yield from table(["context", *schemes], cells)


def _loss(loss: Estimate | None) -> str:
    return NUMBERS.perplexity(loss) if loss else ""


def _ratio(change: Estimate | None) -> str:
    return f"x {_loss(change)}" if change else ""


def main() -> None:
    """Write and train the schemes that have no folder yet, compare them, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL")
    for name in ("text", "held_out"):
        parser.add_argument(name, nargs="?", metavar=name.upper())
    parser.add_argument("--to", default="4x", metavar="N")
    parser.add_argument("--steps", type=int, default=200, metavar="K")
    parser.add_argument("--batch-size", type=int, default=8, metavar="B")
    parser.add_argument("--lr", type=float, metavar="X")
    parser.add_argument("--distill", type=float, default=0, metavar="X")
    parser.add_argument("--tokens", type=int, default=65_536, metavar="T")
    parser.add_argument("--out", type=Path, default=Path("build/convert"), metavar="DIR")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    register_method("without-positions", without_positions)
    settings = {name: getattr(arguments, name) for name in ("steps", "batch_size", "lr", "distill")}
    text = arguments.text
    held_out = arguments.held_out
    if not held_out:
        text, held_out = write_documentation(out)
    untrained: list[Path] = []
    trained: list[Path] = []
    for folder, trained_folder in write_schemes(arguments.model, arguments.to, text, settings, out):
        untrained.append(folder)
        trained.append(trained_folder)

    def compare(folders: list[Path]) -> Comparison:
        measured = ("position", "context")
        return compare_checkpoints(folders, held_out, tokens=arguments.tokens, measure=measured)

    lines = page(
        compare(untrained),
        compare(trained),
        arguments.steps,
        arguments.batch_size,
        arguments.distill,
    )
    text_of_page = "\n".join(lines) + "\n"
    (out / "convert.md").write_text(text_of_page, "utf-8")
    print(text_of_page, end="")


if __name__ == "__main__":
    main()
