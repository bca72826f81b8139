"""Rows of a position table that look randomly initialised, and how to say so."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import counted
from ctxextend.positions.positions import Positions, nested
from ctxextend.tables.stats import describe_rows, find_untrained_rows

# Config keys for the standard deviation of weight initialisation, and the defaults of transformers
# and nn.Embedding.
INITIALIZER_KEYS = ("initializer_range", "init_std", "initializer_factor")
DEFAULT_STDS = (0.02, 1.0)
MAX_STD = 1e6  # larger values are mistakes


def untrained_rows(
    checkpoint: Checkpoint, location: Positions, rows: NDArray[Any]
) -> dict[int, float]:
    """Return the rows that look randomly initialised, and the standard deviation that each fits.

    Args:
        checkpoint: Its config may state how weights are initialised.
        location: The table.
        rows: Its rows without reserved ones, shape (positions, hidden_size).
    """
    stds = list[float]()
    for config in (nested(checkpoint.config, location.path), checkpoint.config):
        if not isinstance(config, Mapping):
            continue
        for key in INITIALIZER_KEYS:
            value = config.get(key)
            if isinstance(value, int | float) and 0 < value < MAX_STD:
                stds.append(float(value))
    return find_untrained_rows(rows, tuple(dict.fromkeys((*stds, *DEFAULT_STDS))))


def describe_untrained(untrained: Mapping[int, float]) -> Iterator[str]:
    """Yield a sentence for each standard deviation that rows fit, without a full stop."""
    for std in dict.fromkeys(untrained.values()):
        matching = [row for row, fitted in untrained.items() if fitted == std]
        count = counted(len(matching), "row")
        yield (
            f"looks untrained: {describe_rows(matching)} ({count} like random initialisation "
            f"with std {std:g})"
        )


class UntrainedRows(NamedTuple):
    """The rows of a table that no training has changed, by position."""

    random: Mapping[int, float]  # those that look randomly initialised; see `untrained_rows`
    zero: tuple[int, ...]


def find_untrained(
    checkpoint: Checkpoint, location: Positions, rows: NDArray[Any]
) -> UntrainedRows:
    """Return the rows of a table that no training has changed.

    Args:
        checkpoint: Its config may state how weights are initialised.
        location: The table.
        rows: Its rows without reserved ones, shape (positions, hidden_size).
    """
    zero = tuple(np.flatnonzero(~rows.any(axis=1)).tolist())
    return UntrainedRows(random=untrained_rows(checkpoint, location, rows), zero=zero)
