"""Trace system calls of a command with strace, and inject errors and signals."""

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

from tests.helpers.fork_server import Completed, ForkServer

# System calls that change files, folders and their names, or wait for the disk.
WRITE_CALLS = (
    *(
        "open",
        "openat",
        "creat",
        "write",
        "pwrite64",
        "writev",
        "copy_file_range",
        "sendfile",
        "ftruncate",
    ),
    *(
        "fallocate",
        "fsync",
        "fdatasync",
        "mkdir",
        "mkdirat",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
    ),
    *(
        "symlink",
        "unlink",
        "unlinkat",
        "rmdir",
        "chmod",
        "fchmod",
        "fchmodat",
        "utimensat",
        "flock",
        "ioctl",
    ),
)
# Logged for an injected SIGSTOP, but not for the stop before tracing.
STOPPED = "SIGSTOP {"
# Whether to try every fault, as `make test-slow` does, or a sample.
is_full_sweep = False
LINE = re.compile(r"(?:\d+ +)?(?P<name>\w+)\((?P<arguments>.*)")


@dataclass(frozen=True)
class Call:
    """The k-th system call of a name in a command, counted from 1, with arguments as in strace."""

    name: str
    k: int
    arguments: str


@cache
def strace_problem() -> str | None:
    """Return why strace cannot be used on this machine; None if it can."""
    if shutil.which("strace") is None:
        return "the Debian package strace is not installed"
    trial = subprocess.run(
        ["strace", "-f", "-e", "trace=none", "true"], capture_output=True, text=True, check=False
    )
    return f"strace does not work here: {trial.stderr.strip()}" if trial.returncode else None


needs_strace = pytest.mark.skipif(strace_problem() is not None, reason=str(strace_problem()))


def sample(calls: list[Call], first: int, step: int) -> list[Call]:
    """Return every `step`-th call from index `first`, or all calls in a full sweep."""
    return calls if is_full_sweep else calls[first::step]


def calls(
    server: ForkServer,
    *arguments: object,
    injections: Sequence[str] = (),
    names: Sequence[str] = WRITE_CALLS,
) -> list[Call]:
    """Run a command, which must succeed; return its calls that change something (`traced`)."""
    done, log = traced(server, arguments, *injections, names=names)
    assert done.code == 0, done.stderr
    counts: Counter[str] = Counter()
    result = []
    for line in filter(None, map(LINE.match, log.splitlines())):
        counts[line["name"]] += 1
        result.append(Call(line["name"], counts[line["name"]], line["arguments"]))
    return [call for call in result if _changes(call)]


def _changes(call: Call) -> bool:
    if call.name in ("open", "openat"):
        return any(flag in call.arguments for flag in ("O_CREAT", "O_WRONLY", "O_RDWR"))
    return call.name != "ioctl" or "FICLONE" in call.arguments


def traced(
    server: ForkServer,
    arguments: Sequence[object],
    *injections: str,
    names: Sequence[str] = WRITE_CALLS,
    while_stopped: Callable[[], None] | None = None,
) -> tuple[Completed, str]:
    """Run a command with strace; return its result and the log of its calls.

    Args:
        server: Starts the process.
        arguments: Arguments of the command.
        injections: Values of ``strace -e inject=``, such as ``write:error=ENOSPC:when=3``.
        names: Names of the calls to trace.
        while_stopped: Called while an injected SIGSTOP stops the process, which continues
            afterwards.
    """
    process = server.start(*arguments, stopped=True)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        tracer = attach(process, log, *injections, names=names)
        if while_stopped is not None:
            while STOPPED not in log.read_text():
                assert tracer.poll() is None, injections
                time.sleep(0.001)
            while_stopped()
            os.kill(process, signal.SIGCONT)
        done = server.wait(process)
        tracer.wait()
        return done, log.read_text()


def attach(
    process: int, log: Path, *injections: str, names: Sequence[str] = WRITE_CALLS
) -> "subprocess.Popen[str]":
    """Trace a process that was started stopped, and continue it."""
    wait_for_stop(process)
    inject = [part for injection in injections for part in ("-e", f"inject={injection}")]
    trace = ["-e", f"trace={','.join(names)}", "-e", "signal=STOP"]
    tracer = subprocess.Popen(
        ["strace", "-f", "-y", "-o", log, *trace, *inject, "-p", str(process)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    message = tracer.stderr.readline()
    assert "attached" in message, message
    os.kill(process, signal.SIGCONT)
    return tracer


def wait_for_stop(process: int) -> None:
    """Wait until a process has stopped itself."""
    while Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.001)
