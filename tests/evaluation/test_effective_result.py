"""Statistics of the effective length, on counts small enough to check by eye."""

from collections.abc import Sequence

import pytest
from ctxextend.lab.effective_result import (
    Cell,
    Effective,
    LengthResult,
    TaskResult,
    count_depths,
    make_cells,
    probability_of_drop,
    wilson_interval,
)


def result(length: int, found: Sequence[int], trials: int = 8, chance: float = 0.1) -> LengthResult:
    """Return a result with so many answers found in each range of depths."""
    count = len(found)
    cells = [
        Cell(start=index / count, stop=(index + 1) / count, found=hits, trials=trials)
        for index, hits in enumerate(found)
    ]
    return LengthResult(length=length, texts=1, cells=tuple(cells), chance=chance)


def task(*lengths: LengthResult) -> TaskResult:
    return TaskResult(chance=lengths[0].chance, lengths=lengths)


def effective(**tasks: TaskResult) -> Effective:
    return Effective(
        scoring="likelihood rank",
        max_len=512,
        threshold=0.75,
        tasks=tasks,
        questions=24,
        budget=120,
        left_out=(),
        left_out_seconds=None,
    )


@pytest.mark.parametrize(
    ("found", "trials", "interval"),
    [
        # Brown, Cai and DasGupta 2001 (Statistical Science 16) plot these; values by hand from the
        # equation: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n).
        (8, 8, (0.6756, 1.0)),
        (0, 8, (0.0, 0.3244)),
        (4, 8, (0.2152, 0.7848)),
        (15, 24, (0.4271, 0.7884)),
    ],
)
def test_wilson_interval_of_known_counts(
    found: int, trials: int, interval: tuple[float, float]
) -> None:
    assert wilson_interval(found, trials) == pytest.approx(interval, abs=1e-4)


@pytest.mark.parametrize(
    ("before", "after", "probability"),
    [
        # Fisher's tea: of 8 cups, 4 of each kind. 1 / 70 for all right, 17 / 70 for one or none
        # wrong.
        ((4, 4), (0, 4), 1 / 70),
        ((3, 4), (1, 4), 17 / 70),
        ((4, 4), (4, 4), 1.0),
        ((0, 4), (4, 4), 1.0),
    ],
)
def test_probability_of_drop_is_fishers(
    before: tuple[int, int], after: tuple[int, int], probability: float
) -> None:
    assert probability_of_drop(*before, *after) == pytest.approx(probability)


def test_count_depths_gives_every_range_eight_trials() -> None:
    even = [index / 23 for index in range(24)]
    assert count_depths([even]) == 3
    assert count_depths([even * 2]) == 5
    assert count_depths([even * 2, even]) == 3  # of all lengths
    assert count_depths([even[:7]]) == 0
    assert count_depths([[0.0, 0.5, 1.0] * 8]) == 3
    assert count_depths([[0.0] * 24]) == 1  # no trial in the second half


def test_make_cells_counts_the_ends_in_the_first_and_the_last_range() -> None:
    cells = list(make_cells([(0.0, True), (0.49, False), (0.5, True), (1.0, True)], 2))
    assert [(cell.found, cell.trials) for cell in cells] == [(1, 2), (2, 2)]
    assert (cells[0].start, cells[0].stop, cells[1].stop) == (0.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("found", "is_read"),
    [((8, 8, 8), True), ((6, 6, 6), True), ((8, 5, 8), False), ((0, 0, 0), False)],
)
def test_is_read_needs_the_threshold_at_every_depth(found: tuple[int, ...], is_read: bool) -> None:
    assert result(64, found).is_read is is_read


def test_effective_length_is_the_largest_that_is_read() -> None:
    found = task(result(64, (8, 8)), result(128, (8, 8)), result(256, (2, 8)))
    assert found.effective_length == 128
    assert task(result(64, (2, 8))).effective_length is None
    # A length below that misses the threshold by chance does not count.
    assert task(result(64, (5, 8)), result(128, (8, 8))).effective_length == 128


def test_shorter_unread_lengths_are_below_the_effective_one() -> None:
    found = task(result(64, (8, 8)), result(128, (2, 8)), result(256, (8, 8)), result(512, (0, 0)))
    assert found.effective_length == 256
    assert found.shorter_unread == (128,)


def test_uncertain_lengths_miss_no_more_than_chance() -> None:
    assert task(result(64, (8, 8)), result(128, (0, 8))).uncertain_lengths == ()
    assert task(result(64, (7, 7)), result(128, (5, 7))).uncertain_lengths == (128,)
    lengths = task(result(64, (8, 8)), result(128, (5, 8)), result(256, (0, 3)))
    assert lengths.uncertain_lengths == (128,)
    assert task(result(64, (8, 8))).uncertain_lengths == ()
    assert task(result(64, (0, 8))).uncertain_lengths == ()


def test_is_above_chance_counts_all_depths_of_a_length() -> None:
    assert not task(result(64, (1, 1, 1))).is_above_chance
    assert task(result(64, (3, 3, 3))).is_above_chance
    assert task(result(64, (1, 1, 1)), result(128, (8, 8, 8))).is_above_chance


def test_effective_is_the_smallest_of_the_tasks_that_are_read() -> None:
    read = task(result(64, (8, 8)), result(128, (8, 8)))
    shorter = task(result(64, (8, 8)), result(128, (2, 8)))
    never = task(result(64, (1, 1)))
    assert effective(needle=read, key=shorter, tracking=never).effective_length == 64
    assert effective(needle=read, tracking=never).effective_length == 128
    assert effective(tracking=never).effective_length is None
    assert not effective(tracking=never).is_above_chance
