"""Peak memory of `ctxextend resize`, which grows with the new table, and not with the model.

A checkpoint of 12 GB, and one with a long table. All but the table is holes: they take no disk, and no memory either,
as no byte of a tensor that stays comes into it; `resize.py` and `costs.py` have the rows and the curve of real bytes.

    python -m benchmarks.memory [--rounds 3] [--folder DIR]
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.load import bound, shards, write_checkpoint
from benchmarks.measuring import Row, alternate, measured, megabytes, within
from benchmarks.resize import cleared, resizing
from benchmarks.table import run_alone

ROUNDS = 3

WIDTH = 768


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield a row for each checkpoint: its shards of 1 GB, and its positions before and after."""
    for name, count, before, after in (("12 GB", 12, 1024, 4096), ("100,000 positions", 1, 50_000, 100_000)):
        source, output = folder / "source", folder / "out"
        write_checkpoint(source, *shards(count, 10, 100_000_000), rows=before, width=WIDTH)
        (ours,) = alternate({"ctxextend": measured(resizing(source, after, output))}, rounds, cleared(output)).values()
        cleared(output)()
        shutil.rmtree(source)
        most = within(round(bound(0, after, WIDTH)))
        yield Row(f"`resize`, {name} (holes), peak memory", "MB", megabytes(ours), "", (), most)


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
