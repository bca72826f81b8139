"""Time limits for hostile files, and how many of them are tried."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.helpers import tracing

__all__ = ["examples", "time_limit"]

# Busy machines take several times as long; a hang, or quadratic time, takes longer still.
MARGIN = 4
# Wall-clock limit in seconds, for a block that waits without using the CPU.
TIMEOUT = 60


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError if a block uses much more CPU time than this, or blocks for a minute."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"still not done after {seconds} s")

    timers = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
    before = {number: signal.signal(number, stop) for number in timers.values()}
    signal.setitimer(signal.ITIMER_PROF, MARGIN * seconds)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def examples(count: int) -> int:
    """Return how many examples to draw: `count`, or 20 times as many in a full sweep."""
    return 20 * count if tracing.is_full_sweep else count
