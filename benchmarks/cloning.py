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
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measuring import Cost, Row, alternate, measure, more, within
from benchmarks.table import run_alone

ROUNDS = 5
GIB = 1 << 30
POSITIONS = 4096
START = "import typer, rich.console, numpy"

# Each kind's package in Debian, and what its mkfs is told.
KINDS = {"xfs": ("xfsprogs", ["-m", "reflink=1"]), "btrfs": ("btrfs-progs", [])}

# From linux/fiemap.h: a file's extents, written to the disk first; each tells its length, and whether it is shared.
FIEMAP, SYNC, LAST, SHARED = 0xC020660B, 1, 0x1, 0x2000
HEAD, EXTENT, AT_ONCE = struct.Struct("=QQLLLL"), struct.Struct("=QQQQQLLLL"), 512

SMALL = """
import sys
from transformers import GPT2Config, GPT2LMHeadModel
GPT2LMHeadModel(GPT2Config()).save_pretrained(sys.argv[1])
"""
LARGE = "import sys; from pathlib import Path; from benchmarks.inspect import write; write(Path(sys.argv[1]))"
# What each is made by, the width of its table, and the room of a disk for it.
SOURCES = {"498 MB": (SMALL, 768, 1 * GIB), "6 GB in shards": (LARGE, 1600, 7 * GIB)}


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
    """Yield, of each disk and size, the seconds of a resize beside start-up, and the blocks that it takes."""
    for kind in KINDS:
        for name, (maker, width, room) in SOURCES.items():
            try:
                with mounted(folder, kind, room) as disk:
                    subprocess.run([sys.executable, "-c", maker, disk / "source"], check=True, capture_output=True)
                    yield from _measured(disk, f"`resize`, {name}, on {kind}", width, rounds)
            except OSError as error:
                print(f"{kind}, {name}: not measured: {error}", file=sys.stderr)


def _measured(disk: Path, said: str, width: int, rounds: int) -> Iterator[Row]:
    source, output = disk / "source", disk / "out"
    shards = len(list(source.glob("*.safetensors")))
    command = [sys.executable, "-m", "ctxextend", "resize", str(source), "--to", str(POSITIONS), "-o", str(output)]
    start = f"python -c '{START}'"
    routes: dict[str, Callable[[], Cost]] = {
        "ours": lambda: _taken(measure([*command, "--quiet"]), output),
        start: lambda: measure([sys.executable, "-c", START]),
    }
    found = alternate(routes, rounds, before=lambda: _clear(output))
    seconds = {name: [cost.seconds for cost in costs] for name, costs in found.items()}
    yield Row(said, "s", seconds["ours"], start, seconds[start], more(0.4))
    taken = [cost.counted["MB unshared"] for cost in found["ours"]]
    table = 4 * width * POSITIONS / 1e6
    yield Row(f"{said}: new blocks", "MB", taken, "the table and 1 MB a shard", [], within(round(table + shards, 1)))


def _clear(output: Path) -> None:
    """Delete the last output, and wait for the disk: what a source's writer left in memory is no part of a resize."""
    shutil.rmtree(output, ignore_errors=True)
    os.sync()


def _taken(cost: Cost, output: Path) -> Cost:
    return Cost(cost.seconds, cost.megabytes, {"MB unshared": unshared(output) / 1e6})


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
