"""The search for settings of `bands` whose rows score best on a text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctxextend.recipe import Resize
from ctxextend.tables.bands import choose_bands, find_repeats

if TYPE_CHECKING:
    from ctxextend.training.sequence_losses import SequenceLosses

# Values tried next to those estimated from the table.
SIGMAS = (3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
REPEATS = 4  # ranges to tile
GAINS = (1.0, 1.15, 1.3, 1.5, 1.8, 2.2, 2.7)
HIGH_GAINS = (1.0, 1.2, 1.4)
MAX_SHARE = 1 / 4  # a sigma, in rows, is at most this share of the table
# The estimate, a sigma of 0, and all of the above; among the ranges also the longest.
MOST_BANDS = 1 + 1 + len(SIGMAS) + REPEATS + 1 + len(GAINS) + len(HIGH_GAINS)
MIN_CHANGE = 0.1  # a sigma that differs by less than this share creates almost the same rows


@dataclass
class BandsSearch:
    """The search for settings of `bands` for one table; requested settings do not change."""

    table: NDArray[np.float64]  # learned rows from which new rows are created, shape (n, d)
    rows: int  # number of rows requested
    requested: Resize
    measure: "Callable[[Resize], SequenceLosses]"
    has_time: Callable[[], bool]  # whether another candidate may be measured
    # Whether there is only this table. Others of the model have other rows at their ends, so each
    # of several estimates for itself which rows are split: the setting `within`.
    is_only: bool = False
    losses: "dict[Resize, SequenceLosses]" = field(default_factory=dict)  # of each trial, in order

    def run(self) -> Resize:
        """Return the best settings: sigma is tuned first, then the range to tile, then the gains.

        The best of about twenty trials is ahead partly by chance: a lead of a standard error or
        less does not count. If time runs out, it is the best one so far.
        """
        requested = self.requested.choice.settings
        current = self._complete(requested["sigma"])
        self._try(current)
        for name in ("sigma", "repeat", "gain", "high_gain"):
            is_free = requested[name] is None
            if is_free:
                current = self._best_of(self._others(name, current), current)
        return current

    def _best_of(self, others: Iterator[Resize], current: Resize) -> Resize:
        """Return the candidate with the largest lead over the current one, or the current one.

        A lead of a standard error or less does not count.
        """
        best = current
        largest = 0.0
        for other in others:
            if not self.has_time():
                break
            self._try(other)
            lead = self.losses[other].improvement(self.losses[current])
            error = lead.standard_error
            if error is not None and lead.mean > error and lead.mean > largest:
                best = other
                largest = lead.mean
        return best

    def _try(self, candidate: Resize) -> None:
        if candidate not in self.losses:
            self.losses[candidate] = self.measure(candidate)

    def _others(self, name: str, current: Resize) -> Iterator[Resize]:
        """Yield candidates with other values of one setting."""
        if name == "sigma":
            yield from self._other_sigmas(current)
        elif name == "repeat":
            yield from self._other_repeats(current)
        elif name == "gain":
            for gain in GAINS:
                yield current.with_settings(gain=gain)
        elif current.choice.settings["high_gain"] is not None:
            # Unset, the table is not split, or the requested gain applies to both parts.
            for gain in HIGH_GAINS:
                yield current.with_settings(high_gain=gain)

    def _other_sigmas(self, current: Resize) -> Iterator[Resize]:
        """Yield candidates with other sigmas, for which the other settings are estimated again."""
        sigmas = list(SIGMAS)
        # At a sigma of 0, no rows are tiled, so a range to tile cannot be requested.
        if self.requested.choice.settings["repeat"] is None:
            sigmas.insert(0, 0.0)
        current_sigma = current.choice.settings["sigma"]
        for sigma in sigmas:
            fits_table = sigma <= MAX_SHARE * len(self.table)
            differs = abs(sigma - current_sigma) > MIN_CHANGE * sigma
            if fits_table and differs:
                yield self._complete(sigma)

    def _other_repeats(self, current: Resize) -> Iterator[Resize]:
        """Yield candidates with other ranges to tile; at a sigma of 0, there are none."""
        sigma = current.choice.settings["sigma"]
        if sigma == 0:
            return
        keep_first = self.requested.choice.keep_first
        for repeat in find_repeats(self.table, sigma, REPEATS, keep=keep_first):
            yield current.with_settings(repeat=repeat)

    def _complete(self, sigma: float | None) -> Resize:
        """Return a candidate whose other settings are estimated unless they were requested."""
        settings = {**self.requested.choice.settings, "sigma": sigma}
        requested = replace(self.requested.choice, settings=settings)
        chosen = choose_bands(self.table, self.rows, requested)
        candidate = replace(self.requested, method=chosen.text)
        if not self.is_only:
            candidate = candidate.with_settings(within=settings["within"])  # None unless requested
        return candidate
