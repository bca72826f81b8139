"""How far a model reads: what it finds in texts of growing lengths, at several depths."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError
from ctxextend.evaluation.cached_text import find_cache
from ctxextend.evaluation.effective_result import (
    MIN_DEPTHS,
    MIN_TRIALS,
    THRESHOLD,
    Effective,
    LengthResult,
    TaskResult,
    count_depths,
    make_cells,
)
from ctxextend.evaluation.embedding import Embedder
from ctxextend.evaluation.eval_model import CAUSAL
from ctxextend.evaluation.needle_text import (
    MASKED_FORM,
    NEEDLES_FORM,
    POINTERS_FORM,
    NeedleForm,
    NeedleTexts,
)
from ctxextend.evaluation.needles import NeedleWords, find_words
from ctxextend.evaluation.schedule import (
    Schedule,
    forward_operations,
    predict_seconds,
    schedule_texts,
)
from ctxextend.evaluation.scorer import Scorer
from ctxextend.evaluation.task import Task
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.evaluation.trials import (
    HIDDEN_TOKENS,
    PASSAGES,
    Answer,
    CausalTrials,
    EncoderTrials,
    MaskedTrials,
    Trials,
)
from ctxextend.held_out import Ids
from ctxextend.models.devices import torch_threads
from ctxextend.recipe import Evaluate

NOT_MEASURED = "The effective length was not measured"
TRIALS_OF_LENGTH = MIN_DEPTHS * MIN_TRIALS  # at least
MAX_TRIALS_OF_LENGTH = 5 * TRIALS_OF_LENGTH
SHORTEST = 256  # tokens of the shortest text by default, or a quarter of the longest if fewer
MAX_LENGTHS = 6  # by default
TIMED_SHARE = 0.03  # of the budget, for the text by which the time of others is predicted
OVERTIME = 1.2  # times the budget, after which nothing more is read

# The trials of texts, by group of tasks, length and index.
Found = dict[tuple[int, int, int], list[Answer]]


@dataclass
class EffectiveTask(Task):
    """What a model is asked about texts of several lengths, and what it found so far.

    Tasks of later groups that it cannot do in the shortest texts are not asked about longer ones.
    """

    groups: tuple[Trials, ...]  # of tasks that share their texts
    lengths: tuple[int, ...]  # shortest first
    budget: int  # seconds
    seconds: Mapping[int, float]  # about how long a text of a group takes, by length
    planning_seconds: float  # that are part of the budget
    notes: tuple[str, ...]
    # What is read: `groups` by index, and texts by length. `measure` chooses it, or another task
    # has, so that several models read the same texts.
    schedule: Schedule | None = None
    scheduled_groups: tuple[int, ...] = ()
    found: Found = field(default_factory=dict)

    @cached_property
    def tokens(self) -> int:
        """The number of tokens that the model reads, as far as is known before it does."""
        budget = self.budget - self.planning_seconds
        schedule = self.schedule or self._choose_schedule(len(self.groups), budget)
        groups = self.scheduled_groups or range(len(self.groups))
        return self._tokens_of(schedule, groups)

    def _tokens_of(self, schedule: Schedule, groups: Sequence[int]) -> int:
        tokens = 0
        for group, length, _ in self._order(schedule, groups):
            tokens += self.groups[group].tokens(length)
        return tokens

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """For each text of the first group, whether each answer was found, as 0 or 1."""
        scores = list[NDArray[np.float64]]()
        for (group, _, _), trials in sorted(self.found.items(), key=lambda item: item[0]):
            if group == 0:
                scores.append(np.array([trial.is_found for trial in trials], np.float64))
        return tuple(scores)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Read texts within the budget, or as many as another model has read."""
        self.found = {}
        expected = self.tokens
        started = time.perf_counter()
        deadline = math.inf
        self._ask_later_groups()
        if self.schedule is None:
            groups = (0, *self._groups_that_are_found())
            spent = self.planning_seconds + time.perf_counter() - started
            self.schedule = self._choose_schedule(len(groups), self.budget - spent)
            self.scheduled_groups = groups
            deadline = started + OVERTIME * self.budget - self.planning_seconds
        total = self._tokens_of(self.schedule, self.scheduled_groups)
        read = 0
        for group, length, index in self._order(self.schedule, self.scheduled_groups):
            if (group, length, index) not in self.found:
                if time.perf_counter() > deadline:
                    self._cut_schedule()
                    break
                self.found[group, length, index] = self.groups[group].read(length, index)
            before = expected * read // total
            read += self.groups[group].tokens(length)
            advance(expected * read // total - before)
        advance(expected - expected * read // total)

    def _ask_later_groups(self) -> None:
        """Ask the questions of all groups but the first about their shortest texts."""
        for group in range(1, len(self.groups)):
            shortest = self._lengths_of(group)[0]
            for index in range(_minimum_texts(self.groups[group])):
                self.found[group, shortest, index] = self.groups[group].read(shortest, index)

    def _groups_that_are_found(self) -> Iterator[int]:
        """Yield the later groups of which enough is found in the shortest texts."""
        for group in range(1, len(self.groups)):
            shortest = [result.lengths[0] for result in self._results_of(group).values()]
            if any(one.accuracy >= THRESHOLD for one in shortest):
                yield group

    def _choose_schedule(self, groups: int, budget: float) -> Schedule:
        first = self.groups[0]
        return schedule_texts(
            {length: groups * seconds for length, seconds in self.seconds.items()},
            minimum=_minimum_texts(first),
            maximum=max(MAX_TRIALS_OF_LENGTH // first.trials_per_text, _minimum_texts(first)),
            budget=budget,
        )

    def _order(self, schedule: Schedule, groups: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return the groups, lengths and indices of texts, those that are needed most first."""
        order = list[tuple[bool, int, int, int]]()
        for group in groups:
            minimum = _minimum_texts(self.groups[group])
            for length in self._lengths_of(group):
                texts = schedule.texts.get(length, 0)
                if texts:
                    texts = max(texts, minimum)
                order += [(index >= minimum, length, index, group) for index in range(texts)]
        return [(group, length, index) for _, length, index, group in sorted(order)]

    def _lengths_of(self, group: int) -> list[int]:
        """Return the lengths that a group can be asked about, shortest first."""
        return [length for length in self.lengths if length >= self.groups[group].shortest]

    def _cut_schedule(self) -> None:
        """Reduce the schedule to the texts that were read, as the time is over."""
        assert self.schedule is not None
        texts = dict[int, int]()
        left_out = {*self.schedule.left_out}
        for length in self.schedule.texts:
            read = sum((0, length, index) in self.found for index in range(MAX_TRIALS_OF_LENGTH))
            if read >= _minimum_texts(self.groups[0]):
                texts[length] = read
            else:
                left_out.add(length)
        self.schedule = Schedule(
            texts=texts,
            left_out=tuple(sorted(left_out)),
            left_out_seconds=sum(
                _minimum_texts(self.groups[0]) * self.seconds[length] for length in left_out
            ),
        )

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures."""
        tasks = dict[str, TaskResult]()
        for group in range(len(self.groups)):
            tasks |= self._results_of(group)
        if not tasks:
            return {}
        first = self.groups[0]
        schedule = self.schedule or Schedule(texts={})
        effective = Effective(
            scoring="cosine rank" if isinstance(first, EncoderTrials) else "likelihood rank",
            max_len=self.lengths[-1],
            threshold=THRESHOLD,
            tasks=tasks,
            questions=first.trials_per_text,
            budget=self.budget,
            left_out=schedule.left_out,
            left_out_seconds=schedule.left_out_seconds,
        )
        return {"effective": effective}

    def _results_of(self, group: int) -> dict[str, TaskResult]:
        """Return the results of a group of tasks, at lengths with enough trials."""
        results = dict[str, TaskResult]()
        for task, chance in self.groups[group].chances.items():
            trials = self._trials_of(group, task)
            depths = count_depths([[depth for depth, _ in one] for one in trials.values()])
            if not trials or not depths:
                continue
            lengths = [
                LengthResult(
                    length=length,
                    texts=self._texts_read(group, length),
                    cells=tuple(make_cells(one, depths)),
                    chance=chance,
                )
                for length, one in trials.items()
            ]
            results[task] = TaskResult(chance=chance, lengths=tuple(lengths))
        return results

    def _texts_read(self, group: int, length: int) -> int:
        return sum((one, at) == (group, length) for one, at, _ in self.found)

    def _trials_of(self, group: int, task: str) -> dict[int, list[tuple[float, bool]]]:
        """Return the depths of trials and whether their answers were found, by length.

        Lengths that are not complete yet are left out.
        """
        trials = dict[int, list[tuple[float, bool]]]()
        for length in self.lengths:
            if self._texts_read(group, length) < _minimum_texts(self.groups[group]):
                continue
            found = list[tuple[float, bool]]()
            for (one, at, _), read in self.found.items():
                if (one, at) == (group, length):
                    found += [(trial.depth, trial.is_found) for trial in read if trial.task == task]
            trials[length] = found
        return trials


def _minimum_texts(trials: Trials) -> int:
    """Return how many texts of a length give enough trials."""
    return math.ceil(TRIALS_OF_LENGTH / trials.trials_per_text)


def effective_lengths(longest: int, shortest: int = SHORTEST // 2) -> tuple[int, ...]:
    """Return the lengths to measure: the longest, its half, and so on.

    Args:
        longest: The longest one.
        shortest: Texts have at least so many tokens.
    """
    lengths = [longest]
    shortest = max(shortest, min(SHORTEST, longest // 4))
    while len(lengths) < MAX_LENGTHS and lengths[-1] // 2 >= shortest:
        lengths.append(lengths[-1] // 2)
    return tuple(reversed(lengths))


def plan_effective(
    evaluator: Scorer | Embedder, text: Ids, longest: int, settings: Evaluate
) -> EffectiveTask:
    """Choose needles and lengths, and predict how long texts take from one of them.

    Args:
        evaluator: The model.
        text: What hides the needles, shape (k,).
        longest: Tokens of the longest text.
        settings: Its lengths, budget, seed and threads.

    Raises:
        DataError: The vocabulary has too few words for needles, or the text or the lengths are too
            short.
    """
    model = evaluator.model
    started = time.perf_counter()
    if isinstance(evaluator, Embedder):
        lengths, notes = _usable_lengths(settings, longest, 2 * HIDDEN_TOKENS)
        _check_passages(text, lengths[-1])
        groups: tuple[Trials, ...] = tuple(
            EncoderTrials(evaluator, text=text, seed=settings.seed, is_same_text=is_same_text)
            for is_same_text in (True, False)
        )
    else:
        words = find_words(model.tokenizer, model.name, text, settings.seed)
        form = NEEDLES_FORM if model.kind == CAUSAL else MASKED_FORM
        special = model.tokenizer.num_special
        lengths, notes = _usable_lengths(settings, longest, special + form.shortest_text(words))
        groups = tuple(_needle_groups(evaluator, words, text, lengths, settings.seed))
        if form == NEEDLES_FORM and len(groups) == 1:
            needed = special + POINTERS_FORM.shortest_text(words)
            note = f"Variable tracking was not measured: it needs at least {needed:,} tokens."
            notes = (*notes, note)
    with torch_threads(model.model, settings.threads):
        seconds = _time_texts(model.model, groups[0], lengths, settings.budget)
    return EffectiveTask(
        groups=groups,
        lengths=lengths,
        budget=settings.budget,
        seconds=seconds,
        planning_seconds=time.perf_counter() - started,
        notes=notes,
    )


def check_effective(
    tokenizer: TextTokenizer, name: str, text: Ids, longest: int, settings: Evaluate
) -> None:
    """Check that needles can be made for a language model that is not loaded yet.

    Args:
        tokenizer: Its tokenizer.
        name: The model, for messages.
        text: What hides the needles, or the start of it, shape (k,).
        longest: Tokens of the longest text.
        settings: Its lengths and seed.

    Raises:
        DataError: The vocabulary has too few words for needles, or all lengths are too short.
    """
    words = find_words(tokenizer, name, text, settings.seed)
    _usable_lengths(settings, longest, tokenizer.num_special + NEEDLES_FORM.shortest_text(words))


def _usable_lengths(
    settings: Evaluate, longest: int, shortest: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the lengths to measure, and a note on those requested that are too short.

    Raises:
        DataError: All of them are.
    """
    requested = tuple(sorted({*settings.length})) or effective_lengths(longest, shortest)
    lengths = tuple(length for length in requested if length >= shortest)
    if not lengths:
        message = f"{NOT_MEASURED}: it needs texts of at least {shortest:,} tokens."
        raise DataError(message, f"Pass --length {shortest} or more.")
    if len(lengths) == len(requested):
        return lengths, ()
    listed = ", ".join(f"{length:,}" for length in requested if length < shortest)
    return lengths, (f"{NOT_MEASURED} at {listed} tokens: it needs at least {shortest:,}.",)


def _check_passages(text: Ids, longest: int) -> None:
    """Raise DataError if a text is too short for the longest text, or for passages from it."""
    needed = max(longest, PASSAGES * HIDDEN_TOKENS)
    if len(text) < needed:
        message = (
            f"{NOT_MEASURED}: passages and texts of {longest:,} tokens need {needed:,} tokens, and "
            f"the text has {len(text):,}."
        )
        raise DataError(message, "Pass more text with --data.")


def _needle_groups(
    scorer: Scorer, words: NeedleWords, text: Ids, lengths: Sequence[int], seed: int
) -> Iterator[Trials]:
    """Yield the trials of a language model: of needles, and of pointers to them if they fit."""
    special = scorer.model.tokenizer.num_special

    def texts(form: NeedleForm) -> tuple[NeedleTexts, int]:
        needed = special + form.shortest_text(words)
        shortest = min(length for length in lengths if length >= needed)
        needles = form.count_needles(words, shortest - special)
        return NeedleTexts(words, text, needles=needles, seed=seed, form=form), shortest

    if scorer.model.kind != CAUSAL:
        about_masks, shortest = texts(MASKED_FORM)
        yield MaskedTrials(scorer, about_masks, shortest=shortest)
        return
    cache = find_cache(scorer)
    for form in (NEEDLES_FORM, POINTERS_FORM):
        if lengths[-1] < special + form.shortest_text(words):
            continue
        asked, shortest = texts(form)
        yield CausalTrials(scorer, asked, cache=cache, shortest=shortest, longest=lengths[-1])


def _time_texts(
    model: Any, trials: Trials, lengths: Sequence[int], budget: int
) -> dict[int, float]:
    """Return about how long a text takes, by length.

    Texts of growing lengths are read until one takes a share of the budget.
    """
    trials.read(lengths[0], 0)  # warms up
    timed = dict[int, float]()
    for length in lengths:
        started = time.perf_counter()
        trials.read(length, 0)
        timed[length] = time.perf_counter() - started
        if timed[length] > TIMED_SHARE * budget:
            break
    operations = {length: forward_operations(model, length) for length in lengths}
    return predict_seconds(operations, timed)
