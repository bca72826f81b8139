"""Passkey retrieval: whether a model retrieves a number hidden in a long text.

Based on Mohtashami and Jaggi 2023 (Landmark Attention, arXiv:2305.16300), who let a model generate
the number. Here its loss is ranked among those of nine other numbers, which does not require
instruction tuning. For encoders as in Zhu et al. 2024 (LongEmbed, arXiv:2404.12096): the text with
the number is retrieved from among texts with other numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import Embedder, cosines
from ctxextend.evaluation.eval_model import MASKED, Task, TextTokenizer
from ctxextend.evaluation.evaluation_result import Passkey
from ctxextend.evaluation.losses import ScoredWindow, Scorer
from ctxextend.evaluation.retrieval import FIRST, score_rankings
from ctxextend.held_out import Ids

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
NUMBERS = 10  # candidates
# numbers per number of digits: tokenizers have either many with a single token or hardly any
MAX_TRIED = 300
# Trials per length and depth: ten hide each number once. An encoder embeds one text per number
# instead.
MIN_TRIALS, MAX_TRIALS = 4, 10
# Hidden sentence and question; an encoder's query is the sentence.
SENTENCE = "\nThe pass key is {}. Remember it.\n"
QUESTION = "\nWhat is the pass key? The pass key is {}.\n"
# Small byte-level vocabularies merge only some digits with the space before them; a quote prevents
# that.
SPELLINGS = ("{}", '"{}"')
BLANK = -1  # replaces the token of the number in token ids


@dataclass
class PasskeyTask(Task):
    """Passkeys, texts to hide them in, and the accuracy so far, which is too coarse to rank models
    by.
    """

    evaluator: Scorer | Embedder
    sentence: Ids  # hidden sentence, with a blank
    question: Ids  # at the end of the text, with a blank for the answer
    numbers: Ids  # the token of each number, shape (10,)
    filler: Ids  # surrounding text without special tokens, shape (k,), repeated as needed
    lengths: tuple[int, ...]  # context lengths in tokens, special tokens included, shortest first
    texts: int  # per length and depth: one per trial, or for an encoder one per number
    seed: int  # for numbers and filler
    notes: tuple[str, ...]
    cells: dict[tuple[int, float], float] = field(
        default_factory=dict
    )  # accuracy by length and depth

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""
        return sum(self.lengths) * len(DEPTHS) * self.texts

    def measure(self, advance: Callable[[int], None]) -> None:
        """Measure the accuracy at each length and depth.

        A language model retrieves the number if its loss is lower than that of each other number;
        an encoder if, of ten texts that differ only in the number, the right one is nearest to the
        sentence. Ties and NaN count as failures.
        """
        self.cells = {}
        for length in self.lengths:
            for depth in DEPTHS:
                if isinstance(self.evaluator, Embedder):
                    sentences = [_fill(self.sentence, token) for token in self.numbers]
                    size = length - self.evaluator.model.tokenizer.num_special - len(self.sentence)
                    before, after = self._around(length, depth, 0, size)
                    texts = self.evaluator.embed(
                        [np.concatenate([before, sentence, after]) for sentence in sentences]
                    )
                    similar = cosines(self.evaluator.embed(sentences), texts)
                    is_found = list(
                        score_rankings(similar, [{i: 1} for i in range(NUMBERS)])[FIRST]
                    )
                else:
                    losses = self.evaluator.losses(
                        [self.window(length, depth, trial) for trial in range(self.texts)]
                    )
                    answers = [self.answer(length, depth, trial) for trial in range(self.texts)]
                    is_found = [
                        all(row[i] < np.delete(row, i))
                        for i, row in zip(answers, losses, strict=True)
                    ]
                self.cells[length, depth] = float(np.mean(is_found))
                advance(length * self.texts)

    def window(self, length: int, depth: float, trial: int) -> ScoredWindow:
        """Return a text with a passkey and a question; the labels of its answer are the ten
        numbers.
        """
        model = self.evaluator.model
        tokenizer = model.tokenizer
        hidden = _fill(self.sentence, self.numbers[self.answer(length, depth, trial)])
        blank = int(np.argmin(self.question))
        # a causal model answers after the last token
        end = self.question[:blank]
        output = length - 1
        if model.kind == MASKED:
            end = np.concatenate(
                [_fill(self.question, tokenizer.tokenizer.mask_token_id), tokenizer.after]
            )
            output = length - len(end) + blank
        before, after = self._around(
            length, depth, trial, length - len(tokenizer.before) - len(hidden) - len(end)
        )
        ids = np.concatenate([tokenizer.before, before, hidden, after, end]).astype(np.int64)
        return ScoredWindow(ids, np.full(NUMBERS, output), self.numbers)

    def answer(self, length: int, depth: float, trial: int) -> int:
        """Return the index of the number that a trial hides; ten trials hide each number once."""
        # Each depth starts at another number, so that a model's favourite number does not fill a
        # column.
        order = np.random.default_rng((self.seed, length, trial // NUMBERS)).permutation(NUMBERS)
        return int(order[(trial + DEPTHS.index(depth) * NUMBERS // len(DEPTHS)) % NUMBERS])

    def _around(self, length: int, depth: float, trial: int, tokens: int) -> tuple[Ids, Ids]:
        """Return the text before and after the sentence, `tokens` in total, the same text at each
        depth.
        """
        start = int(np.random.default_rng((self.seed, length, trial)).integers(len(self.filler)))
        text = np.take(self.filler, np.arange(start, start + tokens), mode="wrap")
        cut = round(depth * tokens)
        return text[:cut], text[cut:]

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures; cells not measured yet are
        None.
        """
        if not self.cells:
            return {}
        rows = tuple(
            tuple(self.cells.get((length, depth)) for depth in DEPTHS) for length in self.lengths
        )
        how = "retrieval" if isinstance(self.evaluator, Embedder) else "loss rank"
        return {"passkey": Passkey(how, self.lengths, DEPTHS, rows, self.texts, 1 / NUMBERS)}


def plan_passkey(
    evaluator: Scorer | Embedder,
    filler: Ids,
    lengths: Sequence[int],
    *,
    tokens: int | None = None,
    seed: int = 0,
) -> PasskeyTask:
    """Choose ten single-token numbers, lengths and trials, to read about `tokens` in total; None:
    the maximum.
    """
    tokenizer = evaluator.model.tokenizer
    spellings = ((digits, spelling) for digits in (3, 2, 1) for spelling in SPELLINGS)
    prepared = next(
        filter(None, (_numbers(tokenizer, *spelling, seed) for spelling in spellings)), None
    )
    if prepared is None:
        raise DataError(
            "Passkey retrieval was skipped: the tokenizer has no ten numbers of one token each."
        )
    sentence, question, numbers = prepared
    needed = tokenizer.num_special + len(sentence) + len(question) + 1
    measured = tuple(sorted({length for length in lengths if length >= needed}))
    if not measured:
        raise DataError(
            f"Passkey retrieval was skipped: it needs texts of at least {needed} tokens."
        )
    skipped = ", ".join(f"{length:,}" for length in sorted(set(lengths)) if length < needed)
    notes = (
        (f"Passkey retrieval was skipped at {skipped} tokens: it needs at least {needed}.",)
        if skipped
        else ()
    )
    trials = MAX_TRIALS if tokens is None else tokens // (sum(measured) * len(DEPTHS))
    texts = NUMBERS if isinstance(evaluator, Embedder) else min(max(trials, MIN_TRIALS), MAX_TRIALS)
    return PasskeyTask(evaluator, sentence, question, numbers, filler, measured, texts, seed, notes)


def _numbers(
    tokenizer: TextTokenizer, digits: int, spelling: str, seed: int
) -> tuple[Ids, Ids, Ids] | None:
    """Return the sentence, the question and ten single-token numbers with so many digits; None if
    there are fewer.
    """
    low = 10 ** (digits - 1) if digits > 1 else 0
    drawn = np.random.default_rng(seed).permutation(np.arange(low, 10**digits))[:MAX_TRIED]
    texts = [spelling.format(number) for number in drawn]
    sentence, hidden = _template(
        [tokenizer.encode(SENTENCE.format(text)).tolist() for text in texts]
    )
    question, answers = _template(
        [tokenizer.encode(QUESTION.format(text)).tolist() for text in texts]
    )
    unknown = tokenizer.tokenizer.unk_token_id
    # The answer must be the same token as in the sentence, and a different token for each number.
    tokens = sorted(
        {token for i, token in hidden.items() if answers.get(i) == token and token != unknown}
    )
    if len(tokens) < NUMBERS:
        return None
    return (
        sentence,
        question,
        np.random.default_rng(seed).permutation(np.array(tokens, np.int64))[:NUMBERS],
    )


def _template(sentences: list[list[int]]) -> tuple[Ids, dict[int, int]]:
    """Return the ids that sentences share, with a blank, and by sentence the token of its number if
    it is only one.
    """
    start = _common_prefix(sentences)
    end = _common_prefix([ids[start:][::-1] for ids in sentences])
    numbers = {i: ids[start] for i, ids in enumerate(sentences) if len(ids) - start - end == 1}
    first = sentences[0]
    return np.array([*first[:start], BLANK, *first[len(first) - end :]], np.int64), numbers


def _common_prefix(rows: list[list[int]]) -> int:
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False)))


def _fill(template: Ids, token: int) -> Ids:
    return np.where(template == BLANK, token, template)
