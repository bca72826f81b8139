"""Trials: texts, what is asked about them, and whether the right answer ranks first."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError
from ctxextend.held_out import Ids
from ctxextend.lab.cached_text import answer_in_pass, answer_questions, find_cache
from ctxextend.lab.embedding import cosines
from ctxextend.lab.eval_model import CAUSAL, ENCODER, MASKED
from ctxextend.lab.needle_text import NeedleTexts, Question
from ctxextend.lab.needles import find_words
from ctxextend.lab.texts import join_documents, refuse_short_text

if TYPE_CHECKING:
    from ctxextend.lab.reader import Reader
    from ctxextend.lab.texts import Texts

# Whether the right answer of each question ranks first, as 0 or 1, by task; ties and NaN do not.
Answers = Mapping[str, NDArray[np.float64]]

# The task of encoders, after the needles of LongEmbed (Zhu et al. 2024, arXiv:2404.12096, section
# 3): which of several texts has a passage, if they differ only in it.
PASSAGE = "passage"
PASSAGES = 10  # texts that are ranked, each with a passage
HIDDEN_TOKENS = 64
# Where the passages of the first texts are, of the second ones, and so on.
PASSAGE_DEPTHS = (0.0, 1.0, 0.5, 0.25, 0.75)
DEPTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # that divide texts into ranges
MIN_TRIALS = 8  # of a range of depths, at least
LENGTHS = 4  # the longest, its half, and so on


@dataclass(frozen=True)
class Trials:
    """What a model is asked about texts."""

    chances: Mapping[str, float]  # share of right answers by guessing, by task
    lengths: tuple[int, ...]  # tokens of texts, special tokens included, shortest first
    texts: int  # of each length
    ranges: NDArray[np.int64]  # index of the range of depths of each question of all texts
    read: Callable[[int, int], Answers]  # the text of a length with an index


def open_trials(reader: "Reader", texts: "Texts") -> Trials:
    """Return what a model is asked: a language model about needles, an encoder about passages.

    Raises:
        DataError: The vocabulary has too few words for needles, or the text or the longest length
            is too short.
    """
    tokenizer = reader.model.tokenizer
    special = tokenizer.num_special
    text = join_documents(texts.documents, tokenizer.separator)
    needed = texts.length - special
    if reader.kind == ENCODER:
        needed += PASSAGES * HIDDEN_TOKENS
    if len(text) < needed:
        refuse_short_text(len(text), needed)
    if reader.kind == ENCODER:
        # At most a quarter hides nothing; the passages must not be in what hides them.
        size = max(min(len(text) - texts.length, len(text) // 4), PASSAGES * HIDDEN_TOKENS)
        return Trials(
            chances={PASSAGE: 1 / PASSAGES},
            lengths=_lengths(texts.length, 2 * HIDDEN_TOKENS),
            texts=len(PASSAGE_DEPTHS),
            ranges=_ranges(np.repeat(PASSAGE_DEPTHS, PASSAGES)),
            read=partial(_read_passages, reader, text[size:], text[:size], texts.seed),
        )
    words = find_words(tokenizer, reader.model.name, text, texts.seed)
    form = NeedleTexts(words, text, texts.seed, is_masked=reader.kind == MASKED)
    lengths = _lengths(texts.length, special + form.shortest)
    form = form.with_most_needles(lengths[0] - special)
    questions = form.text(lengths[0], 0).questions
    ranges = _ranges(np.array([question.depth for question in questions]))
    count = math.ceil(MIN_TRIALS / np.bincount(ranges).min())
    cache = None
    if reader.kind == CAUSAL and not reader.is_dry:
        cache = find_cache(reader.scorer, text, questions)
    return Trials(
        chances={task: 1 / (1 + len(rivals)) for task, rivals in questions[0].rivals.items()},
        lengths=lengths,
        texts=count,
        ranges=np.tile(ranges, count),
        read=partial(_read_needles, reader, form, cache),
    )


def _lengths(longest: int, shortest: int) -> tuple[int, ...]:
    if longest < shortest:
        message = f"The effective length needs texts of at least {shortest:,} tokens."
        raise DataError(message, f"Pass --length {shortest} or more, or another --measure.")
    halves = [longest >> times for times in reversed(range(LENGTHS))]
    return tuple(length for length in halves if length >= shortest)


def _ranges(depths: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.digitize(depths, DEPTHS[1:-1])


def _read_needles(
    reader: "Reader", needle_texts: NeedleTexts, cache: str | None, length: int, index: int
) -> Answers:
    """Let a language model answer the questions of a text."""
    if reader.is_dry:
        reader.advance(length)
        return {}
    tokenizer = reader.model.tokenizer
    size = length - len(tokenizer.before)
    if needle_texts.is_masked:
        size -= len(tokenizer.after)
    text = needle_texts.text(size, index)
    ids = [*tokenizer.before, *text.ids]
    if needle_texts.is_masked:
        # All questions are at the end of the text, and one pass answers them.
        masked = dict[int, Question]()
        for question in text.questions:
            ids += question.ids.tolist()
            masked[len(ids)] = question
            ids += [tokenizer.tokenizer.mask_token_id, *needle_texts.words.after]
        logits = answer_in_pass(reader.scorer, np.array([*ids, *tokenizer.after]), masked)
    else:
        logits = answer_questions(reader.scorer, cache, np.array(ids), text.questions)
    scores = np.stack([*logits])
    reader.advance(length)
    answers = {}
    start = 1
    for task, rivals in text.questions[0].rivals.items():
        stop = start + len(rivals)
        answers[task] = np.all(scores[:, :1] > scores[:, start:stop], axis=1).astype(np.float64)
        start = stop
    return answers


def _read_passages(
    reader: "Reader", haystack: Ids, hidden: Ids, seed: int, length: int, index: int
) -> Answers:
    """Let an encoder retrieve the texts that contain passages, all at the same depth."""
    random = np.random.default_rng((seed, length, index))
    size = length - reader.model.tokenizer.num_special - HIDDEN_TOKENS
    start = random.integers(len(haystack) - size + 1)
    text = haystack[start : start + size]
    # Passages that do not overlap.
    count = len(hidden) // HIDDEN_TOKENS
    cuts = hidden[: count * HIDDEN_TOKENS].reshape(count, HIDDEN_TOKENS)
    passages = [*cuts[random.permutation(count)[:PASSAGES]]]
    at = round(PASSAGE_DEPTHS[index] * size)
    texts = [np.insert(text, at, passage) for passage in passages]
    scores = np.stack([*cosines(reader.embed([*passages]), reader.embed(texts))])
    others = np.sum(scores < scores.diagonal()[:, None], axis=1)  # that rank below the right one
    return {PASSAGE: (others == PASSAGES - 1).astype(np.float64)}
