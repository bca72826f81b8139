"""How long a hostile file may keep us, and how many of them are tried."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.faults import tracing

__all__ = ["examples", "within"]

# Machines that are busy take several times as long; what hangs, or grows with the square of a file, takes longer still.
MARGIN = 4
# Seconds of waiting, in which no work is done.
PATIENCE = 60


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail where a block works longer on a machine that does nothing else, or waits for something that never comes."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"still not done after {seconds} s")

    timers = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
    before = {number: signal.signal(number, stop) for number in timers.values()}
    signal.setitimer(signal.ITIMER_PROF, MARGIN * seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def examples(count: int) -> int:
    """Return how many files to draw: so many, and twenty times as many where there is time."""
    return 20 * count if tracing.is_full_sweep else count
