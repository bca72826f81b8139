"""What needles are made of: single words of a model's own vocabulary, in lines ``key: value``."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from ctxextend.errors import DataError
from ctxextend.held_out import Ids
from ctxextend.lab.text_tokenizer import TextTokenizer

OTHER_MEASURE = "Measure the loss by position instead: --measure position."
SEPARATOR = ":"  # of key and value
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
    def pointer_tokens(self) -> int:
        """The number of tokens of a line that points to the key of a needle."""
        return self.question_tokens + self.key_words + len(self.after)

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
        DataError: The vocabulary has too few words, or the tokenizer splits them in a needle.
    """
    sample = tokenizer.tokenizer.decode(text[:SAMPLE_CHARACTERS])[:SAMPLE_CHARACTERS]
    scripts = Counter(_script_of(character) for character in sample if character.isalpha())
    script = max(scripts, key=scripts.__getitem__, default="")
    tried = _candidate_words(tokenizer, script, seed)
    if len(tried) < MIN_WORDS:
        message = (
            f"The vocabulary of {name} has {len(tried)} words and letters that are single tokens; "
            f"needles need {MIN_WORDS}."
        )
        raise DataError(message, OTHER_MEASURE)
    unknown = tokenizer.tokenizer.unk_token_id
    if unknown is not None and unknown in tokenizer.encode(SEPARATOR):
        message = f"The tokenizer of {name} has no token for {SEPARATOR!r}, which needles contain."
        raise DataError(message, OTHER_MEASURE)
    lines = tokenizer.encode_all([LINE.format(key=word, value=word) for word in tried])
    words = _usable_words([line.tolist() for line in lines], unknown)
    if words is None or len(words.as_key) < MIN_WORDS:
        kept = 0 if words is None else len(words.as_key)
        example = LINE.format(key=tried[0], value=tried[-1]).strip()
        message = (
            f"The tokenizer of {name} splits needles such as {example!r}: {kept} of {len(tried)} "
            f"words stay single tokens, and {MIN_WORDS} are needed."
        )
        raise DataError(message, OTHER_MEASURE)
    return words


def _script_of(character: str) -> str:
    """Return the start of a Unicode name: ``LATIN``, ``CJK``."""
    return unicodedata.name(character, "").partition(" ")[0]


def _candidate_words(tokenizer: TextTokenizer, script: str, seed: int) -> list[str]:
    """Return words of the vocabulary in a script, in random order.

    Without enough words, letters and digits of any script follow.
    """
    special = {*tokenizer.tokenizer.all_special_tokens}
    names = {name for name in tokenizer.tokenizer.get_vocab() if name not in special}
    # By hash, so that added tokens do not change the order of the others.
    order = sorted(names, key=lambda name: sha256(f"{seed} {name}".encode()).digest())
    ids = tokenizer.tokenizer.convert_tokens_to_ids(order)
    words = dict[str, None]()
    for text in _decoded(tokenizer, ids):
        # Ideographs are words by themselves.
        is_long = len(text) >= MIN_LETTERS or script in ("CJK", "HANGUL")
        if is_long and text.isalpha() and all(_script_of(letter) == script for letter in text):
            words[text] = None
            if len(words) == MAX_TRIED:
                break
    if len(words) < WORDS_FOR_SHORT_KEYS:
        texts = _decoded(tokenizer, ids)
        words |= dict.fromkeys(text for text in texts if len(text) == 1 and text.isalnum())
    return list(words)


def _decoded(tokenizer: TextTokenizer, ids: Sequence[int]) -> Iterator[str]:
    for token in ids:
        yield tokenizer.tokenizer.decode([token]).strip()


def _usable_words(lines: list[list[int]], unknown: int | None) -> NeedleWords | None:
    """Return the words that are single tokens in lines with one word as key and value.

    None if the lines have no tokens in common between the two.
    """
    before = _shared_start(lines)
    after = _shared_start([ids[len(before) :][::-1] for ids in lines])[::-1]
    middles = [ids[len(before) : len(ids) - len(after)] for ids in lines]
    separators = Counter(tuple(middle[1:-1]) for middle in middles if len(middle) > 2)
    if not separators:
        return None
    between = separators.most_common(1)[0][0]
    if unknown in (*before, *between, *after):
        return None
    pairs = dict[int, int]()  # tokens as values by tokens as keys
    for ids, middle in zip(lines, middles, strict=True):
        is_whole = ids == [*before, *middle, *after]
        if is_whole and tuple(middle[1:-1]) == between and unknown not in middle:
            pairs.setdefault(middle[0], middle[-1])
    # Two words of different case may be one token as a value.
    by_value = {value: key for key, value in pairs.items()}
    as_value = np.array([*by_value], np.int64)
    key_words = 1 if len(as_value) >= WORDS_FOR_SHORT_KEYS else LONG_KEY
    return NeedleWords(
        before=np.array(before, np.int64),
        between=np.array(between, np.int64),
        after=np.array(after, np.int64),
        as_key=np.array([*by_value.values()], np.int64),
        as_value=as_value,
        key_words=key_words,
    )


def _shared_start(rows: list[list[int]]) -> list[int]:
    shared = list[int]()
    needed = SHARED * len(rows)
    while True:
        following = Counter(row[len(shared)] for row in rows if len(row) > len(shared))
        if not following:
            return shared
        item, count = following.most_common(1)[0]
        if count < needed:
            return shared
        shared.append(item)
        rows = [row for row in rows if row[: len(shared)] == shared]
