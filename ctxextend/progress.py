"""What long operations report while they run."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Progress(Protocol):
    """A callback for the progress of a long operation."""

    def __call__(self, advance: int, total: int, label: str = "") -> None:
        """Report that `advance` more of `total` units are done; `label` says what is next."""


def no_progress(advance: int, total: int, label: str = "") -> None:
    """Report nothing."""


class Events(Protocol):
    """What a run of several steps reports: notes, warnings and the progress of each step."""

    def note(self, *texts: str) -> None:
        """Report what was found or done."""

    def warning(self, *texts: str) -> None:
        """Report what the user should know before the result is used."""

    def progress(self, action: str, unit: str = "bytes") -> AbstractContextManager[Progress]:
        """Return a context in which a step reports its progress."""


class Silence:
    """Events that are not reported."""

    def note(self, *texts: str) -> None:
        """Report nothing."""

    def warning(self, *texts: str) -> None:
        """Report nothing."""

    @contextmanager
    def progress(self, action: str, unit: str = "bytes") -> Iterator[Progress]:
        """Report nothing."""
        yield no_progress
