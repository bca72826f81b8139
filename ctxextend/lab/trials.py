"""Trials at one length: a text, what is asked about it, and whether the answer ranks first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.held_out import Ids
from ctxextend.lab.cached_text import CacheUse, read_text
from ctxextend.lab.embedding import Embedder, cosines
from ctxextend.lab.needle_text import NeedleTexts, Question
from ctxextend.lab.scorer import ScoredWindow, Scorer

# Tasks of encoders, after the needles of LongEmbed (Zhu et al. 2024, arXiv:2404.12096, section 3):
# which of several texts has a passage, if they differ only in it, or if they are all different.
PASSAGE = "passage"
DOCUMENT = "document"
PASSAGES = 10  # texts that are ranked, each with a passage
HIDDEN_TOKENS = 64
SHORTEST_OF_ENCODERS = 2 * HIDDEN_TOKENS  # tokens of a text
MAX_ROWS = 4  # questions that are answered at once; more gain little on a CPU
# Where the passages of the first text are, of the second one, and so on: the ends first.
PASSAGE_DEPTHS = (0.0, 1.0, 0.5, 0.25, 0.75)


@dataclass(frozen=True)
class Answer:
    """A question, and whether the model ranks the right answer first; ties and NaN do not count."""

    task: str
    depth: float  # of what was asked about, from 0 (start) to 1 (end of the text)
    is_found: bool


@dataclass(frozen=True)
class NeedleTrials:
    """Questions about needles, which a language model answers."""

    scorer: Scorer
    texts: NeedleTexts
    shortest: int  # tokens of the shortest text, special tokens included

    @property
    def chances(self) -> dict[str, float]:
        """The accuracy of guessing, by task."""
        return self.texts.chances

    @property
    def trials_per_text(self) -> int:
        """The number of trials of each task that a text gives."""
        return self.texts.needles


@dataclass(frozen=True)
class CausalTrials(NeedleTrials):
    """Questions that a causal model answers after a text."""

    # How a text is read once with a cache; None: it is read once for each question.
    cache: CacheUse | None
    longest: int  # tokens of the longest text: so many are cached at most

    def tokens(self, length: int) -> int:
        """Return how many tokens a model reads for one text of a length."""
        if self.cache is not None:
            return length
        return self.texts.needles * length

    def read(self, length: int, index: int) -> list[Answer]:
        """Read a text, and answer each question after it."""
        before = np.array(self.scorer.model.tokenizer.before, np.int64)
        text = self.texts.text(length - len(before), index)
        ids = np.concatenate([before, text.ids])
        found = list[Answer]()
        if self.cache is None:
            for question in text.questions:
                whole = np.concatenate([ids, question.ids])
                found += _rank_in_pass(self.scorer, whole, [question], [len(whole) - 1])
            return found
        cached_text = read_text(self.scorer, self.cache, ids, text.questions[0].ids)
        rows = min(max(self.longest // length, 1), MAX_ROWS)
        for start in range(0, len(text.questions), rows):
            asked = text.questions[start : start + rows]
            logits = cached_text.logits(
                [question.ids for question in asked], [question.labels for question in asked]
            )
            for question, scores in zip(asked, logits, strict=True):
                found += _rank(question, scores)
        return found


@dataclass(frozen=True)
class MaskedTrials(NeedleTrials):
    """Questions at the end of a text, whose answers are masked; one pass answers all of them."""

    def tokens(self, length: int) -> int:
        """Return how many tokens a model reads for one text of a length."""
        return length

    def read(self, length: int, index: int) -> list[Answer]:
        """Read a text that ends with all questions."""
        tokenizer = self.scorer.model.tokenizer
        words = self.texts.words
        text = self.texts.text(length - tokenizer.num_special, index)
        mask = np.array([tokenizer.tokenizer.mask_token_id], np.int64)
        parts = [text.ids]
        outputs = []
        end = len(tokenizer.before) + len(text.ids)
        for question in text.questions:
            parts += [question.ids, mask, words.after]
            outputs.append(end + len(question.ids))
            end += words.needle_tokens
        ids = tokenizer.add_special_tokens(np.concatenate(parts))
        return [*_rank_in_pass(self.scorer, ids, text.questions, outputs)]


@dataclass(frozen=True)
class EncoderTrials:
    """Passages by which an encoder retrieves the texts that contain them.

    The texts of a length and an index have their passages at the same depth.
    """

    embedder: Embedder
    haystack: Ids  # token ids without special tokens, shape (k,)
    hidden: Ids  # other tokens of the same text, of which passages are made
    seed: int
    is_same_text: bool  # whether texts differ only in their passages
    shortest: int = SHORTEST_OF_ENCODERS  # tokens, special tokens included

    trials_per_text: ClassVar = PASSAGES

    @property
    def chances(self) -> dict[str, float]:
        """The accuracy of guessing, by task."""
        return {PASSAGE if self.is_same_text else DOCUMENT: 1 / PASSAGES}

    def tokens(self, length: int) -> int:
        """Return how many tokens a model reads for an index."""
        return PASSAGES * (length + HIDDEN_TOKENS)

    def read(self, length: int, index: int) -> list[Answer]:
        """Embed texts and their passages."""
        random = np.random.default_rng((self.seed, length, index))
        size = length - self.embedder.model.tokenizer.num_special - HIDDEN_TOKENS
        depth = PASSAGE_DEPTHS[index % len(PASSAGE_DEPTHS)]
        starts = random.integers(len(self.haystack) - size + 1, size=PASSAGES)
        if self.is_same_text:
            starts = np.repeat(starts[:1], PASSAGES)
        # Passages that do not overlap.
        cuts = random.permutation(len(self.hidden) // HIDDEN_TOKENS)[:PASSAGES] * HIDDEN_TOKENS
        passages = [self.hidden[cut : cut + HIDDEN_TOKENS] for cut in cuts.tolist()]
        texts = []
        for start, passage in zip(starts.tolist(), passages, strict=True):
            cut = start + round(depth * size)
            parts = [self.haystack[start:cut], passage, self.haystack[cut : start + size]]
            texts.append(np.concatenate(parts))
        similar = cosines(self.embedder.embed(passages), self.embedder.embed(texts))
        task = next(iter(self.chances))
        answers = []
        for right, scores in enumerate(similar):
            is_first = bool(np.all(scores[right] > np.delete(scores, right)))
            answers.append(Answer(task, depth, is_first))
        return answers


Trials = CausalTrials | MaskedTrials | EncoderTrials


def _rank(question: Question, scores: NDArray[np.floating]) -> Iterator[Answer]:
    """Yield the trials of a question, from the scores of its labels; higher is likelier."""
    start = 1
    for task, rivals in question.rivals.items():
        stop = start + len(rivals)
        is_found = bool(np.all(scores[0] > scores[start:stop]))
        yield Answer(task=task, depth=question.depth, is_found=is_found)
        start = stop


def _rank_in_pass(
    scorer: Scorer, ids: Ids, questions: Sequence[Question], outputs: Sequence[int]
) -> Iterator[Answer]:
    """Yield the trials of questions in a text, all of which one pass answers.

    Args:
        scorer: The model.
        ids: The text with its questions, shape (k,).
        questions: The questions.
        outputs: For each, the index of the logits that predict its answer.
    """
    labels = [question.labels for question in questions]
    sizes = [len(one) for one in labels]
    window = ScoredWindow(
        input_ids=ids,
        outputs=np.repeat(np.array(outputs, np.int64), sizes),
        labels=np.concatenate(labels),
    )
    (losses,) = scorer.losses([window])
    for question, own in zip(questions, np.split(losses, np.cumsum(sizes)[:-1]), strict=True):
        yield from _rank(question, -own)
