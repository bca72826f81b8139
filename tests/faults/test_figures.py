"""Atomic writes of single files: a failing or killed run leaves a complete file, old or new.

All figures and reports are written with `save`, which these tests call with constant bytes.
"""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxextend.errors import OutputError
from ctxextend.report.figures import save
from tests.helpers.fork_server import ForkServer, open_fork_server
from tests.helpers.outcomes import leftovers
from tests.helpers.tracing import Call, calls, needs_strace, traced

pytestmark = needs_strace

FIGURE = Path("norms.svg")
NEW = b"<svg>" * 1000


def main() -> None:
    """Write the file in the first argument; exit with 1 if that fails, and with 143 on SIGTERM."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        save(Path(sys.argv[1]), NEW)
    except OutputError as error:
        sys.stderr.write(f"Error: {error}")
        sys.exit(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server that has already written a figure."""
    first = tmp_path_factory.mktemp("server") / FIGURE
    with open_fork_server(first, main=f"{__name__}:main") as server:
        yield server


def faulty_runs(server: ForkServer, fault: str) -> Iterator[tuple[Call, int, str]]:
    """Replace a figure with a fault at each system call; yield the call, exit code and stderr."""
    for call in calls(server, FIGURE):
        for path in leftovers():
            Path(path).unlink()
        FIGURE.write_bytes(b"old")
        injection = f"{call.name}:{fault}:when={call.k}"
        done, _ = traced(server, (FIGURE,), injection)
        yield call, done.code, done.stderr


@pytest.mark.slow
def test_save_killed_at_any_call_leaves_the_old_or_the_new_file(server: ForkServer) -> None:
    outcomes = []
    for call, code, _ in faulty_runs(server, "signal=KILL"):
        assert code == -9, call
        outcomes.append(FIGURE.read_bytes())
        assert server.run(FIGURE).code == 0, call
        assert FIGURE.read_bytes() == NEW, call
        assert leftovers() == [], call
    assert set(outcomes) == {b"old", NEW}


@pytest.mark.parametrize(
    "fault", ["error=ENOSPC", "error=EIO", "error=EDQUOT", "error=EROFS", "signal=TERM"]
)
def test_save_failing_at_any_call_leaves_the_old_or_the_new_file(
    fault: str, server: ForkServer
) -> None:
    codes = []
    for call, code, stderr in faulty_runs(server, fault):
        assert "Traceback" not in stderr, (call, stderr)
        assert leftovers() == [], call
        expected = (NEW,) if code == 0 else (b"old", NEW)
        assert FIGURE.read_bytes() in expected, call
        failed = code == 1
        has_message = "Error: norms.svg could not be written" in stderr
        assert has_message == failed, (call, stderr)
        is_full = fault in ("error=ENOSPC", "error=EDQUOT")
        has_space = re.search(r"It needs [\d,]+ bytes, and .* has [\d,]+ free", stderr) is not None
        assert has_space == (failed and is_full), (call, stderr)
        codes.append(code)
    expected_codes = {0, 1} if fault.startswith("error") else {143}
    assert set(codes) == expected_codes


def test_save_removes_only_leftovers_of_the_same_file(server: ForkServer) -> None:
    Path(".norms.svg.ctxextend-00c0ffee").mkdir()
    Path(".other.svg.ctxextend-00c0ffee").mkdir()
    assert server.run(FIGURE).code == 0
    assert leftovers() == [".other.svg.ctxextend-00c0ffee"]
