"""`ctxextend resize` beside what a user would run instead: transformers, and `cp` with a sync.

A GPT-2 of 498 MB in one file, and one of 6.2 GB in shards. Each route runs as a whole process, in turn with the others.
What the last one wrote is deleted, and the disk at rest, before the next begins. `ctxextend` waits until its files and
their folder are on the disk, so `cp` is followed by a sync of its own files and folder, and of nothing else;
transformers waits for no disk, which is left as it is.

    python -m benchmarks.resize [--rounds 5] [--folder DIR]
"""

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.load import bound
from benchmarks.measuring import (
    PROGRAM,
    Row,
    alternate,
    apart,
    at_most,
    less,
    measure,
    measured,
    megabytes,
    more,
    python,
    seconds,
    within,
)
from benchmarks.sources import XL, write
from benchmarks.table import run_alone

__all__ = ["cleared", "copy_and_sync", "resizing"]

ROUNDS = 5

TRANSFORMERS_ROUTE = """
import sys, torch
from transformers import GPT2LMHeadModel
model = GPT2LMHeadModel.from_pretrained(sys.argv[1])
old, rows = model.transformer.wpe.weight.data, 4096
new = torch.nn.Embedding(rows, old.shape[1])
new.weight.data[:] = torch.nn.functional.interpolate(
    old.T.unsqueeze(0), size=rows, mode="linear", align_corners=True)[0].T
model.transformer.wpe = new
model.config.n_positions = rows
model.save_pretrained(sys.argv[2])
"""

MAKE = """
import sys
from transformers import GPT2Config, GPT2LMHeadModel
GPT2LMHeadModel(GPT2Config()).save_pretrained(sys.argv[1])
"""


def resizing(source: Path, rows: int, output: Path) -> list[str]:
    """Our command, with the method that the transformers route has too."""
    flags = ["--to", str(rows), "--method", "linear", "-o", str(output), "--quiet"]
    return [*PROGRAM, "resize", str(source), *flags]


def copy_and_sync(source: Path, output: Path) -> list[str]:
    """The command that copies a folder and waits until its files and the folder itself are on the disk."""
    one, other = shlex.quote(str(source)), shlex.quote(str(output))
    return ["sh", "-c", f"cp -r {one} {other} && sync {other}/* {other}"]


def cleared(output: Path) -> Callable[[], None]:
    """What is done in front of each run: nothing of the last one is left, not even to be written."""

    def clear() -> None:
        shutil.rmtree(output, ignore_errors=True)
        os.sync()

    return clear


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the rows of a model in one file, and of one in shards."""
    yield from small_rows(folder, rounds)
    yield from large_rows(folder, rounds)


def small_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the rows of 498 MB, 1,024 to 4,096 positions."""
    source, output = folder / "gpt2-small", folder / "out"
    measure([*python(MAKE), str(source)])
    routes = {
        "ctxextend": measured(resizing(source, 4096, output)),
        "transformers": measured([*python(TRANSFORMERS_ROUTE), str(source), str(output)]),
        "cp -r + sync": measured(copy_and_sync(source, output)),
    }
    costs = alternate(routes, rounds, cleared(output))
    shutil.rmtree(source)
    ours, transformers, copied = costs.values()
    what, route = "`resize`, 498 MB", "transformers: load, interpolate, save"
    yield Row(f"{what}, time", "s", seconds(ours), route, seconds(transformers), less(8))
    yield Row(f"{what}, peak memory", "MB", megabytes(ours), route, megabytes(transformers), less(10))
    yield Row(f"{what}, time", "s", seconds(ours), "`cp -r` + sync", seconds(copied), more(0.45))
    yield Row(f"{what}, peak memory", "MB", megabytes(ours), "", (), within(round(bound(0, 4096, 768))))


def large_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the rows of 6.2 GB in shards, 1,024 to 2,048 positions."""
    source, output = folder / "xl", folder / "out"
    apart(write, source)
    routes = {
        "ctxextend": measured(resizing(source, 2048, output)),
        "cp -r + sync": measured(copy_and_sync(source, output)),
    }
    ours, copied = alternate(routes, rounds, cleared(output)).values()
    shutil.rmtree(source)
    what = "`resize`, 6.2 GB in shards"
    yield Row(f"{what}, time", "s", seconds(ours), "`cp -r` + sync", seconds(copied), at_most(1.15))
    yield Row(f"{what}, peak memory", "MB", megabytes(ours), "", (), within(round(bound(0, 2048, XL.width))))


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
