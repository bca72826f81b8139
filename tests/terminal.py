"""A terminal for programs that look for one."""

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def on_terminal(command: Sequence[str], environment: Mapping[str, str], typed: bytes = b"") -> str:
    """Return all that a command shows on a terminal of its own, where something is typed; lines end in a newline."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        os.write(ours, typed)
        shown = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    """Return what is there; nothing once the last program has left, which Linux calls an error."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""
