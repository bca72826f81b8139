"""Ten concurrent runs that write the same output."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.helpers.fork_server import Completed, ForkServer
from tests.helpers.outcomes import (
    NO_EXCHANGE,
    OUTPUT,
    RESIZE,
    expected_output,
    leftovers,
    read_output,
    restore_old_output,
)
from tests.helpers.tracing import attach, needs_strace, wait_for_stop

RUNS = 10


def run_concurrently(server: ForkServer, *arguments: object) -> list[Completed]:
    """Run a command in ten concurrent processes."""
    processes = [server.start(*arguments, stopped=True) for _ in range(RUNS)]
    for process in processes:
        wait_for_stop(process)
    for process in processes:
        os.kill(process, signal.SIGCONT)
    return [server.wait(process) for process in processes]


@pytest.mark.parametrize("attempt", range(3))
def test_resize_of_concurrent_runs_writes_one_output(
    attempt: int, server: ForkServer, source: Path
) -> None:
    new = expected_output(server, 32)
    done = run_concurrently(server, *RESIZE)
    codes = sorted(run.code for run in done)
    assert codes == [0] + [1] * (RUNS - 1)
    for run in done:
        if run.code:
            existed = f"{OUTPUT} exists" in run.stderr
            appeared = "Another program created it in the meantime" in run.stderr
            assert existed or appeared, run
    assert read_output() == new
    assert leftovers() == []


def test_resize_force_of_concurrent_runs_leaves_one_complete_output(
    server: ForkServer, source: Path
) -> None:
    new = expected_output(server, 32)
    expected_output(server, 20)
    restore_old_output()
    codes = [run.code for run in run_concurrently(server, *RESIZE, "--force")]
    assert codes == [0] * RUNS
    assert read_output() == new
    assert leftovers() == []


@needs_strace
def test_resize_force_of_concurrent_runs_without_exchange_leaves_one_complete_output(
    server: ForkServer, source: Path
) -> None:
    new = expected_output(server, 32)
    expected_output(server, 20)
    restore_old_output()
    processes = [server.start(*RESIZE, "--force", stopped=True) for _ in range(RUNS)]
    with tempfile.TemporaryDirectory() as folder:
        tracers = [
            attach(process, Path(folder) / str(process), NO_EXCHANGE) for process in processes
        ]
        done = [server.wait(process) for process in processes]
        for tracer in tracers:
            tracer.wait()
    codes = [run.code for run in done]
    assert 0 in codes
    for run in done:
        assert run.code == 0 or "Error: " in run.stderr, run
        assert "Traceback" not in run.stderr, run
    assert read_output() == new
    assert leftovers() == []
