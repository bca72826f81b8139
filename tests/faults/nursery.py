"""Commands in processes of their own, each forked from one that has imported what they need.

A command begins in some milliseconds so, which is what makes it possible to run it once for every system call that it
makes. `python -m tests.faults.nursery MAIN ARGUMENT...` runs a function, named as an entry point is, with these
arguments, and then serves.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
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
        folder, says = str(Path.cwd()), str(self.folder)
        return int(self._ask(arguments=[*map(str, arguments)], folder=folder, says=says, stopped=stopped))

    def end(self, process: int) -> Ended:
        """Wait for a command's end."""
        code = int(self._ask(process=process))
        out, err = (self.folder / f"{process}.{name}" for name in ("out", "err"))
        ended = Ended(code, out.read_text(), err.read_text())
        out.unlink()
        err.unlink()
        return ended

    def run(self, *arguments: object) -> Ended:
        """Run a command in the current folder to its end."""
        return self.end(self.begin(*arguments))

    def _ask(self, **request: Any) -> Any:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(f"{json.dumps(request)}\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())


@contextlib.contextmanager
def open_nursery(*arguments: object, main: str = MAIN) -> Iterator[Nursery]:
    """Give a process that has run a command once, and forks others from there."""
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery", main, *map(str, arguments)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )
        try:
            yield Nursery(server, Path(folder))
        finally:
            server.kill()
            server.wait()


def _serve(main: str) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        answer = _wait(request["process"]) if "process" in request else _fork(main, **request)
        print(json.dumps(answer), flush=True)  # noqa: T201


def _fork(main: str, arguments: list[str], folder: str, says: str, stopped: bool) -> int:
    process = os.fork()
    if process:
        return process
    for number, name in ((1, "out"), (2, "err")):
        said = os.open(f"{says}/{os.getpid()}.{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        os.dup2(said, number)
        os.close(said)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    sys.argv[1:] = arguments
    if stopped:
        os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(_run(main))


def _run(main: str) -> int:
    module, function = main.split(":")
    try:
        getattr(import_module(module), function)()
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
    main = sys.argv.pop(1)
    if _run(main):
        sys.exit("the first command failed")
    sys.stdout.flush()
    os.dup2(stdout, 1)
    # Each process then lists the folders that it imports from, whatever is written into them meanwhile: all make the
    # same calls, and the k-th of one is the k-th of all.
    invalidate_caches()
    MetadataPathFinder().invalidate_caches()
    _serve(main)
