"""`ctxextend verify` beside `cmp` of the same bytes, on a sharded GPT-2-XL-shaped pair of 6.2 GB.

Both read every byte of every tensor but the table, in both checkpoints. `cmp` stops at the first byte that differs, so
of the shard that holds the table it is given what stands in front of the table and what stands behind it. Both run
once before they are measured, so that what the memory can hold of the files is in it for either.

    python -m benchmarks.verify [--rounds 9] [--folder DIR]
"""

import json
import os
import shlex
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.measuring import PROGRAM, Row, alternate, apart, at_least, measure, measured, seconds
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


def comparing(source: Path, output: Path) -> list[str]:
    """The command that has `cmp` read what is the same in two checkpoints; it fails where anything differs."""
    commands = ["set -e"]
    for file in sorted(source.glob("*.safetensors")):
        one, other = (shlex.quote(str(folder / file.name)) for folder in (source, output))
        if TABLE in header(file)[1]:
            ranges = unchanged(file, output / file.name)
            commands += [f"cmp -i {a}:{b} -n {size} {one} {other}" for a, b, size in ranges]
        else:
            commands.append(f"cmp {one} {other}")
    return ["sh", "-c", "\n".join(commands)]


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the row of speed, in MB of one checkpoint's tensors a second."""
    source, output = folder / "xl", folder / "xl-2048"
    apart(write, source)
    measure([*PROGRAM, "resize", str(source), "--to", "2048", "-o", str(output)])
    commands = {"ctxextend": [*PROGRAM, "verify", str(source), str(output)], "cmp": comparing(source, output)}
    for command in commands.values():
        measure(command)
    ours, theirs = alternate({name: measured(command) for name, command in commands.items()}, rounds, os.sync).values()
    size = (sum(XL.sizes().values()) - XL.sizes()[TABLE]) / 1e6
    speeds = [[size / taken for taken in seconds(costs)] for costs in (ours, theirs)]
    yield Row("`verify`, 6.2 GB, speed", "MB/s", speeds[0], "`cmp`", speeds[1], at_least(1.5))


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
