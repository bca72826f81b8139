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
from benchmarks.shown import perplexity_text, ratio_text
from ctxextend import Evaluation, convert, evaluate, register_method, resize, train
from ctxextend.errors import UnsupportedModelError
from ctxextend.lab.scores import curves, select

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "from_scratch"))

__all__ = ["SCHEMES", "page", "without_positions"]

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
Perplexity (95 % interval) at {to} tokens of text that is held out of the training, and its ratio to
that of the best scheme, paired by window. Training is {steps} steps of {batch} windows of {to}
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


def label(folder: str) -> str:
    """Return the scheme of a checkpoint, by the name of its folder."""
    stem = folder.removesuffix("-trained")
    return next(name for name in SCHEMES if name.split()[0].lower() == stem)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table; the first column is text, the others are numbers."""
    yield f"\n| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}"
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def page(
    untrained: Evaluation, trained: Evaluation, steps: int, batch: int, distill: float
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
    yield INTRODUCTION.format(to=trained.length, steps=steps, batch=batch, distilled=distilled)
    assert trained.base is not None
    before = {label(score.model): score.estimate for score in untrained.ranking}
    parameters = {model.name: f"{model.parameters:,}" for model in trained.models}
    rows = list[list[str]]()
    best = trained.ranking[0]
    for score in trained.ranking:
        scheme = label(score.model)
        change = ""
        if score is not best:
            change = ratio_text(score.minus(best).change)
        short = trained.of_short(score.model)
        assert short is not None
        losses = [perplexity_text(loss) for loss in (before[scheme], score.estimate)]
        rows.append([scheme, parameters[score.model], *losses, change, ratio_text(short.change)])
    (base,) = trained.main_references
    rows.append(["as it is, in sliding windows", "", "", perplexity_text(base.estimate), "", ""])
    on_short = f"on {trained.base.max_len} tokens, against the base"
    yield from table(
        ["scheme", "parameters", "untrained", f"{steps} steps", "against the best", on_short], rows
    )
    yield f"\nBy position, after {steps} steps:"
    yield from curve_table("positions", trained, "position")
    yield f"\nBy context in tokens, with the same target tokens, after {steps} steps:"
    yield from curve_table("context", trained, "context")


def curve_table(head: str, evaluation: Evaluation, measure: str) -> Iterator[str]:
    """Yield the perplexities of each scheme by position or by context, best scheme first."""
    of_measure = curves(select(evaluation.scores, measure=measure))
    own = [of_measure[name] for name in evaluation.order]
    cells = list[list[str]]()
    for scores in zip(*own, strict=True):
        place = f"{scores[0].length}"
        if scores[0].part is not None:
            start, stop = scores[0].part
            place = f"{start} to {stop - 1}"
        cells.append([place, *(perplexity_text(score.estimate) for score in scores)])
    yield from table([head, *map(label, evaluation.order)], cells)


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

    judge = partial(
        evaluate, data=held_out, tokens=arguments.tokens, measure=("position", "context")
    )
    lines = page(
        judge(untrained),
        judge(trained),
        arguments.steps,
        arguments.batch_size,
        arguments.distill,
    )
    text_of_page = "\n".join(lines) + "\n"
    (out / "convert.md").write_text(text_of_page, "utf-8")
    print(text_of_page, end="")


if __name__ == "__main__":
    main()
