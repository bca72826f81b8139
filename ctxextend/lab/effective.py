"""How far a model reads: what it finds in texts of growing lengths, at several depths."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError
from ctxextend.held_out import Ids
from ctxextend.lab.cached_text import find_cache
from ctxextend.lab.effective_result import (
    MIN_DEPTHS,
    MIN_TRIALS,
    THRESHOLD,
    Effective,
    LengthResult,
    TaskResult,
    count_depths,
    make_cells,
)
from ctxextend.lab.embedding import Embedder
from ctxextend.lab.eval_model import CAUSAL, ENCODER, MASKED, ModelFiles
from ctxextend.lab.needle_text import (
    MASKED_FORM,
    NEEDLES_FORM,
    POINTERS_FORM,
    NeedleForm,
    NeedleTexts,
)
from ctxextend.lab.needles import OTHER_MEASURE, NeedleWords, find_words
from ctxextend.lab.schedule import (
    Schedule,
    forward_operations,
    predict_seconds,
    schedule_texts,
)
from ctxextend.lab.scorer import Scorer
from ctxextend.lab.trials import (
    HIDDEN_TOKENS,
    PASSAGES,
    SHORTEST_OF_ENCODERS,
    Answer,
    CausalTrials,
    EncoderTrials,
    MaskedTrials,
    Trials,
)
from ctxextend.models.devices import torch_threads
from ctxextend.settings import Evaluate

NOT_MEASURED = "The effective length was not measured"
TRIALS_OF_LENGTH = MIN_DEPTHS * MIN_TRIALS  # at least
MAX_TRIALS_OF_LENGTH = 10 * TRIALS_OF_LENGTH
SHORTEST = 256  # tokens of the shortest text by default, or an eighth of the longest if fewer
MAX_LENGTHS = 6  # by default
TIMED_SHARE = 0.03  # of the budget, for the text by which the time of others is predicted
OVERTIME = 1.2  # times the budget, after which nothing more is read

# A text that is read: the group of tasks that are asked about it, its length and its index.
TextKey = tuple[int, int, int]


@dataclass
class EffectiveTask:
    """What a model is asked about texts of several lengths, and what it found so far.

    Tasks of later groups of which it finds too little in their shortest texts are not asked about
    longer ones.
    """

    groups: tuple[Trials, ...]  # of tasks that share their texts
    lengths: tuple[int, ...]  # shortest first
    budget: int  # seconds
    predicted: Mapping[int, float]  # about how many seconds a text of a group takes, by length
    planning_seconds: float  # that are part of the budget
    notes: tuple[str, ...]
    # What is read: `groups` by index, and texts by length. `measure` chooses it, or another task
    # has, so that several models read the same texts.
    schedule: Schedule | None = None
    scheduled_groups: tuple[int, ...] = ()
    found: dict[TextKey, list[Answer]] = field(default_factory=dict)
    seconds: dict[TextKey, float] = field(default_factory=dict)  # that texts have taken
    started: float | None = None

    base_tokens: ClassVar = 0  # that a base reads

    @cached_property
    def tokens(self) -> int:
        """The number of tokens that the model reads, as far as is known before it does."""
        if self.schedule is not None:
            return self._tokens_of(self._order(self.schedule.texts, self.scheduled_groups))
        schedule = self._schedule(self.predicted, len(self.groups), self._remaining())
        return self._tokens_of(self._order(schedule, range(len(self.groups))))

    def _tokens_of(self, order: Sequence[TextKey]) -> int:
        return sum(self.groups[group].tokens(length) for group, length, _ in order)

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """Whether the answers of the first group were found, as 0 or 1, by question.

        A sample has the question with the same number of a text of each length, so that differences
        between lengths do not count as chance. Lengths with more texts lose the others.
        """
        first = self.groups[0]
        lengths = sorted({length for group, length, _ in self.found if group == 0})
        texts = min((self._texts_read(0, length) for length in lengths), default=0)
        tasks = len(first.chances)
        scores = []
        for index in range(texts):
            found = [self.found[0, length, index] for length in lengths]
            for number in range(first.trials_per_text):
                question = slice(number * tasks, (number + 1) * tasks)
                answers = [answer.is_found for one in found for answer in one[question]]
                scores.append(np.array(answers, np.float64))
        return tuple(scores)

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Do nothing: no base is asked."""

    def measure(self, advance: Callable[[int], None]) -> None:
        """Read texts within the budget, or as many as another model has read."""
        self.found = {}
        self.seconds = {}
        self.started = time.perf_counter()
        # Later groups are asked about longer texts if enough is found in their shortest ones.
        groups = [0]
        for group in range(1, len(self.groups)):
            shortest = self._lengths_of(group)[0]
            for index in range(_minimum_texts(self.groups[group])):
                self.found[group, shortest, index] = self.groups[group].read(shortest, index)
            results = self._results_of(group).values()
            if any(result.lengths[0].accuracy >= THRESHOLD for result in results):
                groups.append(group)
        if self.schedule is not None:
            order = self._order(self.schedule.texts, self.scheduled_groups)
            self._read(order, self.tokens, advance, budget=math.inf)
            return
        self.scheduled_groups = tuple(groups)
        count = len(groups)
        needed = self._schedule(self.predicted, count, self._remaining(), is_minimal=True)
        order = self._order(needed, self.scheduled_groups)
        expected = min(self._tokens_of(order), self.tokens)
        self._read(order, expected, advance, budget=self.budget)
        # What was read tells better how many more texts the time suffices for.
        seconds = self._seconds_by_length()
        spent = sum(count * texts * seconds[length] for length, texts in needed.items())
        more = self._schedule(seconds, count, self._remaining() + spent)
        order = self._order(more, self.scheduled_groups)
        self._read(order, self.tokens - expected, advance, budget=self.budget)
        # Lengths with too few texts are left out.
        minimum = _minimum_texts(self.groups[0])
        texts_of = {length: self._texts_read(0, length) for length in self.lengths}
        left_out = tuple(length for length in self.lengths if texts_of[length] < minimum)
        missing = None
        for length in left_out:
            del texts_of[length]
            missing = (missing or 0) + count * minimum * seconds[length]
        self.schedule = Schedule(texts=texts_of, left_out=left_out, left_out_seconds=missing)

    def _remaining(self) -> float:
        spent = self.planning_seconds
        if self.started is not None:
            spent += time.perf_counter() - self.started
        return self.budget - spent

    def _schedule(
        self, seconds: Mapping[int, float], groups: int, budget: float, *, is_minimal: bool = False
    ) -> dict[int, int]:
        """Return how many texts of each length fit a budget, or only as many as it needs."""
        first = self.groups[0]
        minimum = _minimum_texts(first)
        most = max(MAX_TRIALS_OF_LENGTH // first.trials_per_text, minimum)
        return schedule_texts(
            {length: groups * one for length, one in seconds.items()},
            minimum=minimum,
            maximum=minimum if is_minimal else most,
            budget=budget,
        )

    def _order(self, counts: Mapping[int, int], groups: Sequence[int]) -> list[TextKey]:
        """Return texts, as many as there are of each length: those that are needed first."""
        order = list[tuple[bool, int, int, int]]()
        for group in groups:
            minimum = _minimum_texts(self.groups[group])
            for length in self._lengths_of(group):
                texts = counts.get(length, 0)
                if texts:
                    texts = max(texts, minimum)
                order += [(index >= minimum, length, index, group) for index in range(texts)]
        return [(group, length, index) for _, length, index, group in sorted(order)]

    def _lengths_of(self, group: int) -> list[int]:
        return [length for length in self.lengths if length >= self.groups[group].shortest]

    def _read(
        self,
        order: Sequence[TextKey],
        expected: int,
        advance: Callable[[int], None],
        *,
        budget: float,
    ) -> None:
        """Read those texts that were not read yet, until the budget is exceeded.

        The shortest ones that are needed are read in any case. `advance` gets `expected` tokens in
        all.
        """
        unread = [key for key in order if key not in self.found]
        total = self._tokens_of(unread)
        read = 0
        advanced = 0
        for key in unread:
            group, length, index = key
            is_first = length == self.lengths[0] and index < _minimum_texts(self.groups[group])
            if not is_first and self.budget - self._remaining() > OVERTIME * budget:
                break
            started = time.perf_counter()
            self.found[key] = self.groups[group].read(length, index)
            self.seconds[key] = time.perf_counter() - started
            read += self.groups[group].tokens(length)
            advance(expected * read // total - advanced)
            advanced = expected * read // total
        advance(expected - advanced)

    def _seconds_by_length(self) -> dict[int, float]:
        measured = {}
        for length in self.lengths:
            own = [one for (_, at, _), one in self.seconds.items() if at == length]
            if own:
                measured[length] = sum(own) / len(own)
        if not measured:
            return dict(self.predicted)
        longest = max(measured)
        ratio = measured[longest] / self.predicted[longest]
        return {length: ratio * one for length, one in self.predicted.items()} | measured

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
        results = dict[str, TaskResult]()
        for task, chance in self.groups[group].chances.items():
            trials = dict[int, list[tuple[float, bool]]]()  # depth, and whether found, by length
            for length in self.lengths:
                if self._texts_read(group, length) >= _minimum_texts(self.groups[group]):
                    trials[length] = []
            for (one, length, _), answers in self.found.items():
                if one == group and length in trials:
                    own = [answer for answer in answers if answer.task == task]
                    trials[length] += [(answer.depth, answer.is_found) for answer in own]
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


def _minimum_texts(trials: Trials) -> int:
    return math.ceil(TRIALS_OF_LENGTH / trials.trials_per_text)


def effective_lengths(longest: int, shortest: int = SHORTEST // 2) -> tuple[int, ...]:
    """Return the lengths to measure: the longest, its half, and so on.

    Args:
        longest: The longest one.
        shortest: Texts have at least so many tokens.
    """
    lengths = [longest]
    shortest = max(shortest, min(SHORTEST, longest // 8))
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
        lengths, notes = _usable_lengths(settings, longest, SHORTEST_OF_ENCODERS)
        needed = lengths[-1] + PASSAGES * HIDDEN_TOKENS
        if len(text) < needed:
            message = (
                f"{NOT_MEASURED}: passages and texts of {lengths[-1]:,} tokens need {needed:,} "
                f"tokens, and the text has {len(text):,}."
            )
            raise DataError(message, "Pass more text with --data.")
        # At most a quarter hides nothing; the passages must not be in what hides them.
        size = max(min(len(text) - lengths[-1], len(text) // 4), PASSAGES * HIDDEN_TOKENS)
        groups: tuple[Trials, ...] = tuple(
            EncoderTrials(
                evaluator, text[size:], text[:size], seed=settings.seed, is_same_text=is_same_text
            )
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
        predicted = _time_texts(model.model, groups[0], lengths, settings.budget)
    return EffectiveTask(
        groups=groups,
        lengths=lengths,
        budget=settings.budget,
        predicted=predicted,
        planning_seconds=time.perf_counter() - started,
        notes=notes,
    )


def check_effective(files: ModelFiles, text: Ids, longest: int, settings: Evaluate) -> None:
    """Check what can be known about a measurement before the model is loaded.

    Args:
        files: The model, which states its kind.
        text: What hides the needles, or the start of it, shape (k,).
        longest: Tokens of the longest text.
        settings: Its lengths and seed.

    Raises:
        DataError: The vocabulary has too few words for needles, or all lengths are too short.
    """
    if files.stated_kind == ENCODER:
        shortest = SHORTEST_OF_ENCODERS
    else:
        words = find_words(files.tokenizer, files.name, text, settings.seed)
        form = MASKED_FORM if files.stated_kind == MASKED else NEEDLES_FORM
        shortest = files.tokenizer.num_special + form.shortest_text(words)
    _usable_lengths(settings, longest, shortest)


def _usable_lengths(
    settings: Evaluate, longest: int, shortest: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    requested = tuple(sorted({*settings.length})) or effective_lengths(longest, shortest)
    lengths = tuple(length for length in requested if length >= shortest)
    if not lengths:
        message = f"{NOT_MEASURED}: it needs texts of at least {shortest:,} tokens."
        hint = f"Pass --length {shortest} or more."
        if longest < shortest and not settings.length:
            hint = OTHER_MEASURE
        raise DataError(message, hint)
    if len(lengths) == len(requested):
        return lengths, ()
    listed = ", ".join(f"{length:,}" for length in requested if length < shortest)
    return lengths, (f"{NOT_MEASURED} at {listed} tokens: it needs at least {shortest:,}.",)


def _needle_groups(
    scorer: Scorer, words: NeedleWords, text: Ids, lengths: Sequence[int], seed: int
) -> Iterator[Trials]:
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
    timed = {}
    for length in lengths:
        started = time.perf_counter()
        trials.read(length, 0)
        timed[length] = time.perf_counter() - started
        if timed[length] > TIMED_SHARE * budget:
            break
    operations = {length: forward_operations(model, length) for length in lengths}
    return predict_seconds(operations, timed)
