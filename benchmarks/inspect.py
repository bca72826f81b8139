"""`ctxextend inspect` and `resize --dry-run` on a sharded GPT-2-XL-shaped checkpoint of 6.2 GB.

Each runs as a whole process, in turn with an interpreter that imports what a start takes. Then each runs once under
strace, which counts the bytes that are read of the checkpoint's files: headers, table and small files, and no more.

    python -m benchmarks.inspect [--rounds 9] [--folder DIR]
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measuring import (
    ENVIRONMENT,
    PROGRAM,
    START_WITH_NUMPY,
    Row,
    alternate,
    apart,
    at_most,
    measured,
    megabytes,
    more,
    python,
    seconds,
    within,
)
from benchmarks.sources import TABLE, XL, write
from benchmarks.table import run_alone

__all__ = ["bytes_read", "rows"]

ROUNDS = 9

BLOCK = 4096

# Every call that brings a file's bytes into a process, or to another file.
READING = "read,pread64,readv,preadv,preadv2,mmap,copy_file_range,sendfile,splice"
READ = re.compile(r"^(?:p?readv?2?|pread64|copy_file_range|sendfile|splice)\(.* = (\d+)$")
MAPPED = re.compile(r"^mmap\([^,]+, (\d+), .* = 0x")


def bytes_read(command: Sequence[str], folder: Path) -> int:
    """Run a command under strace; return how many bytes it read of the files in a folder, a mapped one's counted whole.

    Raises:
        SystemExit: There is no strace, or the command failed.
    """
    if shutil.which("strace") is None:
        raise SystemExit("strace is missing: apt install strace")
    with tempfile.TemporaryDirectory() as traces:
        # A file for each thread, whose lines are whole; descriptors with their paths.
        strace = ["strace", "-ff", "-qq", "-y", "-s", "0", "-e", f"trace={READING}", "-o", f"{traces}/trace"]
        ended = subprocess.run([*strace, *command], env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=False)
        if ended.returncode:
            raise SystemExit(f"failed: {' '.join(command)[:200]}")
        lines = [line for trace in Path(traces).iterdir() for line in trace.read_text().splitlines()]
    found = [READ.match(line) or MAPPED.match(line) for line in lines if f"<{folder.resolve()}/" in line]
    read = sum(int(match[1]) for match in found if match)
    if not read:
        raise SystemExit(f"strace told of no read below {folder}: its lines are not as expected")
    return read


def bytes_allowed(folder: Path) -> int:
    """Headers, table and every file that holds no weights; headers in whole blocks, of which disks read no less."""
    weights = list(folder.glob("*.safetensors"))
    others = sum(file.stat().st_size for file in folder.iterdir() if file not in weights)
    return XL.sizes()[TABLE] + others + sum(-(-header_size(file) // BLOCK) * BLOCK for file in weights)


def header_size(file: Path) -> int:
    """Bytes of a safetensors file in front of its first tensor."""
    with file.open("rb") as opened:
        return 8 + int.from_bytes(opened.read(8), "little")


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield time, memory and bytes read of each command."""
    source = folder / "xl"
    apart(write, source)
    dry_run = [*PROGRAM, "resize", str(source), "--to", "2048", "-o", str(folder / "out"), "--dry-run"]
    commands = {"inspect": [*PROGRAM, "inspect", str(source)], "resize --dry-run": dry_run}
    peer = f'python -c "{START_WITH_NUMPY}"'
    routes = {name: measured(route) for name, route in {peer: python(START_WITH_NUMPY), **commands}.items()}
    costs = alternate(routes, rounds)
    for name, command in commands.items():
        what = f"`{name}`, 6.2 GB"
        yield Row(f"{what}, time", "s", seconds(costs[name]), f"`{peer}`", seconds(costs[peer]), more(0.25))
        yield Row(f"{what}, peak memory", "MB", megabytes(costs[name]), "", (), within(90))
        read, allowed = (count / 1e3 for count in (bytes_read(command, source), bytes_allowed(source)))
        yield Row(f"{what}, bytes read", "kB", [read], "headers, table, small files", [allowed], at_most(1))


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
