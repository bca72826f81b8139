"""How long work reports its progress."""

import time
from collections.abc import Callable
from typing import Protocol

# Seconds that work is watched before an estimate is made of it, and those that are worth one.
WATCHED, LONG = 5.0, 60.0


class Progress(Protocol):
    """Called during long work, with what was done since the last call."""

    def __call__(self, advance: int, total: int, label: str = "") -> None:
        """Take a step of `advance` of all `total` units (bytes, or tokens); `label` is shown beside the bar."""


def no_progress(advance: int, total: int, label: str = "") -> None:
    """Show nothing."""


def with_estimate(progress: Progress, notify: Callable[[str], None]) -> Progress:
    """Return a progress that also tells once how long the rest takes, from its speed so far, if that is over a minute.

    The first step is not counted: it warms up, or stands for what was done before an interruption.
    """
    began, first, done, is_told = 0.0, 0, 0, False

    def move(advance: int, total: int, label: str = "") -> None:
        nonlocal began, first, done, is_told
        progress(advance, total, label)
        done += advance
        if not began:
            began, first = time.perf_counter(), advance
        elif not is_told and done > first and (seconds := time.perf_counter() - began) >= WATCHED:
            left = seconds / (done - first) * (total - done)
            if is_told := left > LONG:
                hours, minutes = divmod(round(left / 60), 60)
                notify(f"About {f'{hours} h ' if hours else ''}{minutes} min left.")

    return move
