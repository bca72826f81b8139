"""Position tables made of waves and noise."""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]

# Period of the high-frequency part in rows: tiled ranges contain an integer number of them.
PERIOD = 12


def wave(angles: Rows, seed: int, width: int) -> Rows:
    directions = np.random.default_rng(seed).normal(size=(2, width))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) @ directions


def low_rows(rows: int, width: int = 16) -> Rows:
    """Half a period over the whole table, in two directions."""
    return wave(np.linspace(0, np.pi, rows), 1, width)


def high_rows(rows: int, width: int = 16) -> Rows:
    """A period of 12 rows, in two directions."""
    return wave(2 * np.pi * np.arange(rows) / PERIOD, 2, width)


def noise(rows: int, width: int = 64, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).normal(size=(rows, width))


TWO_BANDS = low_rows(128) + 0.5 * high_rows(128)
