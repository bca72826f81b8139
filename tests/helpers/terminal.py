"""Runs commands on a pseudo-terminal."""

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def on_terminal(command: Sequence[str], environment: Mapping[str, str], typed: bytes = b"") -> str:
    """Run a command on a new pseudo-terminal, type some input, and return its output with Unix line
    endings.
    """
    master, slave = pty.openpty()
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment
    ) as process:
        os.close(slave)
        os.write(master, typed)
        output = b"".join(iter(lambda: _read(master), b""))
    os.close(master)
    assert process.returncode == 0, output
    return output.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    """Read output; empty once the last program has exited, where Linux raises EIO."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""
