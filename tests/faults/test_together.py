"""Ten runs that write the same output at once."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.faults.nursery import Ended, Nursery
from tests.faults.outcomes import NO_EXCHANGE, OUTPUT, RESIZE, found, leftovers, made, put_old
from tests.faults.tracing import attach, needs_strace, wait_for_stop

RUNS = 10


def run_together(nursery: Nursery, *arguments: object) -> list[Ended]:
    """Run a command ten times at once."""
    processes = [nursery.begin(*arguments, stopped=True) for _ in range(RUNS)]
    for process in processes:
        wait_for_stop(process)
    for process in processes:
        os.kill(process, signal.SIGCONT)
    return [nursery.end(process) for process in processes]


@pytest.mark.parametrize("attempt", range(3))
def test_resize_ten_times_at_once_has_one_winner(attempt: int, resizing: Nursery, source: Path) -> None:
    new = made(resizing, 32)
    ended = run_together(resizing, *RESIZE)
    assert sorted(one.code for one in ended) == [0] + [1] * (RUNS - 1)
    for one in ended:
        if one.code:
            assert f"{OUTPUT} exists" in one.stderr or "Another program created it in the meantime" in one.stderr, one
    assert (found(), leftovers()) == (new, [])


def test_resize_force_ten_times_at_once_leaves_one_whole_output(resizing: Nursery, source: Path) -> None:
    new, _ = made(resizing, 32), made(resizing, 20)
    put_old()
    assert [one.code for one in run_together(resizing, *RESIZE, "--force")] == [0] * RUNS
    assert (found(), leftovers()) == (new, [])


@needs_strace
def test_resize_force_ten_times_at_once_without_exchange_leaves_one_whole_output(
    resizing: Nursery, source: Path
) -> None:
    new, _ = made(resizing, 32), made(resizing, 20)
    put_old()
    processes = [resizing.begin(*RESIZE, "--force", stopped=True) for _ in range(RUNS)]
    with tempfile.TemporaryDirectory() as folder:
        tracers = [attach(process, Path(folder) / str(process), NO_EXCHANGE) for process in processes]
        ended = [resizing.end(process) for process in processes]
        for tracer in tracers:
            tracer.wait()
    assert 0 in [one.code for one in ended]
    for one in ended:
        assert one.code == 0 or "Error: " in one.stderr, one
        assert "Traceback" not in one.stderr, one
    assert (found(), leftovers()) == (new, [])
