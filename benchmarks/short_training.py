"""Train a longer model for a few minutes, and its base for as many tokens, and compare them on
held-out text.

    python -m benchmarks.short_training [MODEL] [--to 4x] [--steps 200] [--tokens 2048] [--seed 0]
    [--out DIR]

The text is what `pydoc` prints about modules of the standard library; other modules are held out.
MODEL is trained at its own length, and resized and trained at the longer one: the same weights, on
the same text, for equally many tokens. Perplexity of the longer model is that of whole windows. The
base reads the same windows in its own length, in steps of half of it, or back to back; ratios are
paired by token. Writes the text, all checkpoints and short_training.md.
"""

import argparse
import pydoc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks.long_range import write
from benchmarks.machine import find_versions
from benchmarks.shown import perplexity_text, ratio_text
from ctxextend import Evaluation, evaluate, resize, train
from ctxextend.errors import size_text
from ctxextend.opening.opened_model import open_model
from ctxextend.plan import make_plan
from ctxextend.settings import NO_BASE, CheckpointRef, Resize
from ctxextend.training.train_result import TrainResult

__all__ = ["HELD_OUT", "TRAINED_ON", "documentation", "page"]

TRAINED_ON = (
    "builtins typing collections argparse logging json os io re datetime subprocess socket email "
    "http.client asyncio "
    "threading unittest decimal fractions random statistics pathlib shutil tempfile csv "
    "configparser"
)
HELD_OUT = (
    "ctypes inspect ast multiprocessing queue heapq bisect calendar zipfile tarfile "
    "unittest.mock urllib.request"
)
EVALUATED = 49_152  # tokens
TEXTS = {"train.jsonl": TRAINED_ON, "held_out.jsonl": HELD_OUT}

HEADER = """\
| trained | start | parameters | untrained | longer model | base, sliding | ratio | \
ratio, back to back | time | memory |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"""


@dataclass(frozen=True)
class Weights:
    """What is trained: the weights, or adapters of this rank on them."""

    trainable: str
    lora: int | None = None

    @property
    def name(self) -> str:
        return f"{self.trainable}-{self.lora or 0}"


# What is trained, and the method of the longer model.
RUNS = (
    (Weights("positions"), "auto"),
    (Weights("positions", lora=8), "auto"),
    (Weights("all"), "auto"),
    (Weights("all"), "linear"),
    (Weights("all"), "copy"),
)


@dataclass(frozen=True)
class Run:
    """The training of a longer model, and its losses before and after it."""

    method: str
    training: TrainResult
    untrained: Evaluation
    trained: Evaluation


def documentation(modules: str) -> Iterator[str]:
    """Yield what `pydoc` prints about each module."""
    for name in modules.split():
        yield pydoc.plain(pydoc.render_doc(import_module(name)))


def page(
    runs: Iterable[Run], lengths: tuple[int, int], arguments: argparse.Namespace
) -> Iterator[str]:
    """Yield the lines of the page."""
    short, long = lengths
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    command = f"python -m benchmarks.short_training {arguments.model}"
    yield f"# Short training runs\n\n    {command}\n\n{versions}\n"
    yield (
        f"{arguments.model}, {short} → {long} tokens, {arguments.steps} steps of "
        f"{arguments.tokens:,} tokens with the default learning rate, on `pydoc` text; perplexity "
        "(95 % interval) on other modules. The base is trained like the longer model, at "
        f"{short} tokens, and reads the same text in windows of {short}: sliding by half of it, or "
        "back to back. Ratios are paired by token. Time and memory are of the longer model's "
        "training, on a CPU.\n"
    )
    yield HEADER
    for run in runs:
        yield line(run)


def line(run: Run) -> str:
    """Return the line of a run in the table."""
    training = run.training
    (untrained,) = run.untrained.ranking
    (trained,) = run.trained.ranking
    sliding, separate = run.trained.references
    weights = training.trainable
    if training.lora:
        weights += f", adapters of rank {training.lora}"
    cells = [
        weights,
        f"`{run.method}`",
        f"{training.parameters:,}",
        *(perplexity_text(score.estimate) for score in (untrained, trained, sliding)),
        *(ratio_text(trained.minus(base).change) for base in (sliding, separate)),
        f"{training.seconds:.0f} s",
        size_text(training.peak_bytes or 0),
    ]
    return f"| {' | '.join(cells)} |"


def fit(
    model: str | Path, length: int, weights: Weights, output: Path, arguments: argparse.Namespace
) -> TrainResult:
    """Train on the same number of tokens per step at any length."""
    return train(
        model,
        arguments.out / "train.jsonl",
        output=output,
        force=True,
        steps=arguments.steps,
        seed=arguments.seed,
        save="last",
        eval_every=arguments.steps,
        batch_size=arguments.tokens // length,
        trainable=weights.trainable,
        lora=weights.lora,
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.short_training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="tiny-gpt2", metavar="MODEL")
    parser.add_argument("--to", default="4x", metavar="N")
    parser.add_argument("--steps", type=int, default=200, metavar="K")
    parser.add_argument("--tokens", type=int, default=2048, metavar="T", help="tokens per step")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--out", type=Path, default=Path("build/short_training"), metavar="DIR")
    return parser.parse_args()


def main() -> None:
    """Train and measure all runs, and write the page."""
    arguments = parse_arguments()
    model = arguments.model
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    for name, modules in TEXTS.items():
        write(out / name, documentation(modules))

    plan = make_plan(open_model(CheckpointRef(model)), Resize(arguments.to))
    short = plan.max_len_before
    long = plan.max_len_after
    bases: dict[Weights, Path] = {}
    runs: list[Run] = []
    for weights, method in RUNS:
        if weights not in bases:
            base = fit(model, short, weights, out / f"base-{weights.name}", arguments)
            bases[weights] = base.output
        resized = resize(model, long, method, output=out / f"{method}-{long}", force=True)
        longer = resized.output
        training = fit(longer, long, weights, out / f"{method}-{weights.name}", arguments)
        judge = partial(
            evaluate,
            data=out / "held_out.jsonl",
            measure="position",
            tokens=EVALUATED,
            length=long,
        )
        run = Run(
            method=method,
            training=training,
            untrained=judge(longer, base=NO_BASE),
            trained=judge(training.output, base=bases[weights]),
        )
        runs.append(run)
        print(*page([run], (short, long), arguments), sep="\n", flush=True)
    text = "\n".join(page(runs, (short, long), arguments)) + "\n"
    (out / "short_training.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
