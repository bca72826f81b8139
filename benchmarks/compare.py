"""`ctxextend compare` of several methods beside as many evaluations and one load.

The peer is the same work done by `evaluate`: one method with its original, the others with `--alone`, since `compare`
lets the original read the text once too. Of each are counted the seconds that it says itself, from the first token to
the last figure; to these are added, once, what the process takes beside them: to start, to load one model, and to cut
the text. The other starts and the loads of the original and of the other methods are not counted to the peer, though a
user of `evaluate` would wait for them.

A GPT-2 shape of four layers is given 1,024 tokens.

    python -m benchmarks.compare [--rounds 3] [--folder DIR]
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.measuring import PROGRAM, Cost, Row, alternate, at_most, measure
from benchmarks.reading import Readable, make, measure_telling
from benchmarks.table import run_alone

ROUNDS, WINDOWS, LENGTH = 3, 2, 1024
METHODS = ("linear", "copy", "mirror", "last")
SHAPE = {"n_positions": 256, "n_embd": 256, "n_layer": 4, "n_head": 4}
MODEL = Readable(LENGTH, 2 * LENGTH * (WINDOWS + 1), METHODS, SHAPE)


def compare(folder: Path) -> Cost:
    """Compare all methods."""
    asked = ["--to", str(LENGTH), "--methods", ",".join(METHODS), *flags(folder)]
    return measure([*PROGRAM, "compare", str(folder / "source"), *asked])


def evaluate(folder: Path, *more: str) -> Cost:
    """Evaluate one method; counted are the seconds that it says itself."""
    cost, told = measure_telling([*PROGRAM, "evaluate", str(folder / METHODS[0]), *flags(folder), *more], folder)
    return replace(cost, counted={"seconds": told["seconds"]})


def flags(folder: Path) -> list[str]:
    """What all are told."""
    return ["--data", str(folder / "text.txt"), "--tokens", str(LENGTH * WINDOWS), "--quiet", "--json"]


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the row of time."""
    make(folder, MODEL)
    routes = {
        "compare": partial(compare, folder),
        "evaluate": partial(evaluate, folder),
        "evaluate --alone": partial(evaluate, folder, "--alone"),
    }
    costs = alternate(routes, rounds)
    pairs = zip(costs["evaluate"], costs["evaluate --alone"], strict=True)
    peer = f"{len(METHODS)} evaluations, the original once, and one load"
    taken = [cost.seconds for cost in costs["compare"]]
    yield Row(f"`compare`, {len(METHODS)} methods", "s", taken, peer, [whole(*pair) for pair in pairs], at_most(1.05))


def whole(once: Cost, alone: Cost) -> float:
    """Return the seconds of one evaluation with the original, of the others without, and of one start and load."""
    start = alone.seconds - alone.counted["seconds"]
    return once.counted["seconds"] + (len(METHODS) - 1) * alone.counted["seconds"] + start


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
