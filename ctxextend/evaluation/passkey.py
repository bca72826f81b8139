"""Passkey retrieval: whether a model retrieves a number hidden in a long text.

Based on Mohtashami and Jaggi 2023 (Landmark Attention, arXiv:2305.16300), who let a model generate
the number. Here its loss is ranked among those of nine other numbers, which does not require
instruction tuning. For encoders as in Zhu et al. 2024 (LongEmbed, arXiv:2404.12096): the text with
the number is retrieved from among texts with other numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import Embedder, cosines
from ctxextend.evaluation.eval_model import MASKED
from ctxextend.evaluation.evaluation_result import Passkey
from ctxextend.evaluation.retrieval import RECALL_AT_1, score_rankings
from ctxextend.evaluation.scorer import ScoredWindow, Scorer
from ctxextend.evaluation.task import Task
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.held_out import Ids

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
PASSKEYS = 10  # candidates
MAX_DIGITS = 3
# Numbers tried per number of digits: tokenizers have either many with a single token or hardly any.
MAX_TRIED = 300
# Trials per length and depth: ten hide each number once. An encoder embeds one text per number
# instead.
MIN_TRIALS = 4
MAX_TRIALS = 10
# Hidden sentence and question; an encoder's query is the sentence.
SENTENCE = "\nThe pass key is {}. Remember it.\n"
QUESTION = "\nWhat is the pass key? The pass key is {}.\n"
# Small byte-level vocabularies merge only some digits with the space before them; a quote prevents
# that.
SPELLINGS = ("{}", '"{}"')
BLANK = -1  # replaces the token of the number in token ids
SKIPPED_PASSKEY = "Passkey retrieval was skipped"


class Prompts(NamedTuple):
    """The texts of a passkey as token ids, and ten numbers of one token each."""

    sentence: Ids  # to hide, with a blank
    question: Ids  # at the end of the text, with a blank for the answer
    numbers: Ids  # the token of each number, shape (10,)


@dataclass
class PasskeyTask(Task):
    """Passkeys, texts to hide them in, and the accuracy so far, too coarse to rank models by."""

    evaluator: Scorer | Embedder
    prompts: Prompts
    filler: Ids  # surrounding text without special tokens, shape (k,), repeated as needed
    lengths: tuple[int, ...]  # context lengths in tokens, special tokens included, shortest first
    texts: int  # per length and depth: one per trial, or for an encoder one per number
    seed: int  # for numbers and filler
    notes: tuple[str, ...]
    # accuracy by length and depth
    cells: dict[tuple[int, float], float] = field(default_factory=dict)

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
                    is_found = self._retrieve(self.evaluator, length, depth)
                else:
                    is_found = self._answer_questions(self.evaluator, length, depth)
                self.cells[length, depth] = float(np.mean(is_found))
                advance(length * self.texts)

    def _retrieve(self, embedder: Embedder, length: int, depth: float) -> list[bool]:
        """Return for each number whether its text is nearest to its sentence."""
        sentence, _, numbers = self.prompts
        sentences = [_fill(sentence, token) for token in numbers]
        size = length - embedder.model.tokenizer.num_special - len(sentence)
        before, after = self._around(length, depth, 0, size)
        texts = [np.concatenate([before, hidden, after]) for hidden in sentences]
        embedded_texts = embedder.embed(texts)
        similar = cosines(embedder.embed(sentences), embedded_texts)
        relevant = [{index: 1} for index in range(PASSKEYS)]
        return [found == 1 for found in score_rankings(similar, relevant)[RECALL_AT_1]]

    def _answer_questions(self, scorer: Scorer, length: int, depth: float) -> list[bool]:
        """Return for each trial whether the right number has the lowest loss."""
        trials = range(self.texts)
        losses = scorer.losses([self.window(length, depth, trial) for trial in trials])
        is_found = []
        for trial, row in zip(trials, losses, strict=True):
            answer = self.answer(length, depth, trial)
            is_found.append(all(row[answer] < np.delete(row, answer)))
        return is_found

    def window(self, length: int, depth: float, trial: int) -> ScoredWindow:
        """Return a text with a passkey and a question; its labels are the ten numbers."""
        sentence, question, numbers = self.prompts
        model = self.evaluator.model
        tokenizer = model.tokenizer
        hidden = _fill(sentence, numbers[self.answer(length, depth, trial)])
        blank = int(np.argmin(question))
        if model.kind == MASKED:
            masked = _fill(question, tokenizer.tokenizer.mask_token_id)
            end = np.concatenate([masked, tokenizer.after])
            output = length - len(end) + blank
        else:  # a causal model answers after the last token
            end = question[:blank]
            output = length - 1
        size = length - len(tokenizer.before) - len(hidden) - len(end)
        before, after = self._around(length, depth, trial, size)
        ids = np.concatenate([tokenizer.before, before, hidden, after, end])
        return ScoredWindow(
            input_ids=ids.astype(np.int64),
            outputs=np.full(PASSKEYS, output),
            labels=numbers,
        )

    def answer(self, length: int, depth: float, trial: int) -> int:
        """Return the index of the number that a trial hides; ten trials hide each number once."""
        # Each depth starts at another number, so that a model's favourite number does not fill a
        # column.
        first = DEPTHS.index(depth) * PASSKEYS // len(DEPTHS)
        order = np.random.default_rng((self.seed, length, trial // PASSKEYS)).permutation(PASSKEYS)
        return int(order[(trial + first) % PASSKEYS])

    def _around(self, length: int, depth: float, trial: int, tokens: int) -> tuple[Ids, Ids]:
        """Return `tokens` of text before and after the sentence, the same at each depth."""
        start = int(np.random.default_rng((self.seed, length, trial)).integers(len(self.filler)))
        text = np.take(self.filler, np.arange(start, start + tokens), mode="wrap")
        cut = round(depth * tokens)
        return text[:cut], text[cut:]

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures; unmeasured cells are None."""
        if not self.cells:
            return {}
        accuracy = list[tuple[float | None, ...]]()
        for length in self.lengths:
            accuracy.append(tuple(self.cells.get((length, depth)) for depth in DEPTHS))
        passkey = Passkey(
            scoring="retrieval" if isinstance(self.evaluator, Embedder) else "loss rank",
            lengths=self.lengths,
            depths=DEPTHS,
            accuracy=tuple(accuracy),
            trials=self.texts,
            chance=1 / PASSKEYS,
        )
        return {"passkey": passkey}


def plan_passkey(
    evaluator: Scorer | Embedder,
    filler: Ids,
    lengths: Sequence[int],
    *,
    tokens: int | None = None,
    seed: int = 0,
) -> PasskeyTask:
    """Choose ten single-token numbers, lengths and trials.

    Args:
        evaluator: The model.
        filler: Text to hide numbers in, shape (k,).
        lengths: Context lengths in tokens.
        tokens: How many to read in total, about; None: the maximum.
        seed: For numbers and filler.

    Raises:
        DataError: The tokenizer has no such numbers, or all lengths are too short.
    """
    tokenizer = evaluator.model.tokenizer
    prompts = next(_find_prompts(tokenizer, seed), None)
    if prompts is None:
        raise DataError(f"{SKIPPED_PASSKEY}: the tokenizer has no ten numbers of one token each.")
    needed = tokenizer.num_special + len(prompts.sentence) + len(prompts.question) + 1
    chosen = sorted({length for length in lengths if length >= needed})
    if not chosen:
        raise DataError(f"{SKIPPED_PASSKEY}: it needs texts of at least {needed} tokens.")
    notes = tuple[str, ...]()
    skipped = sorted({length for length in lengths if length < needed})
    if skipped:
        listed = ", ".join(f"{length:,}" for length in skipped)
        notes = (f"{SKIPPED_PASSKEY} at {listed} tokens: it needs at least {needed}.",)
    return PasskeyTask(
        evaluator=evaluator,
        prompts=prompts,
        filler=filler,
        lengths=tuple(chosen),
        texts=_count_texts(evaluator, chosen, tokens),
        seed=seed,
        notes=notes,
    )


def _count_texts(evaluator: Scorer | Embedder, lengths: Sequence[int], tokens: int | None) -> int:
    """Return the number of texts per length and depth."""
    if isinstance(evaluator, Embedder):
        return PASSKEYS
    if tokens is None:
        return MAX_TRIALS
    trials = tokens // (sum(lengths) * len(DEPTHS))
    return min(max(trials, MIN_TRIALS), MAX_TRIALS)


def _find_prompts(tokenizer: TextTokenizer, seed: int) -> Iterator[Prompts]:
    """Yield prompts with ten single-token numbers, first of many digits."""
    for digits in range(MAX_DIGITS, 0, -1):
        for spelling in SPELLINGS:
            prompts = _make_prompts(tokenizer, digits, spelling, seed)
            if prompts is not None:
                yield prompts


def _make_prompts(
    tokenizer: TextTokenizer, digits: int, spelling: str, seed: int
) -> Prompts | None:
    """Return prompts with numbers of so many digits; None if fewer than ten are a single token."""
    lowest = 10 ** (digits - 1) if digits > 1 else 0
    numbers = np.random.default_rng(seed).permutation(np.arange(lowest, 10**digits))[:MAX_TRIED]
    texts = [spelling.format(number) for number in numbers]
    sentences = [tokenizer.encode(SENTENCE.format(text)).tolist() for text in texts]
    questions = [tokenizer.encode(QUESTION.format(text)).tolist() for text in texts]
    sentence, hidden = _template(sentences)
    question, answers = _template(questions)
    # The answer must be the same token as in the sentence, and a different token for each number.
    tokens = {token for index, token in hidden.items() if answers.get(index) == token}
    tokens.discard(tokenizer.tokenizer.unk_token_id)
    if len(tokens) < PASSKEYS:
        return None
    shuffled = np.random.default_rng(seed).permutation(np.array(sorted(tokens), np.int64))
    return Prompts(sentence=sentence, question=question, numbers=shuffled[:PASSKEYS])


def _template(sentences: list[list[int]]) -> tuple[Ids, dict[int, int]]:
    """Return the ids that sentences share, with a blank, and the tokens of their numbers.

    The tokens are by index of the sentence, without those whose number has several.
    """
    start = _common_prefix(sentences)
    end = _common_prefix([ids[start:][::-1] for ids in sentences])
    numbers = dict[int, int]()
    for index, ids in enumerate(sentences):
        if len(ids) - start - end == 1:
            numbers[index] = ids[start]
    first = sentences[0]
    template = [*first[:start], BLANK, *first[len(first) - end :]]
    return np.array(template, np.int64), numbers


def _common_prefix(rows: list[list[int]]) -> int:
    """Return how many first items all rows share."""
    count = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def _fill(template: Ids, token: int) -> Ids:
    return np.where(template == BLANK, token, template)
