"""How long work reports its progress."""

from typing import Protocol


class Progress(Protocol):
    """Called during long work, with what was done since the last call."""

    def __call__(self, advance: int, total: int, label: str = "") -> None:
        """Take a step of `advance` of all `total` units (bytes, or tokens); `label` is shown beside the bar."""


def no_progress(advance: int, total: int, label: str = "") -> None:
    """Show nothing."""
