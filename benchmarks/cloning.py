"""`ctxextend resize` on disks that share blocks between files: XFS and btrfs, each in an image that is mounted here.

A GPT-2-small of 498 MB and a sharded GPT-2 XL of 6.2 GB are written on each. Measured are whole processes, in turn with
an interpreter that imports what every command does, and the bytes of the output that it shares with no other file, as
the disk itself tells them. Needs root, a loop device, mkfs.xfs, mkfs.btrfs, and 7 GB in the folder.

    python -m benchmarks.cloning [--rounds 5] [--folder DIR]
"""

import array
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measuring import (
    PROGRAM,
    START_WITH_NUMPY,
    Cost,
    Row,
    alternate,
    apart,
    measure,
    measured,
    more,
    python,
    seconds,
    within,
)
from benchmarks.resize import cleared
from benchmarks.sources import XL, Shape, shape_of, write
from benchmarks.table import run_alone

__all__ = ["mounted", "unshared"]

ROUNDS = 5
POSITIONS = 4096

# Each kind's package in Debian, and what its mkfs is told.
KINDS = {"xfs": ("xfsprogs", ["-m", "reflink=1"]), "btrfs": ("btrfs-progs", [])}

# From linux/fiemap.h: a file's extents, written to the disk first; each tells its length, and whether it is shared.
FIEMAP, SYNC, LAST, SHARED = 0xC020660B, 1, 0x1, 0x2000
HEAD, EXTENT, AT_ONCE = struct.Struct("=QQLLLL"), struct.Struct("=QQQQQLLLL"), 512

# Each checkpoint's shape, and the bytes of a disk that holds it and its output.
SOURCES: dict[str, tuple[Shape, int]] = {"498 MB": (shape_of(498e6), 1 << 30), "6.2 GB in shards": (XL, 7 << 30)}


@contextmanager
def mounted(folder: Path, kind: str, size: int) -> Iterator[Path]:
    """Give a new file system in an image of so many bytes, which take room as they are written.

    Raises:
        OSError: It cannot be made or mounted here; the message says why.
    """
    package, options = KINDS[kind]
    if shutil.which(f"mkfs.{kind}") is None:
        raise OSError(f"the Debian package {package} is not installed")
    image, disk = folder / f"{kind}.image", folder / kind
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([f"mkfs.{kind}", "-q", *options, image], check=True, capture_output=True)
    try:
        if os.geteuid() != 0 or subprocess.run(["mount", "-o", "loop", image, disk], check=False).returncode:
            raise OSError("mounting an image needs root and a loop device")
        try:
            yield disk
        finally:
            subprocess.run(["umount", disk], check=True)
    finally:
        image.unlink()
        disk.rmdir()


def unshared(path: Path) -> int:
    """Bytes of the disk that a file, or every file below a folder, shares with no other."""
    files = (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else (path,)
    return sum(length for file in files for length, flags in _extents(file) if not flags & SHARED)


def _extents(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the length and the flags of each extent of a file; holes are none."""
    start, flags = 0, 0
    with path.open("rb") as file:
        while not flags & LAST:
            asked = HEAD.pack(start, (1 << 64) - 1 - start, SYNC, 0, AT_ONCE, 0)
            told = array.array("B", asked + bytes(EXTENT.size * AT_ONCE))
            fcntl.ioctl(file, FIEMAP, told, True)
            found = HEAD.unpack_from(told)[3]
            if not found:
                return
            for number in range(found):
                begin, _, length, _, _, flags, *_ = EXTENT.unpack_from(told, HEAD.size + number * EXTENT.size)
                yield length, flags
            start = begin + length


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield, of each disk and size, the seconds of a resize beside start-up, and the blocks that it takes.

    Raises:
        SystemExit: A disk could not be made or mounted; all others are measured first.
    """
    missed = []
    for kind in KINDS:
        for size, (shape, room) in SOURCES.items():
            try:
                with mounted(folder, kind, room) as disk:
                    apart(write, disk / "source", shape)
                    yield from _compared(disk, f"`resize`, {size}, on {kind}", shape, rounds)
            except OSError as error:
                missed.append(f"{kind}, {size}: not measured: {error}")
    if missed:
        raise SystemExit("\n".join(missed))


def _compared(disk: Path, what: str, shape: Shape, rounds: int) -> Iterator[Row]:
    source, output = disk / "source", disk / "out"
    start = f'python -c "{START_WITH_NUMPY}"'
    routes = {"ctxextend": lambda: _resize(source, output), start: measured(python(START_WITH_NUMPY))}
    ours, started = alternate(routes, rounds, cleared(output)).values()
    yield Row(f"{what}, time", "s", seconds(ours), f"`{start}`", seconds(started), more(0.4))
    taken, shards = [cost.counted["new MB"] for cost in ours], len(list(source.glob("*.safetensors")))
    most = within(round(4 * shape.width * POSITIONS / 1e6 + shards, 1))
    yield Row(f"{what}, new blocks", "MB", taken, "the new table and 1 MB a shard", (), most)


def _resize(source: Path, output: Path) -> Cost:
    cost = measure([*PROGRAM, "resize", str(source), "--to", str(POSITIONS), "-o", str(output), "--quiet"])
    new = unshared(output) / 1e6
    if not new:
        raise SystemExit(f"the disk tells of no block of {output} that is its own, and its table must have some")
    return Cost(cost.seconds, cost.megabytes, {"new MB": new})


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
