"""Texts that hide needles, and the questions about them.

Two tasks after RULER (Hsieh et al. 2024, arXiv:2404.06654, section 3), which lets instruction
models generate the answers. Here the likelihood of the right answer is ranked among those of wrong
ones, as base models and small ones can be measured so too:

- ``needle`` (its "single needle"): the value of a key, among words that are not in the text.
- ``key`` ("multi-key"): the value of a key, among the values of other needles of the text.

All needles of a text are in it at the same time: a model reads the text once and answers all
questions about it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ctxextend.held_out import Ids
from ctxextend.lab.needles import RIVALS, NeedleWords

NEEDLE = "needle"
KEY = "key"
MAX_NEEDLES = 24  # of a text
MIN_NEEDLES = 6  # fewer leave too few rivals
ABSENT_WORDS = 2 * RIVALS  # from which the rivals of a question are drawn, at least
WORDS_OF_LONG_KEYS = 12  # of which all keys of several words are made
STATEMENTS_SHARE = 0.6  # of the shortest text, at most, are needles


@dataclass(frozen=True)
class Question:
    """A question about a text, and what its answer is ranked among."""

    depth: float  # of the needle, from 0 (start) to 1 (end of the text)
    ids: Ids  # tokens of the question, shape (k,)
    answer: int  # token
    rivals: Mapping[str, Ids]  # tokens of wrong answers, each of shape (r,), by task

    @property
    def labels(self) -> Ids:
        """The tokens to score: the answer, then the rivals of each task."""
        return np.concatenate([[self.answer], *self.rivals.values()])


@dataclass(frozen=True)
class NeedleText:
    """A text with needles, and questions about it."""

    ids: Ids  # without special tokens and questions, shape (k,)
    questions: tuple[Question, ...]  # by depth of their needles, all equally long


@dataclass(frozen=True)
class NeedleTexts:
    """Builds texts of any length with the same number of needles."""

    words: NeedleWords
    haystack: Ids  # token ids without special tokens, shape (k,)
    seed: int
    needles: int = MIN_NEEDLES  # of each text
    is_masked: bool = False  # whether a text ends with all questions and their masked answers

    @property
    def tokens(self) -> int:
        """How many tokens of a text are needles, what belongs to them, and questions."""
        each = self.words.needle_tokens
        after = self.words.question_tokens
        if self.is_masked:
            each += self.words.needle_tokens
            after = 0
        return self.needles * each + after

    @property
    def shortest(self) -> int:
        """How many tokens a text has at least."""
        return math.ceil(self.tokens / STATEMENTS_SHARE)

    def with_most_needles(self, shortest: int) -> "NeedleTexts":
        """Return texts with as many needles as one of so many tokens can have."""
        most = min(len(self.words.as_key) - ABSENT_WORDS - WORDS_OF_LONG_KEYS, MAX_NEEDLES)
        for needles in range(most, self.needles, -1):
            texts = replace(self, needles=needles)
            if texts.shortest <= shortest:
                return texts
        return self

    def text(self, length: int, index: int) -> NeedleText:
        """Return a text that has, with its questions but without special tokens, so many tokens.

        Each index is another text, for the seed and the length.
        """
        words = self.words
        random = np.random.default_rng((self.seed, length, index))
        size = length - self.tokens
        start = random.integers(len(self.haystack) - size + 1)
        haystack = self.haystack[start : start + size]
        keys, values, absent = self._draw_words(random, haystack)

        lines = []
        positions = []  # of lines in the haystack
        depths = np.linspace(0, 1, self.needles).tolist()
        for i, depth in enumerate(depths):
            position = round(depth * size)
            positions.append(position)
            lines.append(words.line(keys[i], values[i : i + 1]))
        spots = np.repeat(positions, [len(line) for line in lines])
        text = np.insert(haystack, spots, np.concatenate(lines))

        questions = []
        for i, depth in enumerate(depths):
            # Each question has other rivals: what a model prefers, whatever it reads, is none of
            # them more often than the answer.
            rivals = {
                NEEDLE: self._draw_rivals(random, absent),
                KEY: self._draw_rivals(random, np.delete(values, i)),
            }
            answer = int(words.as_value[values[i]])
            question = words.question(keys[i])
            questions.append(Question(depth=depth, ids=question, answer=answer, rivals=rivals))
        return NeedleText(ids=text, questions=tuple(questions))

    def _draw_words(self, random: np.random.Generator, haystack: Ids) -> tuple[Ids, Ids, Ids]:
        """Return words by index: of keys, shape (needles, key_words), values, and others.

        Words that the haystack does not contain come first.
        """
        words = self.words
        count = self.needles
        order = random.permutation(len(words.as_key))
        is_present = np.isin(words.as_value[order], haystack)
        is_present |= np.isin(words.as_key[order], haystack)
        order = np.concatenate([order[~is_present], order[is_present]])
        if words.key_words == 1:
            end = 2 * count  # a value and a key
            names = order[count:end, None]
        else:
            end = count + WORDS_OF_LONG_KEYS
            rows = dict[tuple[int, ...], None]()  # distinct sequences of words
            while len(rows) < count:
                drawn = random.choice(order[count:end], words.key_words)
                rows[tuple(drawn.tolist())] = None
            names = np.array([*rows], np.int64)
        absent = np.count_nonzero(~is_present)
        others = order[end : max(absent, end + ABSENT_WORDS)]
        return names, order[:count], others

    def _draw_rivals(self, random: np.random.Generator, words: Ids) -> Ids:
        count = min(RIVALS, len(words))
        rivals: Ids = self.words.as_value[random.choice(words, count, replace=False)]
        return rivals
