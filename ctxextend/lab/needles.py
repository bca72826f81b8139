"""What needles are made of: single words of a model's own vocabulary, in lines ``key: value``."""

import unicodedata
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from ctxextend.errors import DataError
from ctxextend.held_out import Ids
from ctxextend.lab.text_tokenizer import TextTokenizer

LINE = "\n{key}: {value}\n"
RIVALS = 9  # wrong answers that an answer is ranked among, at most
MIN_LETTERS = 3  # of a word, if the vocabulary has enough of them
MAX_TRIED = 6000  # words of the vocabulary that are tokenized in a line
# With fewer usable words, as in vocabularies of bytes or characters, a key is several tokens: one
# would occur all over the text.
WORDS_FOR_SHORT_KEYS = 120
LONG_KEY = 2  # words
# Share of lines that have the same tokens around their words; others merge with a line break.
SHARED = 0.8
SAMPLE_CHARACTERS = 10_000  # of the text, whose script the words have
MIN_WORDS = 36  # fewer make no needles


@dataclass(frozen=True)
class NeedleWords:
    """Words that are a single token as a key and as a value, and the tokens around them.

    A needle is ``before``, the tokens of a key, ``between``, the token of a value, ``after``.
    """

    before: Ids  # of a line break, maybe none
    between: Ids  # of a colon
    after: Ids  # of a line break, maybe none
    as_key: Ids  # token of each word as a key, shape (n,)
    as_value: Ids  # token of each word as a value, shape (n,)
    key_words: int  # words of a key

    @property
    def needle_tokens(self) -> int:
        """The number of tokens of a needle."""
        return self.question_tokens + 1 + len(self.after)

    @property
    def question_tokens(self) -> int:
        """The number of tokens of a question, which ends where the answer begins."""
        return len(self.before) + self.key_words + len(self.between)

    def question(self, key: Ids) -> Ids:
        """Return the tokens that ask for a key's value: a line that ends before it.

        `key` has the indices of its words, shape (key_words,).
        """
        later = self.as_value[key[1:]]
        return np.concatenate([self.before, self.as_key[key[:1]], later, self.between])

    def line(self, key: Ids, value: Ids) -> Ids:
        """Return the tokens of a line that gives a key a value: words by index, each shape (k,)."""
        return np.concatenate([self.question(key), self.as_value[value], self.after])


def find_words(tokenizer: TextTokenizer, name: str, text: Ids, seed: int) -> NeedleWords:
    """Choose words of a vocabulary, in the script of a text, that stay single tokens in a needle.

    Words of at least `MIN_LETTERS` letters come first; vocabularies of bytes or characters have
    none, and their letters and digits are used instead.

    Args:
        tokenizer: The model's tokenizer.
        name: The model, for messages.
        text: Token ids that show the script, shape (k,).
        seed: For the words that are tried.

    Raises:
        DataError: The vocabulary has too few such words.
    """
    tried = _candidate_words(tokenizer, text, seed) or [""]  # a line at least
    lines = tokenizer.encode_all([LINE.format(key=word, value=word) for word in tried])
    words = _usable_words([line.tolist() for line in lines], tokenizer.tokenizer.unk_token_id)
    if len(words.as_key) < MIN_WORDS:
        message = (
            f"The vocabulary of {name} has {len(words.as_key)} words and letters that are single "
            f"tokens in lines such as 'key: value'; needles need {MIN_WORDS}."
        )
        raise DataError(message, "Measure the loss by position instead: --measure position.")
    return words


def _script_of(character: str) -> str:
    """Return the start of a Unicode name: ``LATIN``, ``CJK``."""
    return unicodedata.name(character, "").partition(" ")[0]


def _candidate_words(tokenizer: TextTokenizer, text: Ids, seed: int) -> list[str]:
    """Return words of the vocabulary in the script of a text, in random order.

    Without enough words, letters and digits of any script follow.
    """
    own = tokenizer.tokenizer
    sample = own.decode(text[:SAMPLE_CHARACTERS])[:SAMPLE_CHARACTERS]
    scripts = Counter(_script_of(character) for character in sample if character.isalpha())
    script = max(scripts, key=scripts.__getitem__, default="")
    names = own.get_vocab().keys() - {*own.all_special_tokens}
    # By hash, so that added tokens do not change the order of the others.
    order = sorted(names, key=lambda name: sha256(f"{seed} {name}".encode()).digest())
    words = dict[str, None]()
    letters = dict[str, None]()
    for token in own.convert_tokens_to_ids(order):
        word = own.decode([token]).strip()
        # Ideographs are words by themselves.
        is_long = len(word) >= MIN_LETTERS or script in ("CJK", "HANGUL")
        if is_long and word.isalpha() and all(_script_of(letter) == script for letter in word):
            words[word] = None
            if len(words) == MAX_TRIED:
                break
        if len(word) == 1 and word.isalnum():
            letters[word] = None
    if len(words) < WORDS_FOR_SHORT_KEYS:
        words |= letters
    return list(words)


def _usable_words(lines: list[list[int]], unknown: int | None) -> NeedleWords:
    """Return the words that are single tokens in lines with one word as key and value."""
    before = _shared_start(lines)
    after = _shared_start([ids[len(before) :][::-1] for ids in lines])[::-1]
    middles = [ids[len(before) : len(ids) - len(after)] for ids in lines]
    separators = Counter(tuple(middle[1:-1]) for middle in middles if len(middle) > 2)
    between = max(separators, key=separators.__getitem__, default=())
    by_key = dict[int, int]()  # tokens as values by tokens as keys
    for ids, middle in zip(lines, middles, strict=True):
        is_whole = ids == [*before, *middle[:1], *between, *middle[-1:], *after]
        if is_whole and between and unknown not in ids:
            by_key.setdefault(middle[0], middle[-1])
    # Two words of different case may be one token as a value.
    by_value = {value: key for key, value in by_key.items()}
    key_words = LONG_KEY
    if len(by_value) >= WORDS_FOR_SHORT_KEYS:
        key_words = 1
    return NeedleWords(
        before=np.array(before, np.int64),
        between=np.array(between, np.int64),
        after=np.array(after, np.int64),
        as_key=np.array([*by_value.values()], np.int64),
        as_value=np.array([*by_value], np.int64),
        key_words=key_words,
    )


def _shared_start(rows: list[list[int]]) -> list[int]:
    shared = list[int]()
    needed = max(SHARED * len(rows), 1)
    while True:
        following = Counter(row[len(shared)] for row in rows if len(row) > len(shared))
        if max(following.values(), default=0) < needed:
            return shared
        shared.append(following.most_common(1)[0][0])
        rows = [row for row in rows if row[: len(shared)] == shared]
