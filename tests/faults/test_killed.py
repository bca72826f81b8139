"""`resize` stopped before every system call that changes a file: what was there is there, and the next run mends all.

What is killed before a call has made all that come before it, so that this is also after each of them; after the last,
a command comes to its end by itself.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.nursery import Nursery
from tests.faults.outcomes import NO_EXCHANGE, OUTPUT, RESIZE, found, last_of, leftovers, made, put_none, put_old, stop
from tests.faults.tracing import calls, needs_strace, some
from tests.pico import contents

pytestmark = [needs_strace, pytest.mark.usefixtures("sweep")]


def test_resize_killed_anywhere_leaves_nothing_or_all(resizing: Nursery, source: Path) -> None:
    before, new = contents(source), made(resizing, 32)
    found_calls = calls(resizing, *RESIZE)
    assert len(found_calls) > 30
    outcomes = []
    for call in [*some(found_calls[:-2], 0, 3), *found_calls[-2:]]:
        put_none()
        assert stop(resizing, call, RESIZE, "KILL").code == -9, call
        assert contents(source) == before, call
        assert found() in (None, new), call
        outcomes.append(found() is None)
        again = resizing.run(*RESIZE, *(["--force"] if OUTPUT.exists() else []))
        assert (again.code, found(), leftovers()) == (0, new, []), (call, again)
    assert len(set(outcomes)) == 2


@pytest.mark.parametrize("injections", [(), (NO_EXCHANGE,)], ids=["exchanged", "two renames"])
def test_resize_force_killed_anywhere_leaves_the_old_or_the_new(
    injections: tuple[str, ...], resizing: Nursery, source: Path
) -> None:
    before, new, old = contents(source), made(resizing, 32), made(resizing, 20)
    put_old()
    outcomes = []
    for call in last_of(calls(resizing, *RESIZE, "--force", injections=injections)):
        put_old()
        stop(resizing, call, (*RESIZE, "--force"), "KILL", *injections)
        outcomes.append(found())
        assert contents(source) == before, call
        again = resizing.run(*RESIZE, "--force")
        assert (again.code, found(), leftovers()) == (0, new, []), (call, again)
    assert all(outcome in (None, old, new) for outcome in outcomes)
    assert outcomes.count(None) == (1 if injections else 0)
    assert old in outcomes
    assert new in outcomes


# They take the way of an error, which is tried at every call.
@pytest.mark.parametrize(("signal", "code", "step"), [("TERM", 143, 2), ("INT", 130, 4)])
def test_resize_stopped_anywhere_leaves_nothing_behind(
    signal: str, code: int, step: int, resizing: Nursery, source: Path
) -> None:
    before, new = contents(source), made(resizing, 32)
    outcomes = []
    for call in some(calls(resizing, *RESIZE), 1, step):
        put_none()
        ended = stop(resizing, call, RESIZE, signal)
        assert ended.code == code, (call, ended)
        assert "Traceback" not in ended.stderr
        assert contents(source) == before, call
        assert (found() in (None, new), leftovers()) == (True, []), call
        outcomes.append(found() is None)
        assert OUTPUT.parent.exists() == OUTPUT.exists(), call
    assert len(set(outcomes)) == 2


@pytest.mark.parametrize("injections", [(), (NO_EXCHANGE,)], ids=["exchanged", "two renames"])
def test_resize_force_stopped_anywhere_leaves_the_old_or_the_new(
    injections: tuple[str, ...], resizing: Nursery, source: Path
) -> None:
    new, old = made(resizing, 32), made(resizing, 20)
    put_old()
    for call in some(last_of(calls(resizing, *RESIZE, "--force", injections=injections)), 0, 2):
        put_old()
        ended = stop(resizing, call, (*RESIZE, "--force"), "TERM", *injections)
        assert ended.code == 143, (call, ended)
        assert (found() in (old, new), leftovers()) == (True, []), call


@pytest.mark.parametrize("name", ["fsync", "rename"])
def test_resize_killed_as_users_start_it_leaves_nothing(name: str, source: Path) -> None:
    command = [sys.executable, "-m", "ctxextend", *map(str, RESIZE)]
    kill = ["strace", "-f", "-o", "log", "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when=1"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    assert subprocess.run([*kill, *command], env=environment, check=False, capture_output=True).returncode == -9
    assert found() is None
    assert leftovers() != []
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert (found() is not None, leftovers()) == (True, [])
