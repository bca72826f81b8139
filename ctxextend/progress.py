"""Progress callbacks of long operations."""

import time
from collections.abc import Callable
from typing import Protocol

# Seconds before the remaining time is estimated, and the shortest remaining time worth reporting.
ESTIMATE_AFTER, MIN_REPORTED = 5.0, 60.0


class Progress(Protocol):
    """A callback for long operations."""

    def __call__(self, advance: int, total: int, label: str = "") -> None:
        """Advance by some of all `total` units (bytes or tokens); `label` is shown next to the bar."""


def no_progress(advance: int, total: int, label: str = "") -> None:
    """Do nothing."""


def with_estimate(progress: Progress, notify: Callable[[str], None]) -> Progress:
    """Wrap a callback to report the estimated remaining time once, if it is over a minute."""
    # The first step does not count: it includes warm-up, or work done before an interruption.
    started, first, done, is_reported = 0.0, 0, 0, False

    def update(advance: int, total: int, label: str = "") -> None:
        nonlocal started, first, done, is_reported
        progress(advance, total, label)
        done += advance
        if not started:
            started, first = time.perf_counter(), advance
        elif not is_reported and done > first and (seconds := time.perf_counter() - started) >= ESTIMATE_AFTER:
            remaining = seconds / (done - first) * (total - done)
            if is_reported := remaining > MIN_REPORTED:
                hours, minutes = divmod(round(remaining / 60), 60)
                notify(f"About {f'{hours} h ' if hours else ''}{minutes} min left.")

    return update
