"""What can be chosen of `bands`, and which of it a text speaks for."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.evaluation_result import Estimate, estimate
from ctxextend.recipe import Resize
from ctxextend.tables.bands import BandSplit, choose_split, default_gain, find_repeats

__all__ = ["MOST_TRIALS", "Choices", "Trials", "search"]

Values = NDArray[np.float64]

# Beside what the table says, these are tried: rows of the Gaussian, the share of the table that it may have at most,
# how many stretches, and factors.
SIGMAS, MOST_SHARE = (3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0), 1 / 4
REPEATS = 4
# Of a sigma the part by which another must differ for the rows to differ in anything that a text could show.
NEARLY = 0.1
GAINS = (1.0, 1.15, 1.3, 1.45, 1.6, 1.8, 2.1)
# What the table says, no fast band, and all of the above; of stretches also the longest.
MOST_TRIALS = 1 + 1 + len(SIGMAS) + REPEATS + 1 + len(GAINS)


@dataclass(frozen=True)
class Choices:
    """What can be chosen of `bands` for one table; what was typed is no choice.

    Attributes:
        table: The learned rows that new ones are made from, shape (n, d), float64.
        rows: Rows wanted, m.
        typed: What was asked for.
    """

    table: Values
    rows: int
    typed: Resize

    def start(self) -> Resize:
        """Return what the table alone says."""
        split = self._split(self.typed.sigma)
        gain = default_gain(split, len(self.table), self.rows) if self.typed.gain is None else self.typed.gain
        return self._parted(split, gain)

    def sigmas(self, now: Resize) -> Iterator[Resize]:
        """Yield other ways to part the table, each with the stretch that the table says for it."""
        if self.typed.sigma is not None:
            return
        if self.typed.repeat is None:  # which has no meaning without a fast band
            yield self._parted(self._split(0.0), now.gain)
        for sigma in SIGMAS:
            if sigma <= MOST_SHARE * len(self.table) and abs(sigma - (now.sigma or 0.0)) > NEARLY * sigma:
                yield self._parted(self._split(sigma), now.gain)

    def repeats(self, now: Resize) -> Iterator[Resize]:
        """Yield other stretches to repeat."""
        if self.typed.repeat is None and now.sigma:
            for repeat in find_repeats(self.table, now.sigma, REPEATS, keep=self._keep):
                yield replace(now, repeat=repeat)

    def gains(self, now: Resize) -> Iterator[Resize]:
        """Yield other factors by which rows are moved away from their mean."""
        if self.typed.gain is None:
            for gain in GAINS:
                yield replace(now, gain=gain)

    @property
    def _keep(self) -> int:
        return self.typed.options.kept_first

    def _split(self, sigma: float | None) -> BandSplit:
        return choose_split(self.table, keep=self._keep, sigma=sigma, repeat=self.typed.repeat)

    def _parted(self, split: BandSplit, gain: float | None) -> Resize:
        """Return settings in numbers; sigma stays open where it would be 0 and a stretch was typed."""
        found = split.sigma or (None if self.typed.repeat else 0.0)
        return replace(
            self.typed,
            sigma=found if self.typed.sigma is None else self.typed.sigma,
            repeat=self.typed.repeat or (split.repeat if split.sigma else None),
            gain=gain,
        )


@dataclass
class Trials:
    """Settings that were tried, and what each gives.

    Attributes:
        measure: Gives for settings the values of each window or document, each of shape (k,), the same for all.
        sign: 1 where less is better, and -1 where more is.
        found: What it gave, by the settings, in the order in which they were tried.
    """

    measure: Callable[[Resize], tuple[Values, ...]]
    sign: int = 1
    found: dict[Resize, tuple[Values, ...]] = field(default_factory=dict)

    def values(self, settings: Resize) -> tuple[Values, ...]:
        """Return what settings give; nothing is measured twice."""
        if settings not in self.found:
            self.found[settings] = self.measure(settings)
        return self.found[settings]

    def better_by(self, settings: Resize, other: Resize) -> Estimate:
        """Return how much better settings are than others, paired by window or document; above 0 is better."""
        pairs = zip(self.values(other), self.values(settings), strict=True)
        return estimate([self.sign * (before - after) for before, after in pairs])

    def best(self, now: Resize, others: Sequence[Resize]) -> Resize:
        """Return the best of others that are better than what holds now by more than a standard error, or that.

        Of some twenty trials on little text the best owes a part of its lead to that text. A lead of a standard error
        or less may be nothing else, so what was chosen before, at first by the table alone, which fits no text, stays.
        """
        better = {other: self.better_by(other, now) for other in others}
        sure = [other for other, by in better.items() if by.error is not None and by.mean > by.error]
        return max(sure, key=lambda other: better[other].mean, default=now)


def search(choices: Choices, trials: Trials) -> tuple[Resize, Resize]:
    """Return what the table says, and what the text says: sigma first, then the stretch, then the gain."""
    start = now = choices.start()
    trials.values(start)
    for others in (choices.sigmas, choices.repeats, choices.gains):
        now = trials.best(now, list(others(now)))
    return start, now
