"""System calls of a command watched, failed and cut short by strace."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.faults.nursery import Ended, Nursery

# Every system call by which a program changes files, folders and their names, and waits for the disk.
CHANGING = (
    *("open", "openat", "creat", "write", "pwrite64", "writev", "copy_file_range", "sendfile", "ftruncate"),
    *("fallocate", "fsync", "fdatasync", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "linkat"),
    *("symlink", "unlink", "unlinkat", "rmdir", "chmod", "fchmod", "fchmodat", "utimensat", "flock", "ioctl"),
)
# What is logged of a signal that was sent, but not of the stop in which tracing began.
STOPPED = "SIGSTOP {"
# Whether every fault is tried, as `make test-slow` does, or a sample.
is_full_sweep = False
# How often each fault was injected, such as ``signal=KILL``.
injected: Counter[str] = Counter()
LINE = re.compile(r"(?:\d+ +)?(?P<name>\w+)\((?P<given>.*)")


@dataclass(frozen=True)
class Call:
    """The k-th system call of its name that a command makes, from 1 on, and what is given to it."""

    name: str
    k: int
    given: str


@cache
def why_not() -> str | None:
    """Why nothing can be traced here, or None."""
    if shutil.which("strace") is None:
        return "the Debian package strace is not installed"
    tried = subprocess.run(["strace", "-f", "-e", "trace=none", "true"], capture_output=True, text=True, check=False)
    return f"strace cannot trace here: {tried.stderr.strip()}" if tried.returncode else None


needs_strace = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def some(calls: list[Call], first: int, step: int) -> list[Call]:
    """Each step-th of the calls, from one on; all of them where there is time."""
    return calls if is_full_sweep else calls[first::step]


def calls(
    nursery: Nursery, *arguments: object, injections: Sequence[str] = (), of: Sequence[str] = CHANGING
) -> list[Call]:
    """Run a command to its end, which must be a good one; return its calls that change something, in order.

    For the arguments see `traced`.
    """
    ended, log = traced(nursery, arguments, *injections, of=of)
    assert ended.code == 0, ended.stderr
    counts: Counter[str] = Counter()
    found = []
    for line in filter(None, map(LINE.match, log.splitlines())):
        counts[line["name"]] += 1
        found.append(Call(line["name"], counts[line["name"]], line["given"]))
    return [call for call in found if _changes(call)]


def _changes(call: Call) -> bool:
    if call.name in ("open", "openat"):
        return any(flag in call.given for flag in ("O_CREAT", "O_WRONLY", "O_RDWR"))
    return call.name != "ioctl" or "FICLONE" in call.given


def traced(
    nursery: Nursery,
    arguments: Sequence[object],
    *injections: str,
    of: Sequence[str] = CHANGING,
    meanwhile: Callable[[], None] | None = None,
) -> tuple[Ended, str]:
    """Run a command under strace; return its end, and the log of its calls.

    Args:
        nursery: Where it is forked from.
        arguments: The command's.
        injections: As ``strace -e inject=`` takes them, such as ``write:error=ENOSPC:when=3``.
        of: The names of the calls that are traced.
        meanwhile: What is done while an injection stops it, before it goes on.
    """
    process = nursery.begin(*arguments, stopped=True)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        tracer = attach(process, log, *injections, of=of)
        if meanwhile is not None:
            while STOPPED not in log.read_text():
                assert tracer.poll() is None, injections
                time.sleep(0.001)
            meanwhile()
            os.kill(process, signal.SIGCONT)
        ended = nursery.end(process)
        tracer.wait()
        return ended, log.read_text()


def attach(process: int, log: Path, *injections: str, of: Sequence[str] = CHANGING) -> "subprocess.Popen[str]":
    """Trace a process that begins stopped, and let it go on."""
    wait_for_stop(process)
    injected.update(injection.split(":")[1] for injection in injections)
    asked = [part for injection in injections for part in ("-e", f"inject={injection}")]
    watched = ["-e", f"trace={','.join(of)}", "-e", "signal=STOP"]
    tracer = subprocess.Popen(
        ["strace", "-f", "-y", "-o", log, *watched, *asked, "-p", str(process)], stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    assert "attached" in said, said
    os.kill(process, signal.SIGCONT)
    return tracer


def wait_for_stop(process: int) -> None:
    """Wait until a process that stops itself has done so."""
    while Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.001)
