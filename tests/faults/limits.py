"""How long a hostile file may keep us."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["within"]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail where a block takes longer, also where it waits for something that never comes."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"still not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
