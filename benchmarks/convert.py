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
from numpy.typing import NDArray

from benchmarks.long_range import write
from benchmarks.machine import find_versions
from ctxextend import compare_checkpoints, convert, register_method, resize, train
from ctxextend.comparison.comparison_result import Comparison, Row
from ctxextend.errors import UnsupportedModelError
from ctxextend.evaluation.evaluation_result import Estimate
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
    distilled = f" with distillation of weight {distill:g}" if distill else ""
    values = {"to": trained.max_len_after, "steps": steps, "batch": batch, "distilled": distilled}
    yield (
        "# Position schemes after a conversion\n\n    python -m benchmarks.convert "
        f"MODEL\n\n{versions}\n"
    )
    yield INTRODUCTION.format(**values)
    before = {label(row): _loss(row.final.score) for row in untrained.rows}
    rows = list[list[str]]()
    for row in trained.rows:
        parameters = f"{row.checkpoint.parameters:,}" if row.checkpoint else ""
        ratios = (_ratio(change) for change in (row.final.delta, row.final.short_inputs))
        rows.append([label(row), parameters, before[label(row)], _loss(row.final.score), *ratios])
    rows.append(["as it is, in sliding windows", "", "", _loss(trained.base), "", ""])
    short = f"on {trained.max_len_before} tokens, against the base"
    yield from table(
        ["scheme", "parameters", "untrained", f"{steps} steps", "against the best", short], rows
    )
    schemes, found = (
        [label(row) for row in trained.rows],
        [row.final.evaluation for row in trained.rows],
    )
    buckets = zip(*(one.positions.buckets for one in found if one.positions), strict=True)
    cells = [
        [f"{own[0].start} to {own[0].stop - 1}", *(_loss(one.losses["model"]) for one in own)]
        for own in buckets
    ]
    yield f"\nBy position, after {steps} steps:"
    yield from table(["positions", *schemes], cells)
    points = zip(*(one.contexts.points for one in found if one.contexts), strict=True)
    cells = [[f"{own[0].context}", *(_loss(one.loss) for one in own)] for own in points]
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
    texts = (arguments.text, arguments.held_out) if arguments.held_out else write_documentation(out)
    written = write_schemes(arguments.model, arguments.to, texts[0], settings, out)
    untrained, trained = (
        compare_checkpoints(
            folders, texts[1], tokens=arguments.tokens, measure=("position", "context")
        )
        for folders in zip(*written, strict=True)
    )
    text = (
        "\n".join(
            page(untrained, trained, arguments.steps, arguments.batch_size, arguments.distill)
        )
        + "\n"
    )
    (out / "convert.md").write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
