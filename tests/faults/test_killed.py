"""`resize`, killed or interrupted before every system call that changes a file.

The next run removes all leftovers.

Killing before a call is also killing after the previous one; after the last one, the command ends
by itself.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.fork_server import ForkServer
from tests.helpers.outcomes import (
    NO_EXCHANGE,
    OUTPUT,
    RESIZE,
    expected_output,
    leftovers,
    publishing_calls,
    read_output,
    remove_output,
    restore_old_output,
    run_with_signal,
)
from tests.helpers.pico import contents
from tests.helpers.tracing import calls, needs_strace, sample

pytestmark = [needs_strace, pytest.mark.usefixtures("sweep")]


def test_resize_killed_at_any_call_leaves_no_or_complete_output(
    server: ForkServer, source: Path
) -> None:
    before = contents(source)
    new = expected_output(server, 32)
    write_calls = calls(server, *RESIZE)
    assert len(write_calls) > 30
    outcomes = []
    for call in [*sample(write_calls[:-2], 0, 3), *write_calls[-2:]]:
        remove_output()
        done = run_with_signal(server, call, RESIZE, "KILL")
        assert done.code == -9, call
        assert contents(source) == before, call
        assert read_output() in (None, new), call
        outcomes.append(read_output() is None)
        force = ["--force"] if OUTPUT.exists() else []
        retry = server.run(*RESIZE, *force)
        assert retry.code == 0, (call, retry)
        assert read_output() == new, (call, retry)
        assert leftovers() == [], (call, retry)
    assert len(set(outcomes)) == 2


@pytest.mark.parametrize("injections", [(), (NO_EXCHANGE,)], ids=["exchanged", "two renames"])
def test_resize_force_killed_at_any_call_leaves_the_old_or_the_new_output(
    injections: tuple[str, ...], server: ForkServer, source: Path
) -> None:
    before = contents(source)
    new = expected_output(server, 32)
    old = expected_output(server, 20)
    restore_old_output()
    outcomes = []
    for call in publishing_calls(calls(server, *RESIZE, "--force", injections=injections)):
        restore_old_output()
        arguments = (*RESIZE, "--force")
        run_with_signal(server, call, arguments, "KILL", *injections)
        outcomes.append(read_output())
        assert contents(source) == before, call
        retry = server.run(*RESIZE, "--force")
        assert retry.code == 0, (call, retry)
        assert read_output() == new, (call, retry)
        assert leftovers() == [], (call, retry)
    for outcome in outcomes:
        assert outcome in (None, old, new)
    assert outcomes.count(None) == (1 if injections else 0)
    assert old in outcomes
    assert new in outcomes


# Signals take the code path of errors, which are tested at every call.
@pytest.mark.parametrize(("signal", "code", "step"), [("TERM", 143, 2), ("INT", 130, 4)])
def test_resize_interrupted_at_any_call_leaves_nothing(
    signal: str, code: int, step: int, server: ForkServer, source: Path
) -> None:
    before = contents(source)
    new = expected_output(server, 32)
    outcomes = []
    for call in sample(calls(server, *RESIZE), 1, step):
        remove_output()
        done = run_with_signal(server, call, RESIZE, signal)
        assert done.code == code, (call, done)
        assert "Traceback" not in done.stderr
        assert contents(source) == before, call
        assert read_output() in (None, new), call
        assert leftovers() == [], call
        outcomes.append(read_output() is None)
        assert OUTPUT.parent.exists() == OUTPUT.exists(), call
    assert len(set(outcomes)) == 2


@pytest.mark.parametrize("injections", [(), (NO_EXCHANGE,)], ids=["exchanged", "two renames"])
def test_resize_force_interrupted_at_any_call_leaves_the_old_or_the_new_output(
    injections: tuple[str, ...], server: ForkServer, source: Path
) -> None:
    new = expected_output(server, 32)
    old = expected_output(server, 20)
    restore_old_output()
    for call in sample(
        publishing_calls(calls(server, *RESIZE, "--force", injections=injections)), 0, 2
    ):
        restore_old_output()
        arguments = (*RESIZE, "--force")
        done = run_with_signal(server, call, arguments, "TERM", *injections)
        assert done.code == 143, (call, done)
        assert read_output() in (old, new), call
        assert leftovers() == [], call


@pytest.mark.parametrize("name", ["fsync", "rename"])
def test_resize_killed_in_a_normal_process_leaves_nothing(name: str, source: Path) -> None:
    arguments = map(str, RESIZE)
    command = [sys.executable, "-m", "ctxextend", *arguments]
    kill = [
        "strace",
        "-f",
        "-o",
        "log",
        "-e",
        f"trace={name}",
        "-e",
        f"inject={name}:signal=KILL:when=1",
    ]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*kill, *command], env=environment, check=False, capture_output=True)
    assert done.returncode == -9
    assert read_output() is None
    assert leftovers() != []
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert read_output() is not None
    assert leftovers() == []
