"""Commands in processes of their own, each forked from one that has imported what they need.

A command begins in some milliseconds so, which is what makes it possible to run it once for every system call that it
makes. `python -m tests.faults.nursery FOLDER MAIN ARGUMENT...` runs a function, named as an entry point is, with these
arguments, and then serves; what the commands say lies in the folder until they are asked for.
"""

import contextlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import invalidate_caches
from importlib.metadata import MetadataPathFinder
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
# Seconds after which a command is taken to hang.
PATIENCE = 60.0
MAIN = "ctxextend.cli.app:main"


@dataclass(frozen=True)
class Ended:
    """What became of a command: its exit code, negative where a signal killed it, and what it said."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Nursery:
    """The process that others are forked from."""

    server: "subprocess.Popen[str]"
    folder: Path

    def begin(self, *arguments: object, stopped: bool = False) -> int:
        """Start a command in the current folder, stopped before its first step if so asked; return its process."""
        return self._ask("fork", [*map(str, arguments)], str(Path.cwd()), stopped)

    def end(self, process: int) -> Ended:
        """Wait for a command's end."""
        code = self._ask("wait", process)
        out, err = (self.folder / f"{process}.{name}" for name in ("out", "err"))
        ended = Ended(code, out.read_text(), err.read_text())
        out.unlink()
        err.unlink()
        return ended

    def run(self, *arguments: object) -> Ended:
        """Run a command in the current folder to its end."""
        return self.end(self.begin(*arguments))

    def _ask(self, *request: Any) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(f"{json.dumps(request)}\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())


@contextlib.contextmanager
def open_nursery(*arguments: object, main: str = MAIN) -> Iterator[Nursery]:
    """Give a process that has run a command once, and forks others from there."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.faults.nursery", folder, main, *map(str, arguments)]
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                yield Nursery(server, Path(folder))
            finally:
                server.kill()


def _fork(folder: str, main: str, arguments: list[str], where: str, stopped: bool) -> int:
    process = os.fork()
    if process:
        return process
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        said = os.open(f"{folder}/{os.getpid()}.{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        os.dup2(said, number)
        os.close(said)
    os.chdir(where)
    sys.argv[1:] = arguments
    if stopped:
        os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(_run(main))


def _run(main: str) -> int:
    try:
        pkgutil.resolve_name(main)()
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
    return 0


def _wait(process: int) -> int:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise TimeoutError(f"{process} hangs")


if __name__ == "__main__":
    stdout = os.dup(1)
    os.dup2(2, 1)  # what the first command prints is no answer
    folder, main = sys.argv.pop(1), sys.argv.pop(1)
    if _run(main):
        sys.exit("the first command failed")
    sys.stdout.flush()
    os.dup2(stdout, 1)
    # Each process then lists the folders that it imports from, whatever is written into them meanwhile: all make the
    # same calls, and the k-th of one is the k-th of all.
    invalidate_caches()
    MetadataPathFinder().invalidate_caches()
    for line in sys.stdin:
        asked, *request = json.loads(line)
        answer = _wait(*request) if asked == "wait" else _fork(folder, main, *request)
        print(answer, flush=True)  # noqa: T201
