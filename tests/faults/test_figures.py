"""A single file written by a run that is killed, stopped or fails: the old one whole, or the new one.

All figures and reports are written by `save`, which is called here with bytes that need not be drawn.
"""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxextend.errors import OutputError
from ctxextend.report.figures import save
from tests.faults.nursery import Nursery, open_nursery
from tests.faults.outcomes import leftovers
from tests.faults.tracing import Call, calls, needs_strace, traced

pytestmark = needs_strace

FIGURE = Path("norms.svg")
DRAWN = b"<svg>" * 1000


def main() -> None:
    """Write the file that is named; exit 1 where it cannot be written, and 143 when told to end."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        save(Path(sys.argv[1]), DRAWN)
    except OutputError as error:
        sys.stderr.write(f"Error: {error}")
        sys.exit(1)


@pytest.fixture(scope="module")
def saving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Processes that have written a figure before."""
    first = tmp_path_factory.mktemp("nursery") / FIGURE
    with open_nursery(first, main=f"{__name__}:main") as nursery:
        yield nursery


def faulty_runs(saving: Nursery, fault: str) -> Iterator[tuple[Call, int, str]]:
    """Replace an old figure, with a fault at each call by which it is written; give exit code and stderr."""
    for call in calls(saving, FIGURE):
        for path in leftovers():
            Path(path).unlink()
        FIGURE.write_bytes(b"old")
        ended = traced(saving, (FIGURE,), f"{call.name}:{fault}:when={call.k}")[0]
        yield call, ended.code, ended.stderr


def test_save_killed_anywhere_leaves_the_old_or_the_new(saving: Nursery) -> None:
    outcomes = []
    for call, code, _ in faulty_runs(saving, "signal=KILL"):
        assert code == -9, call
        outcomes.append(FIGURE.read_bytes())
        assert saving.run(FIGURE).code == 0, call
        assert (FIGURE.read_bytes(), leftovers()) == (DRAWN, []), call
    assert set(outcomes) == {b"old", DRAWN}


@pytest.mark.parametrize("fault", ["error=ENOSPC", "error=EIO", "error=EDQUOT", "error=EROFS", "signal=TERM"])
def test_save_that_fails_anywhere_leaves_the_old_or_the_new(fault: str, saving: Nursery) -> None:
    codes = []
    for call, code, said in faulty_runs(saving, fault):
        assert "Traceback" not in said, (call, said)
        assert leftovers() == [], call
        assert FIGURE.read_bytes() in ((DRAWN,) if code == 0 else (b"old", DRAWN)), call
        assert ("Error: norms.svg could not be written" in said) == (code == 1), (call, said)
        is_told = re.search(r"It needs [\d,]+ bytes, and .* has [\d,]+ free", said) is not None
        assert is_told == (code == 1 and fault in ("error=ENOSPC", "error=EDQUOT")), (call, said)
        codes.append(code)
    assert set(codes) == ({0, 1} if fault.startswith("error") else {143})


def test_save_clears_what_a_killed_run_left_and_nothing_else(saving: Nursery) -> None:
    Path(".norms.svg.ctxextend-new-00c0ffee").write_text("half")
    Path(".other.svg.ctxextend-new-00c0ffee").write_text("another's")
    assert saving.run(FIGURE).code == 0
    assert leftovers() == [".other.svg.ctxextend-new-00c0ffee"]
