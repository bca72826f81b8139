"""Measure what each position scheme costs when a model becomes four times longer, before and after
a short training.

    python recipes/from_scratch/schemes.py MODELS
    python -m benchmarks.schemes MODELS [--to 4x] [--steps 100] [--out DIR]

MODELS has one folder per scheme: models of the same size, trained on the same text. Each is resized
with the default method. Perplexity on code of the standard library that was held out of their
training is compared with that of the base, which reads the same windows in its own length, in steps
of half of it. Then both are trained on the rest of the code for equally many tokens, all weights,
and compared again. Ratios are paired by token. Writes schemes.md and schemes.json.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.long_range import write
from benchmarks.machine import find_versions
from benchmarks.shown import perplexity_text, ratio_text
from ctxextend import Evaluation, evaluate, resize, train
from ctxextend.lab.scores import ONE_PASS, SLIDING, exponential, select
from ctxextend.opening.opened_model import open_model
from ctxextend.plan import make_plan
from ctxextend.settings import CheckpointRef, Resize

sys.path.append(str(Path(__file__).parents[1] / "recipes" / "from_scratch"))
from corpus import programs, split

__all__ = ["page"]

NAMES = ("learned", "sinusoidal", "rotary", "ALiBi")
EVALUATED = 65_536  # tokens
BATCH_TOKENS = 4096


def page(
    schemes: dict[str, Any], lengths: tuple[int, int], arguments: argparse.Namespace
) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    yield "# Position schemes\n\n    python recipes/from_scratch/schemes.py MODELS"
    yield f"    python -m benchmarks.schemes MODELS\n\n{versions}\n"
    yield (
        f"Small language models of the same size, trained at {lengths[0]} tokens on the same "
        "text and resized to "
        f"{lengths[1]} with the default method. Perplexity (95 % interval) on held-out code in "
        f"windows of {lengths[1]}, and its "
        f"ratio to the base's in sliding windows of {lengths[0]}; short inputs are windows of "
        f"{lengths[0]}. Training: "
        f"{arguments.steps} steps of {BATCH_TOKENS:,} tokens, all weights, of both.\n"
    )
    yield (
        "| scheme | method | base, sliding | untrained | ratio | on short inputs | trained | "
        "ratio, base trained |\n"
        "|---|---|---:|---:|---:|---:|---:|---:|"
    )
    columns = ("method", "base", "untrained", "ratio", "short", "trained", "trained_ratio")
    for name, scheme in schemes.items():
        cells = [name, *(scheme[column] for column in columns)]
        yield f"| {' | '.join(cells)} |"


def measure(
    folder: Path, text: Path, held_out: Path, out: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Resize, train and measure one model."""
    plan = make_plan(open_model(CheckpointRef(str(folder))), Resize(arguments.to))
    before = plan.max_len_before
    after = plan.max_len_after
    resized = resize(folder, after, output=out / f"{folder.name}-{after}", force=True).output

    judge = partial(evaluate, data=held_out, measure="position", tokens=EVALUATED)

    def train_all(model: Path, length: int) -> Path:
        result = train(
            model,
            text,
            arguments.steps,
            output=out / f"{model.name}-trained",
            batch_size=BATCH_TOKENS // length,
            trainable="all",
            save="last",
            eval_every=arguments.steps,
            force=True,
        )
        return result.output

    untrained = judge(resized, base=folder, length=after)
    short = judge(resized, base=folder, length=before)
    base = train_all(folder, before)
    longer = train_all(resized, after)
    trained = judge(longer, base=base, length=after)
    by_position = list[tuple[float, float, float]]()
    own = select(untrained.scores, reading=ONE_PASS)
    sliding = select(untrained.scores, reading=SLIDING)
    for score, other in zip(own, sliding, strict=True):
        if score.part is not None:
            by_position.append((*score.part, exponential(score.mean - other.mean)))
    return {
        "method": plan.method,
        "base": perplexity_text(untrained.main_references[0].estimate),
        "untrained": perplexity_text(untrained.ranking[0].estimate),
        "ratio": against_base(untrained),
        "short": against_base(short),
        "trained": perplexity_text(trained.ranking[0].estimate),
        "trained_ratio": against_base(trained),
        "by_position": by_position,
    }


def against_base(evaluation: Evaluation) -> str:
    """Return the ratio of a model's perplexity to that of its base."""
    return ratio_text(evaluation.ranking[0].minus(evaluation.main_references[0]).change)


def main() -> None:
    """Measure all schemes, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.schemes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", type=Path, metavar="MODELS")
    parser.add_argument("--to", default="4x", metavar="N")
    parser.add_argument("--steps", type=int, default=100, metavar="K")
    parser.add_argument("--out", type=Path, default=Path("build/schemes"), metavar="DIR")
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    train_texts, held_out_texts = split(programs())
    text = write(out / "train.jsonl", train_texts)
    held_out = write(out / "test.jsonl", held_out_texts)
    folders = {name: arguments.models / name.lower() for name in NAMES}
    learned = CheckpointRef(str(folders["learned"]))
    plan = make_plan(open_model(learned), Resize(arguments.to))
    lengths = (plan.max_len_before, plan.max_len_after)
    schemes: dict[str, Any] = {}
    for name, folder in folders.items():
        schemes[name] = measure(folder, text, held_out, out, arguments)
    result = "\n".join(page(schemes, lengths, arguments)) + "\n"
    (out / "schemes.md").write_text(result, "utf-8")
    (out / "schemes.json").write_text(f"{json.dumps({'schemes': schemes}, indent=2)}\n", "utf-8")
    print(result, end="")


if __name__ == "__main__":
    main()
