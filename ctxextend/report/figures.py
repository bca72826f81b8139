"""Position tables as figures."""

from collections.abc import Sequence
from pathlib import Path

from ctxextend.errors import OutputError
from ctxextend.inspection.reports import Inspection

__all__ = ["plot_tables"]


def plot_tables(inspections: Sequence[Inspection], path: Path) -> None:
    """Write a figure of every table."""
    raise OutputError("--plot is not there yet.")
