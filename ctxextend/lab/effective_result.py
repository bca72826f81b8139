"""How far a model reads: what it found by length and depth, and up to which length that is enough.

*Effective length*, as in RULER (arXiv:2404.06654, section 4): the largest length at which a model
is above a threshold, here at every depth, and above chance.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ctxextend.json_output import not_in_json

THRESHOLD = 0.75  # share of answers found
# One tail of a 95 % interval: the probability by which chance explains what a cell or a drop shows.
UNLIKELY = 0.025
# A task is above chance if guessing reaches its accuracy with a lower probability than this. It is
# low because trials of one text are not quite independent.
VERY_UNLIKELY = 0.001
MIN_TRIALS = 8  # of a cell
MAX_DEPTHS = 5
MIN_DEPTHS = 3
OPTIONAL_TASKS = {"tracking", "document"}
Z_95 = 1.959964  # of the normal distribution, for 95 % intervals


@dataclass(frozen=True)
class Cell:
    """What was found at a length in a range of depths."""

    start: float  # of the depths, from 0 (start) to 1 (end of the text)
    stop: float
    found: int  # trials whose answer ranked first
    trials: int

    json_properties: ClassVar = ("accuracy", "interval")

    @property
    def accuracy(self) -> float:
        """The share of answers found."""
        return self.found / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the 95 % interval of the accuracy, by trial."""
        return wilson_interval(self.found, self.trials)


@dataclass(frozen=True)
class LengthResult:
    """What was found at one length."""

    length: int  # tokens of a text, special tokens included
    texts: int
    cells: tuple[Cell, ...]  # by depth
    chance: float = field(metadata=not_in_json)  # accuracy of guessing

    json_properties: ClassVar = ("accuracy", "interval", "is_read")

    @property
    def found(self) -> int:
        """The number of answers found at all depths."""
        return sum(cell.found for cell in self.cells)

    @property
    def trials(self) -> int:
        """The number of trials at all depths."""
        return sum(cell.trials for cell in self.cells)

    @property
    def accuracy(self) -> float:
        """The share of answers found at all depths."""
        return self.found / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the 95 % interval of the accuracy at all depths, by trial."""
        return wilson_interval(self.found, self.trials)

    @property
    def is_read(self) -> bool:
        """Whether the accuracy at every depth is at least the threshold, and above chance."""
        unlikely = UNLIKELY / len(self.cells)
        return all(
            cell.accuracy >= THRESHOLD and tail(cell.found, cell.trials, self.chance) < unlikely
            for cell in self.cells
        )


@dataclass(frozen=True)
class TaskResult:
    """What a model found in one task."""

    chance: float  # accuracy of guessing
    lengths: tuple[LengthResult, ...]  # shortest first

    json_properties: ClassVar = ("effective_length", "is_above_chance", "uncertain_lengths")

    @property
    def is_above_chance(self) -> bool:
        """Whether guessing is very unlikely to reach the accuracy of any length."""
        unlikely = VERY_UNLIKELY / len(self.lengths)
        return any(tail(one.found, one.trials, self.chance) < unlikely for one in self.lengths)

    @property
    def effective(self) -> LengthResult | None:
        """The result at the largest length that is read; None if none is."""
        return max(
            (one for one in self.lengths if one.is_read), key=lambda one: one.length, default=None
        )

    @property
    def effective_length(self) -> int | None:
        """The largest length that is read; None if none is."""
        effective = self.effective
        return None if effective is None else effective.length

    @property
    def shorter_unread(self) -> tuple[int, ...]:
        """Lengths below the effective one that are not read."""
        effective = self.effective_length or 0
        return tuple(
            one.length for one in self.lengths if one.length < effective and not one.is_read
        )

    @property
    def uncertain_lengths(self) -> tuple[int, ...]:
        """Lengths beyond the effective one at which no less is found by more than chance."""
        effective = self.effective
        if effective is None:
            return ()
        longer = [one for one in self.lengths if one.length > effective.length]
        return tuple(
            one.length
            for one in longer
            if probability_of_drop(effective.found, effective.trials, one.found, one.trials)
            >= UNLIKELY
        )


@dataclass(frozen=True)
class Effective:
    """How far a model reads."""

    scoring: str  # ``likelihood rank`` or ``cosine rank``
    max_len: int  # the length that the model states, or the longest that was requested
    threshold: float
    tasks: Mapping[str, TaskResult]  # by name
    questions: int  # about each text, or for encoders about texts that differ in a passage
    budget: int  # seconds for all lengths
    left_out: tuple[int, ...]  # lengths that the budget does not suffice for
    left_out_seconds: float | None  # about how long they all take; None without any

    json_properties: ClassVar = ("effective_length",)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The measured lengths, shortest first."""
        return tuple(one.length for one in next(iter(self.tasks.values())).lengths)

    @property
    def read_tasks(self) -> dict[str, int]:
        """The effective length by task, of tasks that have one and were asked at all lengths."""
        lengths = {}
        for name, task in self.tasks.items():
            is_complete = task.lengths[-1].length == self.lengths[-1]
            if is_complete and task.effective_length is not None:
                lengths[name] = task.effective_length
        return lengths

    @property
    def is_above_chance(self) -> bool:
        """Whether the model is above chance in any task."""
        return any(task.is_above_chance for task in self.tasks.values())

    @property
    def effective_length(self) -> int | None:
        """The smallest effective length of the tasks that have one.

        A task of `OPTIONAL_TASKS` that a model cannot do in the shortest texts tells nothing about
        longer ones. None if another task has no effective length.
        """
        lengths = self.read_tasks
        if not lengths.keys() >= self.tasks.keys() - OPTIONAL_TASKS:
            return None
        return min(lengths.values(), default=None)


def wilson_interval(found: int, trials: int) -> tuple[float, float]:
    """Return the ends of the 95 % confidence interval of a share.

    Source: Wilson 1927, Probable inference, the law of succession, and statistical inference,
    Journal of the American Statistical Association 22, equation 3.
    """
    share = found / trials
    weight = Z_95**2 / trials
    middle = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * share * (1 - share) + weight**2 / 4) / (1 + weight)
    # Without rounding errors at the ends.
    lower = middle - half if found else 0.0
    upper = middle + half if found < trials else 1.0
    return lower, upper


def tail(found: int, trials: int, chance: float) -> float:
    """Return the probability of at least so many successes by guessing: a binomial tail."""
    probability = 0.0
    for hits in range(found, trials + 1):
        probability += math.comb(trials, hits) * chance**hits * (1 - chance) ** (trials - hits)
    return probability


def probability_of_drop(found: int, trials: int, later_found: int, later_trials: int) -> float:
    """Return how probable a drop of at least this size is if nothing has changed.

    Source: Fisher's exact test, one-sided: Fisher 1935, The logic of inductive inference, Journal
    of the Royal Statistical Society 98.
    """
    total = found + later_found
    outcomes = math.comb(trials + later_trials, total)
    fewest = max(total - trials, 0)
    drops = 0
    for hits in range(fewest, later_found + 1):
        drops += math.comb(later_trials, hits) * math.comb(trials, total - hits)
    return drops / outcomes


def count_depths(trials: Sequence[Sequence[float]]) -> int:
    """Return into how many ranges the depths of trials are divided.

    As many as leave every range of every length `MIN_TRIALS`, at most `MAX_DEPTHS`; 0 if there are
    too few trials for a single one.

    Args:
        trials: The depths of the trials of each length.
    """
    for count in range(MAX_DEPTHS, 0, -1):
        trials_of = [Counter(range_of_depth(one, count) for one in depths) for depths in trials]
        fewest = min((one[index] for one in trials_of for index in range(count)), default=0)
        if fewest >= MIN_TRIALS:
            return count
    return 0


def range_of_depth(depth: float, count: int) -> int:
    """Return the index of the range that a depth is in, of so many equal ranges."""
    return min(int(depth * count), count - 1)


def make_cells(trials: Sequence[tuple[float, bool]], count: int) -> Iterator[Cell]:
    """Yield what was found in each of so many equal ranges of depths.

    Args:
        trials: The depth of each trial, and whether its answer was found.
        count: Ranges.
    """
    for index in range(count):
        found = [hit for depth, hit in trials if range_of_depth(depth, count) == index]
        yield Cell(
            start=index / count, stop=(index + 1) / count, found=sum(found), trials=len(found)
        )
