"""A number hidden somewhere in a long text, and whether a model finds it again.

The task is Mohtashami and Jaggi's (2023, Landmark Attention, arXiv:2305.16300), who let a model write the number; here
its loss is compared with that of nine others, which needs no model that follows instructions. For encoders it is that
of Zhu et al. (2024, LongEmbed, arXiv:2404.12096): the text that holds the number is looked for among others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.embedding import Embedder, ranks
from ctxextend.evaluation.eval_model import CAUSAL, ENCODER, MASKED, EvalModel, TextTokenizer
from ctxextend.evaluation.evaluation_result import Passkey
from ctxextend.evaluation.scoring import ScoredWindow, Scorer

Ids = NDArray[np.int64]

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)

# How many numbers there are to choose from.
NUMBERS = 10

# How many numbers of so many digits are tried at most: ten of one token are not rare, or hardly there.
TRIED = 300

# Trials of a cell by default: each number once, and one of encoders, which read a text for each number.
TRIALS = {CAUSAL: 10, MASKED: 10, ENCODER: 1}
# With fewer, finding says little.
LEAST_TRIALS = 4

# What is hidden, and what is asked; an encoder's query is the sentence itself.
SENTENCE = "\nThe pass key is {}. Remember it.\n"
QUESTION = "\nWhat is the pass key? The pass key is {}.\n"

# How a number is written: a small byte-level vocabulary joins some digits with the space in front of them, and not all.
SPELLINGS = ("{}", '"{}"')


@dataclass(frozen=True)
class Template:
    """The ids of a sentence, `before` and `after` a place for one token."""

    before: Ids
    after: Ids

    def fill(self, token: int) -> Ids:
        """Return its ids, shape (len(before) + 1 + len(after),), with a token in its place."""
        return np.concatenate([self.before, [token], self.after])


class PasskeyTrial(NamedTuple):
    """One text of a cell: its tokens, where the number stands, and which trial of its cell it is, from 0."""

    length: int
    depth: float
    number: int


@dataclass(frozen=True)
class PasskeyTask:
    """What is hidden, in what, and how it is asked for."""

    kind: str  # of the model
    sentence: Template  # what is hidden
    question: Template  # at the end of the text, where a model answers
    numbers: Ids  # the tokens of the ten numbers, shape (10,)
    filler: Ids  # the text around it, without special tokens, shape (k,); at its end it starts over
    lengths: tuple[int, ...]  # tokens of the texts, special tokens included, the shortest first
    depths: tuple[float, ...]  # where the number stands, from 0, the start, to 1, the end
    trials: int  # of a cell
    seed: int  # of numbers and fillers
    notes: tuple[str, ...] = ()

    def tokens(self, length: int) -> int:
        """Return the tokens that a model reads for a cell of a length."""
        return length * self.trials * (NUMBERS if self.kind == ENCODER else 1)

    @property
    def all_tokens(self) -> int:
        """Tokens that a model reads for all cells."""
        return sum(map(self.tokens, self.lengths)) * len(self.depths)

    def answer(self, trial: PasskeyTrial) -> int:
        """Return which of the ten numbers a trial hides.

        In ten trials each has its turn, and depths begin with different ones: what a model always prefers finds
        nothing.
        """
        order = np.random.default_rng((self.seed, trial.length, trial.number // NUMBERS)).permutation(NUMBERS)
        turn = trial.number + self.depths.index(trial.depth) * NUMBERS // len(self.depths)
        return int(order[turn % NUMBERS])

    def around(self, trial: PasskeyTrial, tokens: int) -> tuple[Ids, Ids]:
        """Return the text before and after what is hidden, `tokens` together, the same text at every depth."""
        start = int(np.random.default_rng((self.seed, trial.length, trial.number)).integers(len(self.filler)))
        text = np.take(self.filler, np.arange(start, start + tokens), mode="wrap")
        cut = round(trial.depth * tokens)
        return text[:cut], text[cut:]


def plan_passkey(
    model: EvalModel, filler: Ids, lengths: Sequence[int], *, tokens: int | None = None, seed: int = 0
) -> PasskeyTask | str:
    """Find ten numbers that are one token each, and choose the lengths that are long enough.

    The numbers have as many digits, up to three, as ten numbers of one token have.

    Args:
        model: The model; its tokenizer and kind decide.
        filler: The user's own text, ids without special tokens, shape (k,).
        lengths: Tokens of the texts, special tokens included; at most what the model reads at once.
        tokens: Tokens to read in all cells, about; None is as many as `TRIALS` take.
        seed: Random seed of numbers and fillers.

    Returns:
        The task, which `dataclasses.replace` gives other depths or trials; or why there is none.
    """
    tokenizer = model.tokenizer
    spelled = ((digits, spelling) for digits in (3, 2, 1) for spelling in SPELLINGS)
    found = next((found for way in spelled if (found := _numbers(tokenizer, *way, seed)) is not None), None)
    if found is None:
        return "The pass key was not measured: the tokenizer has no ten numbers of one token each."
    if len(filler) == 0:
        return "The pass key was not measured: there is no text to hide it in."
    sentence, question, numbers = found
    needed = tokenizer.num_special + len(sentence.fill(0)) + len(question.fill(0)) + 1
    fitting = tuple(sorted({length for length in lengths if length >= needed}))
    if not fitting:
        return f"The pass key was not measured: it needs texts of {needed} tokens or more."
    left_out = ", ".join(f"{length:,}" for length in sorted(set(lengths)) if length < needed)
    notes = (f"The pass key was not measured at {left_out} tokens: it needs {needed}.",) if left_out else ()
    task = PasskeyTask(model.kind, sentence, question, numbers, filler, fitting, DEPTHS, 1, seed, notes)
    most = TRIALS[model.kind]
    trials = most if tokens is None else min(max(tokens // task.all_tokens, LEAST_TRIALS), most)
    return replace(task, trials=trials)


def _numbers(tokenizer: TextTokenizer, digits: int, spelling: str, seed: int) -> tuple[Template, Template, Ids] | None:
    """Return the sentence, the question and ten numbers of so many digits; None where there are no ten."""
    low = 10 ** (digits - 1) if digits > 1 else 0
    drawn = np.random.default_rng(seed).permutation(np.arange(low, 10**digits))[:TRIED]
    texts = [spelling.format(number) for number in drawn]
    sentence, hidden = _template([tokenizer.encode(SENTENCE.format(text)) for text in texts])
    if len(hidden) < NUMBERS:
        return None
    question, asked = _template([tokenizer.encode(QUESTION.format(text)) for text in texts])
    unknown = tokenizer.tokenizer.unk_token_id
    # What is asked for must be the token that was hidden, and no other number's.
    tokens = sorted({token for i, token in hidden.items() if asked.get(i) == token and token != unknown})
    if len(tokens) < NUMBERS:
        return None
    return sentence, question, np.random.default_rng(seed).permutation(np.array(tokens, np.int64))[:NUMBERS]


def _template(sentences: list[Ids]) -> tuple[Template, dict[int, int]]:
    """Find what sentences have in common that differ in one number.

    Args:
        sentences: Ids of each.

    Returns:
        What all start and end with; and by their numbers the tokens of those that have just one token between.
    """
    start = _common([list(ids) for ids in sentences])
    end = _common([list(ids[start:][::-1]) for ids in sentences])
    between = {i: int(ids[start]) for i, ids in enumerate(sentences) if len(ids) - start - end == 1}
    first = sentences[0]
    return Template(first[:start], first[len(first) - end :]), between


def _common(rows: list[list[int]]) -> int:
    """Return how many elements all rows start with."""
    return next((i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), min(map(len, rows)))


def measure_passkey(task: PasskeyTask, reader: Scorer | Embedder) -> Iterator[tuple[int, float, float]]:
    """Look for the number, and yield the share of trials that found it, by length and depth, the shortest length first.

    Args:
        task: From `plan_passkey` of the reader's model.
        reader: A language model's scorer: the number is found where its loss is less than each other's. Or an encoder's
            embedder: each of ten texts, equal but for their numbers, is found where it is the nearest to the sentence
            with its number.
    """
    for length in task.lengths:
        for depth in task.depths:
            trials = [PasskeyTrial(length, depth, number) for number in range(task.trials)]
            if isinstance(reader, Embedder):
                found = [np.mean(_find_texts(task, reader, trial)) for trial in trials]
            else:
                found = [np.mean(_find_numbers(task, reader, trials))]
            yield length, depth, float(np.mean(found))


def _find_numbers(task: PasskeyTask, scorer: Scorer, trials: Sequence[PasskeyTrial]) -> list[bool]:
    """Return for each trial whether the hidden number has the least loss."""
    rows = scorer.losses([_window(task, scorer.model, trial) for trial in trials])
    answers = [task.answer(trial) for trial in trials]
    # Ties are not found, and neither is what is not a number.
    return [bool((row[answer] < np.delete(row, answer)).all()) for row, answer in zip(rows, answers, strict=True)]


def _window(task: PasskeyTask, model: EvalModel, trial: PasskeyTrial) -> ScoredWindow:
    """Return a text with a number and a question, and the ten numbers as labels of the place of the answer."""
    tokenizer = model.tokenizer
    hidden = task.sentence.fill(task.numbers[task.answer(trial)])
    end, place = task.question.before, trial.length - 1  # where a causal model answers: the last token that it reads
    if model.kind == MASKED:
        end = np.concatenate([task.question.fill(tokenizer.tokenizer.mask_token_id), tokenizer.after]).astype(np.int64)
        place = trial.length - len(end) + len(task.question.before)
    before, after = task.around(trial, trial.length - len(tokenizer.before) - len(hidden) - len(end))
    ids = np.concatenate([tokenizer.before, before, hidden, after, end]).astype(np.int64)
    return ScoredWindow(ids, np.full(NUMBERS, place), task.numbers)


def _find_texts(task: PasskeyTask, embedder: Embedder, trial: PasskeyTrial) -> NDArray[np.bool_]:
    """Return for each number whether the text that holds it is the nearest to its sentence, shape (10,)."""
    sentences = [task.sentence.fill(token) for token in task.numbers]
    special = embedder.model.tokenizer.num_special
    before, after = task.around(trial, trial.length - special - len(sentences[0]))
    texts = embedder.vectors([np.concatenate([before, sentence, after]) for sentence in sentences])
    found: NDArray[np.bool_] = ranks(embedder.vectors(sentences), texts, np.arange(NUMBERS)) == 1
    return found


def report_passkey(task: PasskeyTask, found: Mapping[tuple[int, float], float]) -> Passkey:
    """Return what was found, by length and depth; cells that were not measured are None."""
    rows = tuple(tuple(found.get((length, depth)) for depth in task.depths) for length in task.lengths)
    how = "retrieval" if task.kind == ENCODER else "loss rank"
    asked = NUMBERS if task.kind == ENCODER else 1  # of each text of an encoder's trial
    return Passkey(how, task.lengths, task.depths, rows, task.trials * asked, 1 / NUMBERS)
