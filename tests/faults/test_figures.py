"""A single file written by a run that is killed, stopped or fails: the old one whole, or the new one.

All figures and pages are written by `save`, which is called here with bytes that need not be drawn.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.nursery import Nursery, open_nursery
from tests.faults.outcomes import leftovers
from tests.faults.saving import DRAWN
from tests.faults.tracing import Call, calls, needs_strace, traced

pytestmark = needs_strace

FIGURE = Path("norms.svg")


@pytest.fixture(scope="module")
def saving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Processes that have written a figure before."""
    first = tmp_path_factory.mktemp("nursery") / FIGURE
    with open_nursery(first, main="tests.faults.saving:main") as nursery:
        yield nursery


@pytest.fixture
def found_calls(saving: Nursery) -> list[Call]:
    """The calls by which the figure is written."""
    return calls(saving, FIGURE)


def put_old() -> None:
    for path in leftovers():
        Path(path).unlink()
    FIGURE.write_bytes(b"old")


def test_save_killed_anywhere_leaves_the_old_or_the_new(saving: Nursery, found_calls: list[Call]) -> None:
    outcomes = []
    for call in found_calls:
        put_old()
        assert traced(saving, (FIGURE,), f"{call.name}:signal=KILL:when={call.k}")[0].code == -9, call
        outcomes.append(FIGURE.read_bytes())
        assert saving.run(FIGURE).code == 0, call
        assert (FIGURE.read_bytes(), leftovers()) == (DRAWN, []), call
    assert set(outcomes) == {b"old", DRAWN}


@pytest.mark.parametrize("fault", ["error=ENOSPC", "error=EIO", "error=EDQUOT", "error=EROFS", "signal=TERM"])
def test_save_that_fails_anywhere_leaves_the_old_or_the_new(
    fault: str, saving: Nursery, found_calls: list[Call]
) -> None:
    codes = []
    for call in found_calls:
        put_old()
        ended = traced(saving, (FIGURE,), f"{call.name}:{fault}:when={call.k}")[0]
        assert "Traceback" not in ended.stderr, (call, ended)
        assert leftovers() == [], call
        assert FIGURE.read_bytes() in ((DRAWN,) if ended.code == 0 else (b"old", DRAWN)), call
        assert ("Error: norms.svg could not be written" in ended.stderr) == (ended.code == 1), (call, ended)
        is_told = re.search(r"It needs [\d,]+ bytes, and .* has [\d,]+ free", ended.stderr) is not None
        assert is_told == (ended.code == 1 and fault in ("error=ENOSPC", "error=EDQUOT")), (call, ended)
        codes.append(ended.code)
    assert set(codes) == ({0, 1} if fault.startswith("error") else {143})


def test_save_clears_what_a_killed_run_left_and_nothing_else(saving: Nursery) -> None:
    Path(".norms.svg.ctxextend-new-00c0ffee").write_text("half")
    Path(".other.svg.ctxextend-new-00c0ffee").write_text("another's")
    assert saving.run(FIGURE).code == 0
    assert leftovers() == [".other.svg.ctxextend-new-00c0ffee"]
