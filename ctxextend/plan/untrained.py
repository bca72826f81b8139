"""Rows of a position table that look randomly initialised, and how to say so."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import counted
from ctxextend.families.lookup import TableLocation, nested
from ctxextend.tables.stats import describe_rows, find_untrained_rows

# Config keys for the standard deviation of weight initialisation, and the defaults of transformers
# and nn.Embedding.
INITIALIZER_KEYS = ("initializer_range", "init_std", "initializer_factor")
DEFAULT_STDS = (0.02, 1.0)
MAX_STD = 1e6  # larger values are mistakes


def untrained_rows(
    checkpoint: Checkpoint, location: TableLocation, rows: NDArray[Any]
) -> dict[int, float]:
    """Return the rows that look randomly initialised, and the standard deviation that each fits.

    Args:
        checkpoint: Its config may state how weights are initialised.
        location: The table.
        rows: Its rows without reserved ones, shape (positions, hidden_size).
    """
    own = nested(checkpoint.config, location.path)
    stds = (*_stated_stds(own), *_stated_stds(checkpoint.config), *DEFAULT_STDS)
    return find_untrained_rows(rows, tuple(dict.fromkeys(stds)))


def _stated_stds(config: Any) -> Iterator[float]:
    """Yield the standard deviations of weight initialisation that a config states."""
    if not isinstance(config, Mapping):
        return
    for key in INITIALIZER_KEYS:
        value = config.get(key)
        if isinstance(value, int | float) and 0 < value < MAX_STD:
            yield float(value)


def describe_untrained(untrained: Mapping[int, float]) -> Iterator[str]:
    """Yield a sentence for each standard deviation that rows fit, without a full stop."""
    for std in dict.fromkeys(untrained.values()):
        matching = [row for row, fitted in untrained.items() if fitted == std]
        count = counted(len(matching), "row")
        yield (
            f"looks untrained: {describe_rows(matching)} ({count} like random initialisation "
            f"with std {std:g})"
        )


@dataclass(frozen=True)
class UntrainedRows:
    """The rows of a table that no training has changed, by position."""

    random: Mapping[int, float]  # those that look randomly initialised; see `untrained_rows`
    zero: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.random) + len(self.zero)

    def describe(self) -> Iterator[str]:
        """Yield what is wrong with them, in the words of `inspect`."""
        if self.zero:
            yield f"zero rows: {describe_rows(self.zero)}"
        yield from describe_untrained(self.random)


def find_untrained(
    checkpoint: Checkpoint, location: TableLocation, rows: NDArray[Any]
) -> UntrainedRows:
    """Return the rows of a table that no training has changed.

    Args:
        checkpoint: Its config may state how weights are initialised.
        location: The table.
        rows: Its rows without reserved ones, shape (positions, hidden_size).
    """
    zero = tuple(np.flatnonzero(~rows.any(axis=1)).tolist())
    return UntrainedRows(random=untrained_rows(checkpoint, location, rows), zero=zero)
