"""Words of a vocabulary for needles."""

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ctxextend.errors import DataError
from ctxextend.lab.eval_model import EvalModel
from ctxextend.lab.needles import LONG_KEY, find_words
from ctxextend.lab.text_tokenizer import TextTokenizer

ENGLISH = "The lobster lives in the sea, and is seldom seen by day. "


def word_tokenizer(words: list[str]) -> TextTokenizer:
    """Return a tokenizer of words, colons and line breaks; spaces are no tokens."""
    vocabulary = ["[UNK]", ":", "\n", *words]
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.Replace(" ", "")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(":", "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(":", "isolated"), pre_tokenizers.Split("\n", "isolated")]
    )
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")  # type: ignore[no-untyped-call]
    return TextTokenizer(fast)


def character_tokenizer(more: tuple[str, ...] = ()) -> TextTokenizer:
    """Return a tokenizer of ASCII characters; `more` tokens are in its vocabulary only."""
    characters = [chr(code) for code in range(32, 127)]
    vocabulary = ["\n", *characters, *more]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(vocabulary)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))  # type: ignore[no-untyped-call]


def letters(count: int, first: int = ord("a")) -> list[str]:
    """Return distinct words of three letters of one alphabet."""
    return [
        chr(first + index // 400 % 20) + chr(first + index // 20 % 20) + chr(first + index % 20)
        for index in range(count)
    ]


@pytest.mark.parametrize("name", ["tiny-gpt2", "minilm"])
def test_find_words_makes_lines_that_the_tokenizer_makes_too(name: str, minilm: EvalModel) -> None:
    tokenizer = minilm.tokenizer if name == "minilm" else TextTokenizer.open(name)
    words = find_words(tokenizer, name, tokenizer.encode(ENGLISH), seed=0)
    decode = tokenizer.tokenizer.decode
    for index in range(10):
        key = np.arange(index, index + words.key_words)
        value = np.array([index + 7])
        spelled = " ".join(decode([word]).strip() for word in words.as_value[key])
        line = f"\n{spelled}: {decode(words.as_value[value]).strip()}\n"
        assert words.line(key, value).tolist() == tokenizer.encode(line).tolist()
        assert len(words.line(key, value)) == words.needle_tokens
        assert len(words.question(key)) == words.question_tokens
        assert len(words.line(key, key)) == words.pointer_tokens
        assert words.line(key, value)[: words.question_tokens].tolist() == list(words.question(key))


def test_find_words_takes_words_in_the_script_of_the_text() -> None:
    latin = letters(300)
    greek = letters(300, 0x3B1)
    tokenizer = word_tokenizer([*latin, *greek])
    for text, expected in ((latin, set(latin)), (greek, set(greek))):
        ids = np.array([tokenizer.tokenizer.get_vocab()[word] for word in text], np.int64)
        words = find_words(tokenizer, "m", ids, seed=0)
        found = {tokenizer.tokenizer.decode([token]) for token in words.as_value}
        assert found == expected


def test_find_words_takes_characters_of_a_vocabulary_without_words() -> None:
    tokenizer = character_tokenizer()
    words = find_words(tokenizer, "m", tokenizer.encode(ENGLISH), seed=0)
    decode = tokenizer.tokenizer.decode
    assert {decode([token]) for token in words.as_value} == {
        chr(code) for code in range(128) if chr(code).isalnum()
    }
    assert words.key_words == LONG_KEY
    line = words.line(np.array([0, 1]), np.array([2]))
    first, second, third = (decode([token]) for token in words.as_value[:3])
    assert decode(line) == f"\n{first}{second}: {third}\n"


def test_find_words_rejects_a_vocabulary_without_words_and_letters() -> None:
    tokenizer = word_tokenizer(["aaa", "bbb", "ccc"])
    with pytest.raises(DataError, match=r"vocabulary of m has 3 words.*needles need 36"):
        find_words(tokenizer, "m", np.array([3, 4]), seed=0)


def test_find_words_rejects_a_tokenizer_that_splits_words() -> None:
    tokenizer = character_tokenizer(tuple(letters(300)))
    with pytest.raises(DataError, match=r"splits needles such as .* of 300 words stay single"):
        find_words(tokenizer, "m", tokenizer.encode("aab"), seed=0)
