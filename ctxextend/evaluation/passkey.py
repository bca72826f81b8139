"""A number hidden somewhere in a long text, and whether a model finds it again.

The task is Mohtashami and Jaggi's (2023, Landmark Attention, arXiv:2305.16300), who let a model write the number; here
its loss is compared with that of nine others, which needs no model that follows instructions. For encoders it is that
of Zhu et al. (2024, LongEmbed, arXiv:2404.12096): the text that holds the number is looked for among others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import Embedder, ranks
from ctxextend.evaluation.eval_model import MASKED, TextTokenizer
from ctxextend.evaluation.evaluation_result import Passkey
from ctxextend.evaluation.losses import ScoredWindow, Scorer
from ctxextend.held_out import Ids

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)

NUMBERS = 10  # to choose from
TRIED = 300  # numbers of so many digits, at most: ten of one token are not rare, or hardly there
# Trials of a cell: with fewer, finding says little, and with ten each number is hidden once. An encoder has one, since
# it reads a text for each number.
MIN_TRIALS, MAX_TRIALS = 4, 10

# What is hidden, and what is asked; an encoder's query is the sentence itself.
SENTENCE = "\nThe pass key is {}. Remember it.\n"
QUESTION = "\nWhat is the pass key? The pass key is {}.\n"
# How a number is written: a small byte-level vocabulary joins some digits with the space in front of them, and not all.
SPELLINGS = ("{}", '"{}"')

BLANK = -1  # stands in the ids of a sentence for the token of a number


@dataclass
class PasskeyTask:
    """What is hidden, in what, and how it is asked for; and the shares that were found so far."""

    reader: Scorer | Embedder
    sentence: Ids  # what is hidden, with a blank
    question: Ids  # at the end of the text, where a model answers, with a blank
    numbers: Ids  # the tokens of the ten numbers, shape (10,)
    filler: Ids  # the text around it, without special tokens, shape (k,); at its end it starts over
    lengths: tuple[int, ...]  # tokens of the texts, special tokens included, the shortest first
    texts: int  # that a model reads for a cell: a trial each, of an encoder one for each number
    seed: int  # of numbers and fillers
    notes: tuple[str, ...]
    cells: dict[tuple[int, float], float] = field(default_factory=dict)  # share that was found, by length and depth

    @property
    def tokens(self) -> int:
        """Tokens that the model reads."""
        return sum(self.lengths) * len(DEPTHS) * self.texts

    def measure(self, advance: Callable[[int], None]) -> None:
        """Look for the number in every cell.

        A language model finds it where its loss is less than each other's; an encoder each of ten texts, equal but for
        their numbers, where it is the nearest to the sentence with its number. Ties and NaN are not found.
        """
        self.cells = {}
        for length in self.lengths:
            for depth in DEPTHS:
                if isinstance(self.reader, Embedder):
                    sentences = [_fill(self.sentence, token) for token in self.numbers]
                    room = length - self.reader.model.tokenizer.num_special - len(self.sentence)
                    before, after = self._around(length, depth, 0, room)
                    texts = self.reader.vectors([np.concatenate([before, one, after]) for one in sentences])
                    found = list(ranks(self.reader.vectors(sentences), texts, np.arange(NUMBERS)) == 1)
                else:
                    losses = self.reader.losses([self.window(length, depth, trial) for trial in range(self.texts)])
                    answers = [self.answer(length, depth, trial) for trial in range(self.texts)]
                    found = [all(row[i] < np.delete(row, i)) for i, row in zip(answers, losses, strict=True)]
                self.cells[length, depth] = float(np.mean(found))
                advance(length * self.texts)

    def window(self, length: int, depth: float, trial: int) -> ScoredWindow:
        """Return a text with a number and a question, and the ten numbers as labels of the place of the answer."""
        model = self.reader.model
        tokenizer = model.tokenizer
        hidden = _fill(self.sentence, self.numbers[self.answer(length, depth, trial)])
        asked = int(np.argmin(self.question))  # where the blank is
        end, place = self.question[:asked], length - 1  # where a causal model answers: the last token it reads
        if model.kind == MASKED:
            end = np.concatenate([_fill(self.question, tokenizer.tokenizer.mask_token_id), tokenizer.after])
            place = length - len(end) + asked
        before, after = self._around(length, depth, trial, length - len(tokenizer.before) - len(hidden) - len(end))
        ids = np.concatenate([tokenizer.before, before, hidden, after, end]).astype(np.int64)
        return ScoredWindow(ids, np.full(NUMBERS, place), self.numbers)

    def answer(self, length: int, depth: float, trial: int) -> int:
        """Return which of the ten numbers a trial hides; in ten trials each has its turn."""
        # Depths begin with different ones, so that a number which a model always prefers fills no column.
        order = np.random.default_rng((self.seed, length, trial // NUMBERS)).permutation(NUMBERS)
        return int(order[(trial + DEPTHS.index(depth) * NUMBERS // len(DEPTHS)) % NUMBERS])

    def _around(self, length: int, depth: float, trial: int, tokens: int) -> tuple[Ids, Ids]:
        """Return the text before and after what is hidden, `tokens` together, the same text at every depth."""
        start = int(np.random.default_rng((self.seed, length, trial)).integers(len(self.filler)))
        text = np.take(self.filler, np.arange(start, start + tokens), mode="wrap")
        cut = round(depth * tokens)
        return text[:cut], text[cut:]

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that was measured; cells that were not are None."""
        if not self.cells:
            return {}
        rows = tuple(tuple(self.cells.get((length, depth)) for depth in DEPTHS) for length in self.lengths)
        how = "retrieval" if isinstance(self.reader, Embedder) else "loss rank"
        return {"passkey": Passkey(how, self.lengths, DEPTHS, rows, self.texts, 1 / NUMBERS)}


def plan_passkey(
    reader: Scorer | Embedder, filler: Ids, lengths: Sequence[int], *, tokens: int | None = None, seed: int = 0
) -> PasskeyTask:
    """Find ten numbers that are one token each, with as many digits as ten have, and the lengths that are long enough.

    `filler` is the user's text, shape (k,), k ≥ 1; `tokens` are those to read in all cells, about, None is the most.
    """
    tokenizer = reader.model.tokenizer
    spelled = ((digits, spelling) for digits in (3, 2, 1) for spelling in SPELLINGS)
    found = next((found for way in spelled if (found := _numbers(tokenizer, *way, seed)) is not None), None)
    if found is None:
        raise DataError("The passkey was not measured: the tokenizer has no ten numbers of one token each.")
    sentence, question, numbers = found
    needed = tokenizer.num_special + len(sentence) + len(question) + 1
    fitting = tuple(sorted({length for length in lengths if length >= needed}))
    if not fitting:
        raise DataError(f"The passkey was not measured: it needs texts of {needed} tokens or more.")
    left_out = ", ".join(f"{length:,}" for length in sorted(set(lengths)) if length < needed)
    notes = (f"The passkey was not measured at {left_out} tokens: it needs {needed}.",) if left_out else ()
    trials = MAX_TRIALS if tokens is None else tokens // (sum(fitting) * len(DEPTHS))
    texts = NUMBERS if isinstance(reader, Embedder) else min(max(trials, MIN_TRIALS), MAX_TRIALS)
    return PasskeyTask(reader, sentence, question, numbers, filler, fitting, texts, seed, notes)


def _numbers(tokenizer: TextTokenizer, digits: int, spelling: str, seed: int) -> tuple[Ids, Ids, Ids] | None:
    """Return the sentence, the question and ten numbers of so many digits; None where there are no ten."""
    low = 10 ** (digits - 1) if digits > 1 else 0
    drawn = np.random.default_rng(seed).permutation(np.arange(low, 10**digits))[:TRIED]
    texts = [spelling.format(number) for number in drawn]
    sentence, hidden = _template([tokenizer.encode(SENTENCE.format(text)).tolist() for text in texts])
    question, asked = _template([tokenizer.encode(QUESTION.format(text)).tolist() for text in texts])
    unknown = tokenizer.tokenizer.unk_token_id
    # What is asked for must be the token that was hidden, and no other number's.
    tokens = sorted({token for i, token in hidden.items() if asked.get(i) == token and token != unknown})
    if len(tokens) < NUMBERS:
        return None
    return sentence, question, np.random.default_rng(seed).permutation(np.array(tokens, np.int64))[:NUMBERS]


def _template(sentences: list[list[int]]) -> tuple[Ids, dict[int, int]]:
    """Return what sentences share that differ in one number, and the tokens between, by sentence, where it is one."""
    start = _common(sentences)
    end = _common([ids[start:][::-1] for ids in sentences])
    between = {i: ids[start] for i, ids in enumerate(sentences) if len(ids) - start - end == 1}
    first = sentences[0]
    return np.array([*first[:start], BLANK, *first[len(first) - end :]], np.int64), between


def _common(rows: list[list[int]]) -> int:
    """Return how many elements all rows start with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False)))


def _fill(template: Ids, token: int) -> Ids:
    """Return ids with a token in the place of the blank."""
    return np.where(template == BLANK, token, template)
