"""A fork server: runs commands in processes forked from one that has already imported everything.

Commands start within milliseconds, so that tests can run one for each system call that it makes.
`python -m tests.helpers.fork_server FOLDER MAIN ARGUMENT...` calls an entry point with these
arguments once, then serves requests; the output of the commands is in the folder.
"""

import contextlib
import gc
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

from tests.helpers.repository import ROOT

# Seconds before a command counts as hanging.
TIMEOUT = 60.0
MAIN = "ctxextend.__main__:main"


@dataclass(frozen=True)
class Completed:
    """A completed command: its exit code, negative if a signal killed it, and its output."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class ForkServer:
    """The process that commands are forked from."""

    process: "subprocess.Popen[str]"
    folder: Path

    def start(self, *arguments: object, stopped: bool = False) -> int:
        """Start a command in the current folder, stopped if wanted; return its process id."""
        return self._request("fork", [*map(str, arguments)], str(Path.cwd()), stopped)

    def wait(self, pid: int) -> Completed:
        """Wait until a command ends."""
        code = self._request("wait", pid)
        out, err = (self.folder / f"{pid}.{name}" for name in ("out", "err"))
        done = Completed(code, out.read_text(), err.read_text())
        out.unlink()
        err.unlink()
        return done

    def run(self, *arguments: object) -> Completed:
        """Run a command in the current folder and wait until it ends."""
        return self.wait(self.start(*arguments))

    def _request(self, *request: Any) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(request)}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextlib.contextmanager
def open_fork_server(*arguments: object, main: str = MAIN) -> Iterator[ForkServer]:
    """Yield a fork server that has run a command once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "tests.helpers.fork_server",
            folder,
            main,
            *map(str, arguments),
        ]
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield ForkServer(process, Path(folder))
            finally:
                process.kill()


def _fork(folder: str, main: str, arguments: list[str], cwd: str, stopped: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        output = os.open(
            f"{folder}/{os.getpid()}.{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600
        )
        os.dup2(output, number)
        os.close(output)
    os.chdir(cwd)
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


def _wait(pid: int) -> int:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"{pid} hangs")


if __name__ == "__main__":
    stdout = os.dup(1)
    os.dup2(2, 1)  # the first command's output must not be read as a reply
    folder, main = sys.argv.pop(1), sys.argv.pop(1)
    if _run(main):
        sys.exit("the first command failed")
    sys.stdout.flush()
    os.dup2(stdout, 1)
    # Make every process list its import folders again, so that all of them make the same calls in
    # the same order.
    invalidate_caches()
    MetadataPathFinder().invalidate_caches()
    # Commands need not examine the objects of libraries for garbage, nor copy their memory by doing
    # so.
    gc.freeze()
    for line in sys.stdin:
        action, *request = json.loads(line)
        reply = _wait(*request) if action == "wait" else _fork(folder, main, *request)
        print(reply, flush=True)  # noqa: T201
