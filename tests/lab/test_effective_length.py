"""Rules of the effective length, on counts small enough to check by eye."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from ctxextend.lab.effective_length import (
    THRESHOLD,
    effective_length,
    effective_text,
    is_above_chance,
)
from ctxextend.lab.scores import ONE_PASS, TRIALS, Part, Score
from ctxextend.lab.statistics import binomial_tail


def score(name: str, length: int, found: int, trials: int, part: Part | None = None) -> Score:
    return Score(
        model="m",
        measure="effective",
        name=name,
        reading=ONE_PASS,
        length=length,
        values=[np.repeat([1.0, 0.0], [found, trials - found])],
        tokens=length,
        unit=TRIALS,
        part=part,
        chance=0.1,
    )


def task(name: str, by_length: dict[int, Sequence[int]], trials: int = 8) -> Iterator[Score]:
    """Yield scores with so many answers found in each range of depths."""
    for length, found in by_length.items():
        count = len(found)
        yield score(name, length, sum(found), count * trials)
        for index, hits in enumerate(found):
            yield score(name, length, hits, trials, (index / count, (index + 1) / count))


def test_threshold_is_above_chance_at_every_depth() -> None:
    """The smallest chance level of a task is 1 / 4, and five ranges are tested at 2.5 %."""
    for trials in range(8, 40):
        found = int(np.ceil(THRESHOLD * trials))
        assert binomial_tail(found, trials, 1 / 4) < 0.025 / 5


def test_is_above_chance_counts_all_depths_of_a_length() -> None:
    assert not is_above_chance(list(task("key", {64: (1, 1, 1)})))
    assert is_above_chance(list(task("key", {64: (3, 3, 3)})))
    assert is_above_chance([*task("key", {64: (1, 1, 1)}), *task("needle", {64: (8, 8, 8)})])


WHERE = "where 75 % of the answers are found at every depth."
READ = {64: (8, 8), 128: (8, 8)}
SHORTER = {64: (8, 8), 128: (2, 8)}
NEVER = {64: (1, 1)}


@pytest.mark.parametrize(
    ("tasks", "length", "text"),
    [
        (
            {"needle": READ, "key": SHORTER},
            64,
            f"Effective context: 64 of 128 tokens (needle 128, key 64), {WHERE}",
        ),
        (
            {"needle": READ, "key": NEVER},
            None,
            f"Effective context: less than 64 of 128 tokens (needle 128, key none), {WHERE}",
        ),
        (
            {"needle": NEVER, "key": NEVER},
            None,
            "Effective context: none, questions about texts of 64 tokens are answered as by "
            "guessing.",
        ),
        (
            {"needle": {64: (8, 8), 128: (5, 8), 256: (5, 7), 512: (0, 3)}},
            64,
            f"Effective context: 64 of 512 tokens (needle 64), {WHERE} What it misses at 128 and "
            "256 tokens may be chance.",
        ),
    ],
)
def test_text_names_the_smallest_length_of_the_tasks_that_are_read(
    tasks: dict[str, dict[int, Sequence[int]]], length: int | None, text: str
) -> None:
    scores = [one for name, by_length in tasks.items() for one in task(name, by_length)]
    assert effective_length(scores) == length
    assert effective_text(scores) == text
