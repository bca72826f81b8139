"""Helpers that compare the output of an interrupted run with the expected ones."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.fork_server import Completed, ForkServer
from tests.helpers.pico import contents
from tests.helpers.tracing import Call, traced

OUTPUT = Path("to/out")
RESIZE = ("resize", "source", "--to", 32, "-o", OUTPUT)
# Behave like a file system that does not support exchanging two names.
NO_EXCHANGE = "renameat2:error=EINVAL"

Files = dict[str, bytes]


def leftovers() -> list[str]:
    """Return all temporary files and folders in the current folder."""
    return [str(path) for path in Path().rglob("*ctxextend-*")]


def read_output() -> Files | None:
    """Return the content of the output; None if it does not exist."""
    return contents(OUTPUT) if OUTPUT.exists() else None


def expected_output(server: ForkServer, to: int) -> Files:
    """Resize without faults, move the output to ``expected-TO``, and return its content."""
    done = server.run("resize", "source", "--to", to, "-o", OUTPUT)
    assert done.code == 0, done.stderr
    OUTPUT.parent.rename(f"expected-{to}")
    return contents(Path(f"expected-{to}") / OUTPUT.name)


def restore_old_output() -> None:
    """Restore the previous output, of 20 positions, and remove all leftovers."""
    shutil.rmtree(OUTPUT.parent, ignore_errors=True)
    shutil.copytree("expected-20", OUTPUT.parent)


def remove_output() -> None:
    """Remove the output and all leftovers."""
    shutil.rmtree(OUTPUT.parent, ignore_errors=True)


def run_with_signal(
    server: ForkServer, call: Call, arguments: Sequence[object], signal: str, *injections: str
) -> Completed:
    """Run a command and send it a signal at one of its system calls."""
    done, log = traced(server, arguments, *injections, f"{call.name}:signal={signal}:when={call.k}")
    assert f"{call.name}({call.arguments[:6]}" in log  # the call was reached
    return done


def publishing_calls(calls: list[Call]) -> list[Call]:
    """Return the calls that rename the output into place, after the last sync of its folder."""
    synced = max(
        i
        for i, call in enumerate(calls)
        if call.name == "fsync" and ".ctxextend-" in call.arguments
    )
    return calls[synced:]
