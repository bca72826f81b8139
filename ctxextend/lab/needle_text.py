"""Texts that hide needles, and the questions about them.

Three tasks after RULER (Hsieh et al. 2024, arXiv:2404.06654, section 3), which lets instruction
models generate the answers. Here the likelihood of the right answer is ranked among those of wrong
ones, as base models and small ones can be measured so too:

- ``needle`` (its "single needle"): the value of a key, among words that are not in the text.
- ``key`` ("multi-key"): the value of a key, among the values of other needles of the text.
- ``tracking`` ("variable tracking"): each key has a pointer, a line that gives another key this key
  as its value. The value at the end of the chain is asked for, among those of other chains, after
  two chains with their answers.

All needles of a text are in it at the same time: a model reads the text once and answers all
questions about it. Pointers are in separate texts, as they make the other tasks harder.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ctxextend.held_out import Ids
from ctxextend.lab.needles import RIVALS, NeedleWords

NEEDLE = "needle"
KEY = "key"
TRACKING = "tracking"
MAX_NEEDLES = 24  # of a text
MIN_NEEDLES = 6  # fewer leave too few rivals
SOLVED = 2  # chains with their answers before a question about another one
ABSENT_WORDS = 2 * RIVALS  # from which the rivals of a question are drawn, at least
WORDS_OF_LONG_KEYS = 12  # of which all keys of several words are made
STATEMENTS_SHARE = 0.6  # of the shortest text, at most, are needles and pointers


@dataclass(frozen=True)
class NeedleForm:
    """What texts with needles ask about, and where."""

    has_pointers: bool  # whether pointers are asked about, instead of needles
    is_masked: bool  # whether a text ends with all questions and their masked answers

    def tokens_per_needle(self, words: NeedleWords) -> int:
        """Return how many tokens of a text each needle takes, with all that belongs to it."""
        tokens = words.needle_tokens
        if self.has_pointers:
            tokens += words.pointer_tokens
        if self.is_masked:
            tokens += words.needle_tokens
        return tokens

    def question_tokens(self, words: NeedleWords) -> int:
        """Return the number of tokens of a question after the text, with the solved chains."""
        if self.is_masked:
            return 0
        if self.has_pointers:
            return SOLVED * words.needle_tokens + words.question_tokens
        return words.question_tokens

    def shortest_text(self, words: NeedleWords) -> int:
        """Return how many tokens a text with the fewest needles has at least."""
        tokens = MIN_NEEDLES * self.tokens_per_needle(words) + self.question_tokens(words)
        return math.ceil(tokens / STATEMENTS_SHARE)

    def count_needles(self, words: NeedleWords, shortest: int) -> int:
        """Return how many needles fit texts of at least so many tokens; 0 if too few do."""
        available = STATEMENTS_SHARE * shortest - self.question_tokens(words)
        fitting = int(available / self.tokens_per_needle(words))
        of_words = len(words.as_key) - ABSENT_WORDS
        if words.key_words == 1:
            of_words //= 3  # a key, a pointer and a value
        else:
            of_words -= WORDS_OF_LONG_KEYS
        count = min(fitting, of_words, MAX_NEEDLES)
        return count if count >= MIN_NEEDLES else 0


NEEDLES_FORM = NeedleForm(has_pointers=False, is_masked=False)
POINTERS_FORM = NeedleForm(has_pointers=True, is_masked=False)
MASKED_FORM = NeedleForm(has_pointers=False, is_masked=True)


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
        return np.concatenate([[self.answer], *self.rivals.values()]).astype(np.int64)


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
    needles: int  # of each text
    seed: int
    form: NeedleForm

    @property
    def chances(self) -> dict[str, float]:
        """The accuracy of guessing, by task."""
        if self.form.has_pointers:
            return {TRACKING: 1 / (1 + min(RIVALS, self.needles - 1 - SOLVED))}
        return {NEEDLE: 1 / (1 + RIVALS), KEY: 1 / (1 + min(RIVALS, self.needles - 1))}

    def text(self, length: int, index: int) -> NeedleText:
        """Return a text that has, with its questions but without special tokens, so many tokens.

        Each index is another text, for the seed and the length.
        """
        random = np.random.default_rng((self.seed, length, index))
        size = length - self.form.question_tokens(self.words)
        size -= self.needles * self.form.tokens_per_needle(self.words)
        start = int(random.integers(len(self.haystack) - size + 1))
        haystack = self.haystack[start : start + size]
        keys, pointers, values, absent = self._draw_words(random, haystack)

        statements = []  # position in the haystack, and tokens
        depths = np.linspace(0, 1, self.needles)
        for i, depth in enumerate(depths):
            position = round(depth * size)
            statements.append((position, self.words.line(keys[i], values[i : i + 1])))
            if self.form.has_pointers:
                later = int(random.integers(position, size + 1))
                statements.append((later, self.words.line(pointers[i], keys[i])))
        questions = []
        for i, depth in enumerate(depths):
            # Each question has other rivals: what a model prefers, whatever it reads, is none of
            # them more often than the answer.
            if self.form.has_pointers:
                solved = random.choice(np.delete(np.arange(self.needles), i), SOLVED, replace=False)
                lines = [self.words.line(pointers[j], values[j : j + 1]) for j in solved]
                ids = np.concatenate([*lines, self.words.question(pointers[i])])
                rivals = {TRACKING: self._draw_rivals(random, np.delete(values, [i, *solved]))}
            else:
                ids = self.words.question(keys[i])
                rivals = {
                    NEEDLE: self._draw_rivals(random, absent),
                    KEY: self._draw_rivals(random, np.delete(values, i)),
                }
            answer = int(self.words.as_value[values[i]])
            questions.append(Question(depth=float(depth), ids=ids, answer=answer, rivals=rivals))
        return NeedleText(ids=_insert(haystack, statements), questions=tuple(questions))

    def _draw_words(self, random: np.random.Generator, haystack: Ids) -> tuple[Ids, Ids, Ids, Ids]:
        """Return words by index: of keys and pointers, (needles, key_words), values, and others.

        Words that the haystack does not contain come first.
        """
        words = self.words
        order = random.permutation(len(words.as_key))
        is_present = np.isin(words.as_value[order], haystack)
        is_present |= np.isin(words.as_key[order], haystack)
        absent = order[~is_present]
        order = np.concatenate([absent, order[is_present]])
        values = order[: self.needles]
        if words.key_words == 1:
            end = 3 * self.needles
            names = order[self.needles : end, None]
        else:
            end = self.needles + WORDS_OF_LONG_KEYS
            count = 2 * self.needles
            rows = dict[tuple[int, ...], None]()  # distinct sequences of words
            while len(rows) < count:
                drawn = random.choice(order[self.needles : end], words.key_words)
                rows[tuple(drawn.tolist())] = None
            names = np.array([*rows], np.int64)
        others = order[end : max(len(absent), end + ABSENT_WORDS)]
        return names[: self.needles], names[self.needles :], values, others

    def _draw_rivals(self, random: np.random.Generator, words: Ids) -> Ids:
        count = min(RIVALS, len(words))
        rivals: Ids = self.words.as_value[random.choice(words, count, replace=False)]
        return rivals


def _insert(haystack: Ids, statements: Sequence[tuple[int, Ids]]) -> Ids:
    """Return a haystack with statements at positions; those at one position keep their order."""
    parts = list[Ids]()
    end = 0
    for position, ids in sorted(statements, key=lambda statement: statement[0]):
        parts += [haystack[end:position], ids]
        end = position
    return np.concatenate([*parts, haystack[end:]])
