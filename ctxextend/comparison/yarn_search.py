"""The search for the settings that YaRN leaves open whose losses on a text are lowest.

YaRN fixes `beta_fast`, `beta_slow` and `attention_factor` for all models, and says that other
values may suit other models: Peng et al. 2023, sections 3.2 and 3.4, arXiv:2309.00071. LongRoPE2
finds that pairs need the whole factor earlier than their wavelength tells, from a smaller critical
dimension on (Shang et al. 2025, arXiv:2502.20082): with yarn, that is a larger `beta_slow`.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.comparison.metrics import LOSS, METRICS
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.recipe import Resize
from ctxextend.tables.open_settings import OPEN_SETTINGS
from ctxextend.tables.rope_types import ATTENTION_FACTOR, BETA_FAST, BETA_SLOW

Losses = NDArray[np.float64]  # of the scored tokens of a window, shape (k,)

FEWEST_WINDOWS = 4  # that compare two candidates
MIN_PASSES = 2 * FEWEST_WINDOWS  # of the values as they are, and one other candidate
MAX_CHOOSING = 16  # windows, on which candidates are compared
MAX_CONFIRMING = 32  # windows, on which the best one is compared with the values as they are
MOST_WINDOWS = MAX_CHOOSING + MAX_CONFIRMING
CONFIRMING_PER_CHOOSING = 2  # the windows that decide are more than those that choose

SHORTEST_PASS = 1e-9  # seconds, below which clocks tell nothing

# Values to try next to those that the settings have now. A larger `beta_slow` comes first: it
# slows more pairs by the whole factor, as LongRoPE2 does.
BETA_RATIOS: Mapping[str, tuple[float, ...]] = {
    BETA_SLOW: (2.0, 4.0, 0.5),
    BETA_FAST: (0.5, 2.0),
}
# Of the logarithm of the factor, which YaRN weighs with 0.1.
ATTENTION_WEIGHTS = (0.05, 0.0, 0.15, 0.1)
ATTENTION_VALUES = 3  # to try: those that differ from the value now
ATTENTION_DECIMALS = 4
MAX_CANDIDATES = sum(map(len, BETA_RATIOS.values())) + ATTENTION_VALUES


class SearchSize(NamedTuple):
    """How many candidates are tried, on how many windows."""

    candidates: int  # besides the values as they are; 0: no other ones change the positions
    choosing: int  # windows on which the best candidate is chosen; 0: there is only one
    confirming: int  # other windows, on which it is compared with the values as they are

    @property
    def windows(self) -> int:
        """The number of windows in all."""
        return self.choosing + self.confirming

    @property
    def passes(self) -> int:
        """The number of windows that are read, over all candidates."""
        return (1 + self.candidates) * self.choosing + 2 * self.confirming


def plan_search(passes: float, candidates: int, windows: int) -> SearchSize | None:
    """Return how large a search can be; None if the time is too short for two candidates.

    With one candidate, nothing is chosen, and all windows confirm. More candidates are added before
    windows: the best of few windows is confirmed on others anyway.

    Args:
        passes: Windows that can be read in the time.
        candidates: Candidates to try at most, besides the values as they are, at least 1.
        windows: Windows of the text, at least `FEWEST_WINDOWS`.
    """
    if passes < MIN_PASSES:
        return None
    count = min(candidates, int(passes - 2 * FEWEST_WINDOWS) // FEWEST_WINDOWS - 1)
    if count < 2 or windows < 2 * FEWEST_WINDOWS:
        confirming = min(int(passes) // 2, windows, MAX_CONFIRMING)
        return SearchSize(candidates=1, choosing=0, confirming=confirming)
    affordable = int(passes) // (1 + count + 2 * CONFIRMING_PER_CHOOSING)
    in_text = windows // (1 + CONFIRMING_PER_CHOOSING)
    choosing = min(max(min(affordable, in_text), FEWEST_WINDOWS), MAX_CHOOSING)
    left = int(passes) - (1 + count) * choosing
    confirming = min(left // 2, windows - choosing, MAX_CONFIRMING)
    return SearchSize(candidates=count, choosing=choosing, confirming=confirming)


@dataclass(frozen=True)
class OpenValues:
    """The settings of yarn that a search may change, and their values before it."""

    values: Mapping[str, float]  # of all `OPEN_SETTINGS`, by name
    free: tuple[str, ...]  # the names of those that the user did not give, in search order
    factor: float  # by which low frequencies are divided

    def others(self, name: str, current: Mapping[str, float]) -> Iterator[float]:
        """Yield the values of a setting to try next to the current ones of all settings."""
        if name == ATTENTION_FACTOR:
            yield from self._other_attention_factors(current[name])
            return
        for ratio in BETA_RATIOS[name]:
            changed = {**current, name: ratio * current[name]}
            if changed[BETA_SLOW] < changed[BETA_FAST]:
                yield changed[name]

    def _other_attention_factors(self, value: float) -> Iterator[float]:
        tried = 0
        for weight in ATTENTION_WEIGHTS:
            other = round(1 + weight * math.log(self.factor), ATTENTION_DECIMALS)
            is_same = math.isclose(other, value, abs_tol=10.0**-ATTENTION_DECIMALS)
            if not is_same and tried < ATTENTION_VALUES:
                tried += 1
                yield other


@dataclass
class WindowReader:
    """Reads windows of a text with one candidate after another, each window once, and times it."""

    # ``measure(candidate, windows)`` returns the losses of each window, given by number.
    measure: Callable[[Resize, Sequence[int]], Sequence[Losses]]
    clock: Callable[[], float] = time.perf_counter
    losses: dict[Resize, dict[int, Losses]] = field(default_factory=dict)  # by window
    passes: int = 0  # windows read so far, over all candidates
    seconds: float = 0.0  # for reading them

    @property
    def seconds_per_pass(self) -> float:
        """How long it takes to read a window, on average so far."""
        return max(self.seconds / self.passes, SHORTEST_PASS)

    def read(self, candidate: Resize, windows: Sequence[int]) -> None:
        """Read windows with a candidate, unless it has read them."""
        losses = self.losses.setdefault(candidate, {})
        unread = [number for number in windows if number not in losses]
        if not unread:
            return
        started = self.clock()
        measured = self.measure(candidate, unread)
        self.seconds += self.clock() - started
        self.passes += len(unread)
        losses.update(zip(unread, measured, strict=True))

    def forget(self) -> None:
        """Forget the losses, since the text is cut into other windows, but not the time."""
        for losses in self.losses.values():
            losses.clear()

    def scores(self, candidate: Resize, windows: Sequence[int]) -> list[Losses]:
        """Return the losses of a candidate on windows that it has read."""
        return [self.losses[candidate][number] for number in windows]

    def lead(self, candidate: Resize, reference: Resize, windows: Sequence[int]) -> Estimate:
        """Return how much lower losses are than another candidate's, paired; above 0 is better."""
        own = self.scores(candidate, windows)
        others = self.scores(reference, windows)
        return METRICS[LOSS].worsening(others, own)


@dataclass
class YarnSearch:
    """The search for open settings; those that the user gave do not change.

    Two sets of windows keep chance out of the result. On the first, settings are tried one after
    the other, each from the best values so far. On the second, which chose nothing, the best
    candidate is compared with the values as they are, once: so its 95 % interval needs no
    correction for the number of candidates.
    """

    requested: Resize  # by yarn or switch, with the settings that the user gave
    opened: OpenValues
    reader: WindowReader
    # ``positions(candidate)`` is equal for candidates with equal positions, of which one is read,
    # and None for those that cannot be written.
    positions: Callable[[Resize], Hashable]
    # ``cut(count, passes)`` cuts the text into so many windows, or fewer, of which so many are
    # read over all candidates, and returns how many there are.
    cut: Callable[[int, int], int]
    budget: float  # seconds for reading windows
    size: SearchSize | None = None  # None: the time is too short
    confirmed: tuple[int, ...] = ()  # the windows that compared the best candidate

    def run(self) -> Resize | None:
        """Return the best candidate besides the values as they are; None if none is ahead.

        Without a `size` afterwards, the budget is too small. A candidate is ahead if it leads by
        more than a standard error.
        """
        self.cut(FEWEST_WINDOWS, MIN_PASSES)
        self.reader.read(self.requested, [0])
        affordable = self.budget / self.reader.seconds_per_pass - 1
        count = len(self._distinct(OPEN_SETTINGS, self.requested))
        if count == 0:
            self.size = SearchSize(candidates=0, choosing=0, confirming=0)
            return None
        size = plan_search(affordable, count, MOST_WINDOWS)
        if size is None:
            return None
        self.reader.forget()
        windows = self.cut(size.windows, size.passes)
        if windows < size.windows:
            size = plan_search(affordable, count, windows)
        assert size is not None
        self.size = size
        best = self._choose(size)
        if best is not None:
            self._confirm(best, size)
        return best

    @property
    def seconds_needed(self) -> float:
        """How long two candidates take on four windows, with the pass that tells the time."""
        return (1 + MIN_PASSES) * self.reader.seconds_per_pass

    @property
    def choosing(self) -> tuple[int, ...]:
        """The numbers of the windows that choose, spread over the text."""
        size = self.size
        if size is None:
            return ()
        return tuple(number * size.windows // size.choosing for number in range(size.choosing))

    def _choose(self, size: SearchSize) -> Resize | None:
        """Return the candidate to confirm: the best one, or the only one; None if none is ahead."""
        if size.candidates == 1:
            return self._distinct(OPEN_SETTINGS, self.requested)[0]
        self.reader.read(self.requested, self.choosing)
        current = self.requested
        for name in OPEN_SETTINGS:
            others = self._distinct((name,), current)
            current = self._best_of(others, current, size)
        return None if current == self.requested else current

    def _best_of(self, others: Sequence[Resize], current: Resize, size: SearchSize) -> Resize:
        """Return the candidate with the largest lead over the current one, or the current one."""
        best = current
        largest = 0.0
        for other in others:
            if not self._can_try_another(size):
                break
            self.reader.read(other, self.choosing)
            lead = self.reader.lead(other, current, self.choosing)
            error = lead.standard_error
            if error is not None and lead.mean > error and lead.mean > largest:
                best = other
                largest = lead.mean
        return best

    def _can_try_another(self, size: SearchSize) -> bool:
        """Whether there is time for another candidate, and to confirm the best one after it."""
        tried = len(self.reader.losses) - 1
        passes = size.choosing + 2 * FEWEST_WINDOWS
        seconds = self.reader.seconds + passes * self.reader.seconds_per_pass
        return tried < size.candidates and seconds <= self.budget

    def _confirm(self, best: Resize, size: SearchSize) -> None:
        """Read both candidates on the other windows, as many as there is time for."""
        chosen_by = self.choosing
        others = [number for number in range(size.windows) if number not in chosen_by]
        left = (self.budget - self.reader.seconds) / (2 * self.reader.seconds_per_pass)
        count = max(int(left), FEWEST_WINDOWS)
        if size.candidates == 1:
            count = size.confirming
        self.confirmed = tuple(others[:count])
        self.reader.read(self.requested, self.confirmed)
        self.reader.read(best, self.confirmed)

    def _distinct(self, names: Sequence[str], current: Resize) -> list[Resize]:
        """Return candidates with another value of one of some settings, and with new positions.

        The bounds of yarn are rounded to whole pairs of values, so many values mean the same.
        """
        known = {self.positions(candidate) for candidate in self.reader.losses}
        found = list[Resize]()
        for candidate in self._others(names, current):
            positions = self.positions(candidate)
            if positions is not None and positions not in known:
                known.add(positions)
                found.append(candidate)
        return found

    def _others(self, names: Sequence[str], current: Resize) -> Iterator[Resize]:
        """Yield candidates with another value of one of some settings."""
        values = dict(self.opened.values)
        for name, value in current.choice.settings.items():
            if name in values and value is not None:
                values[name] = value
        for name in names:
            if name in self.opened.free:
                for other in self.opened.others(name, values):
                    yield current.with_settings(**{name: other})
