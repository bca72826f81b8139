"""`ctxextend verify` beside `cmp` of the same bytes, on a sharded GPT-2-XL-shaped pair of 6.2 GB.

Both read every byte of every tensor but the table, in both checkpoints. `cmp` stops at the first byte that differs, so
of the shard that holds the table it is given what stands in front of the table and what stands behind it. Both run
once before they are measured, so that what the memory can hold of the files is in it for either.

Held to the target is the speed at which bytes go by: of each side is taken off what it takes to begin, which is a
measure of its own (`startup.py`). That is `verify` on the bundled checkpoint, and as many `cmp` of a byte each. The
speed of whole processes is shown beside it.

    python -m benchmarks.verify [--rounds 9] [--folder DIR]
"""

import json
import os
import shlex
import statistics
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.measuring import PROGRAM, Row, alternate, apart, at_least, measure, measured, seconds, shown
from benchmarks.sources import TABLE, XL, write
from benchmarks.table import run_alone

ROUNDS = 9


def header(file: Path) -> tuple[int, dict[str, Any]]:
    """Return where a safetensors file's first tensor begins, and what its header says of each."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        return 8 + length, json.loads(opened.read(length))


def unchanged(one: Path, other: Path) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges of a shard that are the same in the other: where they begin in each, and their bytes."""
    (ours, entries), (theirs, others) = header(one), header(other)
    names = sorted(entries, key=lambda name: int(entries[name]["data_offsets"][0]))
    for is_table, group in groupby(names, lambda name: name == TABLE):
        if not is_table:
            run = list(group)
            start, end = entries[run[0]]["data_offsets"][0], entries[run[-1]]["data_offsets"][1]
            yield ours + start, theirs + others[run[0]]["data_offsets"][0], end - start


def comparing(source: Path, output: Path, most: int | None = None) -> list[str]:
    """The command that has `cmp` read what is the same in two checkpoints, or at most so many bytes of each range.

    It fails where anything differs.
    """
    commands = ["set -e"]
    for file in sorted(source.glob("*.safetensors")):
        one, other = (shlex.quote(str(folder / file.name)) for folder in (source, output))
        whole = [(0, 0, file.stat().st_size)]
        for ours, theirs, size in unchanged(file, output / file.name) if TABLE in header(file)[1] else whole:
            commands.append(f"cmp -i {ours}:{theirs} -n {min(size, most or size)} {one} {other}")
    return ["sh", "-c", "\n".join(commands)]


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the rows of speed, in MB of one checkpoint's tensors a second: past the start, and of whole processes."""
    source, output, small = folder / "xl", folder / "xl-2048", folder / "small"
    apart(write, source)
    measure([*PROGRAM, "resize", str(source), "--to", "2048", "-o", str(output)])
    measure([*PROGRAM, "resize", "tiny-gpt2", "--to", "512", "-o", str(small)])
    commands = {
        "ctxextend": [*PROGRAM, "verify", str(source), str(output)],
        "cmp": comparing(source, output),
        "start of ctxextend": [*PROGRAM, "verify", "tiny-gpt2", str(small)],
        "start of cmp": comparing(source, output, 1),
    }
    for command in commands.values():
        measure(command)
    taken = alternate({name: measured(command) for name, command in commands.items()}, rounds, os.sync)
    ours, theirs, our_start, their_start = (seconds(costs) for costs in taken.values())
    past = speeds(ours, our_start), speeds(theirs, their_start)
    yield Row("`verify`, 6.2 GB, speed past the start", "MB/s", past[0], "`cmp`", past[1], at_least(1.5))
    yield Row("`verify`, 6.2 GB, speed of the whole process", "MB/s", speeds(ours), "`cmp`", speeds(theirs), shown())


def speeds(taken: Sequence[float], start: Sequence[float] = (0.0,)) -> list[float]:
    """Return MB a second of runs, each without the median start."""
    size = (sum(XL.sizes().values()) - XL.sizes()[TABLE]) / 1e6
    return [size / (whole - statistics.median(start)) for whole in taken]


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
