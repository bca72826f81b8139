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
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.long_range import write
from benchmarks.machine import find_versions
from ctxextend import evaluate, resize, train
from ctxextend.errors import size_text
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, TRUNCATED
from ctxextend.plan.opened_model import open_model
from ctxextend.plan.plan import plan_model
from ctxextend.recipe import CheckpointRef, Resize
from ctxextend.report.numbers import NumberFormat

__all__ = ["HELD_OUT", "TRAINED_ON", "documentation", "page"]

NUMBERS = NumberFormat()
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
# What is trained, the rank of adapters, and the method of the longer model.
RUNS = (
    ("positions", None, "auto"),
    ("positions", 8, "auto"),
    ("all", None, "auto"),
    ("all", None, "linear"),
    ("all", None, "copy"),
)
EVALUATED = 49_152  # tokens
TEXTS = {"train.jsonl": TRAINED_ON, "held_out.jsonl": HELD_OUT}

Run = dict[str, Any]


def documentation(modules: str) -> Iterator[str]:
    """Yield what `pydoc` prints about each module."""
    for name in modules.split():
        yield pydoc.plain(pydoc.render_doc(import_module(name)))


def page(runs: list[Run], lengths: tuple[int, int], arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    yield (
        "# Short training runs\n\n    python -m benchmarks.short_training "
        f"{arguments.model}\n\n{versions}\n"
    )
    short, long = lengths
    yield (
        f"{arguments.model}, {short} → {long} tokens, {arguments.steps} steps of "
        f"{arguments.tokens:,} tokens with the "
        "default learning rate, on `pydoc` text; perplexity ± 95 % on other modules. The base "
        "is trained like the "
        f"longer model, at {short} tokens, and reads the same text in windows of {short}: "
        "sliding by half of it, or "
        "back to back. Ratios are paired by token. Time and memory are of the longer model's "
        "training, on a CPU.\n"
    )
    yield (
        "| trained | start | parameters | untrained | longer model | base, sliding | ratio | "
        "ratio, back to back | "
        "time | memory |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for run in runs:
        trained = run["trained"].trained
        cost = run["trained"].cost
        losses = run["measured"].losses
        changes = run["measured"].changes
        weights = trained.trainable
        if trained.lora:
            weights += f", adapters of rank {trained.lora}"
        cells = [
            weights,
            f"`{run['method']}`",
            f"{trained.parameters:,}",
            NUMBERS.perplexity(run["untrained"]),
            NUMBERS.perplexity(losses[MODEL]),
            NUMBERS.perplexity(losses[SLIDING]),
            f"x {NUMBERS.perplexity(changes[SLIDING])}",
            f"x {NUMBERS.perplexity(changes[TRUNCATED])}",
            f"{cost.seconds:.0f} s",
            size_text(cost.peak_bytes or 0),
        ]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Train and measure all runs, and write the page."""
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
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    plan = plan_model(open_model(CheckpointRef(arguments.model)), Resize(arguments.to))
    lengths = plan.max_len_before, plan.max_len_after
    data, held_out = (write(out / name, documentation(modules)) for name, modules in TEXTS.items())
    settings = {
        "steps": arguments.steps,
        "seed": arguments.seed,
        "save": "last",
        "eval_every": arguments.steps,
    }
    bases, runs = dict[Any, Path](), list[Run]()
    for trainable, lora, method in RUNS:

        def fit(model: Any, length: int, name: str, kind: Any = (trainable, lora)) -> Any:
            flags = settings | {
                "trainable": kind[0],
                "lora": kind[1],
                "batch_size": arguments.tokens // length,
            }
            return train(model, data, output=out / name, force=True, **flags)

        name = f"{trainable}-{lora or 0}"
        if (trainable, lora) not in bases:
            bases[trainable, lora] = fit(arguments.model, lengths[0], f"base-{name}").output
        longer = resize(
            arguments.model, lengths[1], method, output=out / f"{method}-{lengths[1]}", force=True
        ).output
        trained = fit(longer, lengths[1], f"{method}-{name}")
        flags: Run = {"measure": "position", "tokens": EVALUATED, "length": lengths[1]}
        base = evaluate(longer, held_out, no_base=True, **flags).positions
        measured = evaluate(
            trained.output, held_out, base=str(bases[trainable, lora]), **flags
        ).positions
        assert base is not None
        runs.append(
            {
                "method": method,
                "trained": trained,
                "measured": measured,
                "untrained": base.losses[MODEL],
            }
        )
        print(*page(runs[-1:], lengths, arguments), sep="\n", flush=True)
    text = "\n".join(page(runs, lengths, arguments)) + "\n"
    (out / "short_training.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
