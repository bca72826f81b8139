"""How long work reports its progress."""

from typing import Protocol


class Progress(Protocol):
    """Called during long work, with what was done since the last call."""

    def __call__(self, advance: int, total: int, label: str = "") -> None:
        """Take a step.

        Args:
            advance: Units (bytes, or tokens) done since the last call.
            total: Units of the whole work.
            label: What to show beside the bar, such as the loss or the name of a candidate.
        """


def no_progress(advance: int, total: int, label: str = "") -> None:
    """Show nothing."""
