"""Peak memory of `ctxextend resize`, which does not grow with the model.

A checkpoint of 12 GB in shards, of real bytes where the disk has room for it and its output, of holes elsewhere: bytes
are moved by the kernel in either, and memory is not read from them. `resize.py` has the rows of 0.5 and 6 GB.

    python -m benchmarks.memory [--rounds 2] [--folder DIR]
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks import load
from benchmarks.measuring import Row, alternate, apart, measured, megabytes, within
from benchmarks.resize import cleared, promised, resizing
from benchmarks.sources import shape_of, write
from benchmarks.table import run_alone

# Memory hardly varies.
ROUNDS = 2

SIZE = 12e9
# Of the disk, beyond a source and its output.
SPARE = 2e9
WIDTH, BEFORE, AFTER = 768, 1024, 4096


def make(source: Path) -> str:
    """Write the checkpoint, and say what its bytes are."""
    if shutil.disk_usage(source.parent).free >= 2 * SIZE + SPARE:
        apart(write, source, shape_of(SIZE, WIDTH, BEFORE))
        return "real bytes"
    load.write_checkpoint(source, *load.shards(12, 10, 100_000_000), rows=BEFORE, width=WIDTH)
    return "holes, for lack of disk"


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the row of 12 GB, 1,024 to 4,096 positions."""
    source, output = folder / "large", folder / "out"
    held = make(source)
    (ours,) = alternate({"ctxextend": measured(resizing(source, AFTER, output))}, rounds, cleared(output)).values()
    cleared(output)()
    shutil.rmtree(source)
    most = within(round(promised(AFTER, WIDTH)))
    yield Row(f"`resize`, 12 GB in shards ({held}), peak memory", "MB", megabytes(ours), "", (), most)


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
