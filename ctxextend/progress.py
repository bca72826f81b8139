"""Progress callbacks of long operations."""

from typing import Protocol


class Progress(Protocol):
    """A callback for long operations."""

    def __call__(self, advance: int, total: int, label: str = "") -> None:
        """Advance by some of all `total` units (bytes or tokens); `label` is shown next to
        the bar.
        """


def no_progress(advance: int, total: int, label: str = "") -> None:
    """Do nothing."""
